"""A console beside a real API, over real sockets and without Spark, and a browser for it."""

import pytest

from console import app
from tests.api.conftest import plain_log, start_api
from tests.console.tab import WIDE, Tab, start_chromium
from tests.console.works import make_works
from tests.console.yard import make_yard, open_client, sign_in

__all__ = ["plain_log", "start_api"]


@pytest.fixture(scope="module")
def yard(start_api):
    return make_yard(start_api)


@pytest.fixture(scope="module")
def works(start_api):
    return make_works(start_api)


@pytest.fixture
def browser(yard):
    """Somebody who has signed in and may do everything."""
    with open_client(yard) as client:
        sign_in(client, yard.key)
        yield client


@pytest.fixture
def ann(works):
    with open_client(works) as client:
        sign_in(client, works.key)
        yield client


@pytest.fixture
def refreshed_often(monkeypatch):
    """Let open pages ask ten times as often whether their session goes on; what they show may be a copy then."""
    stream = app.stream_page

    def often(read, *, every_seconds, **others):
        return stream(read, every_seconds=every_seconds / 10, **others)

    monkeypatch.setattr(app, "stream_page", often)


@pytest.fixture(scope="module")
def chromium():
    with start_chromium() as browser:
        yield browser


@pytest.fixture
def open_tab(yard, chromium):
    contexts = []

    def open_tab(look=WIDE, url=None):
        width, scheme = look
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        return Tab(context.new_page(), yard.url if url is None else url)

    yield open_tab
    for context in contexts:
        context.close()
