"""The clock of an object store, measured seldom, and a machine's clock that is wrong."""

import time
from datetime import UTC, datetime

import pytest

from connectors.lake import clocks
from connectors.lake.clocks import StoreClock, refuse_wrong_clock
from model.errors import WarehouseError

AT = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_store_s_clock_goes_on_by_itself_whatever_becomes_of_the_machine_s(monkeypatch):
    steady = 1000.0
    monkeypatch.setattr(clocks, "_steady_seconds", lambda: steady)
    clock = StoreClock()
    assert clock.now(lambda: AT) == AT.timestamp()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    steady += 3000
    assert clock.now(pytest.fail) == AT.timestamp() + 3000
    steady += 3000
    later = datetime(2026, 1, 2, tzinfo=UTC)
    assert clock.now(lambda: later) == later.timestamp()


@pytest.mark.parametrize(("apart", "says"), [(7200, "120 minutes ahead of"), (-7200, "120 minutes behind")])
def test_a_clock_that_is_wrong_is_refused(apart, says):
    refuse_wrong_clock(time.time() - apart / 10, "delete files")
    with pytest.raises(WarehouseError, match=rf"{says} the clock of the bucket.*does not delete files"):
        refuse_wrong_clock(time.time() - apart, "delete files")
