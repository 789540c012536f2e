"""A machine's clock that is wrong."""

import time

import pytest

from connectors.lake.clocks import refuse_wrong_clock
from model.errors import WarehouseError


@pytest.mark.parametrize(("apart", "says"), [(7200, "120 minutes ahead of"), (-7200, "120 minutes behind")])
def test_a_clock_that_is_wrong_is_refused(apart, says):
    refuse_wrong_clock(time.time() - apart / 10, "delete files")
    with pytest.raises(WarehouseError, match=rf"{says} the clock of the bucket.*does not delete files"):
        refuse_wrong_clock(time.time() - apart, "delete files")
