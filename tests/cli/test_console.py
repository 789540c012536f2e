from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://refeed", "http://"])
def test_an_address_that_is_none_is_a_fault_of_the_option(refeed: Callable[..., Any], url: str) -> None:
    result = refeed("console", "--api-url", url)
    assert (result.code, "--api-url" in result.err) == (2, True)
