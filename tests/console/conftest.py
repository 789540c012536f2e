"""A console beside a real API, over real sockets and without Spark, and a browser for it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.api.conftest import plain_log, start_api
from tests.console.tab import WIDE, Tab, start_chromium
from tests.console.yard import Yard, make_yard

__all__ = ["plain_log", "start_api"]


@pytest.fixture(scope="module")
def yard(start_api: Callable[..., Any]) -> Yard:
    return make_yard(start_api)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with start_chromium() as browser:
        yield browser


@pytest.fixture
def open_tab(yard: Yard, chromium: Any) -> Iterator[Callable[..., Tab]]:
    contexts = []

    def open_tab(look: tuple[int, str] = WIDE, url: str | None = None) -> Tab:
        width, scheme = look
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        return Tab(context.new_page(), yard.url if url is None else url)

    yield open_tab
    for context in contexts:
        context.close()
