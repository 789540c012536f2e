"""What Hypothesis draws without a seed of its own, the same whenever the code is the same."""

from collections.abc import Iterator
from unittest.mock import patch

import pytest
from hypothesis.internal.conjecture import providers


@pytest.fixture(scope="module", autouse=True)
def equal_draws() -> Iterator[None]:
    """Draw no constants of the modules that happen to be loaded: the service loads more while it answers.

    With ``derandomize`` alone, draws depend on the tests before and on the time that a service took.
    """
    none = providers.Constants()
    providers.CONSTANTS_CACHE.cache.clear()
    with patch.object(providers, "_get_local_constants", lambda: none):
        yield
    providers.CONSTANTS_CACHE.cache.clear()
