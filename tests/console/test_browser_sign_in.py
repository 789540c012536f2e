"""The sign-in with an identity provider in Chromium, over two sites: the console's and the provider's."""

from time import monotonic
from typing import Any

import pytest

from tests.console.tab import MILLISECONDS
from tests.console.yard import make_yard
from tests.standin.oidc_provider import served_provider

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def provider():
    with served_provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def yard(start_api, provider):
    yard = make_yard(start_api, **provider.environment())
    provider.register(yard.api.url)
    return yard


def test_a_person_signs_in_with_the_provider_loses_the_token_and_signs_out(yard, provider, open_tab):
    asked = f"{yard.url}/streams?zone=Asia%2FTokyo"
    provider.scope = "backfills.read streams.read"
    provider.gives_refresh_token, provider.token_seconds = False, 300
    tab = open_tab()
    tab.page.goto(asked)
    tab.page.click("#provider")
    tab.page.click("#ann")
    tab.page.wait_for_url(asked)
    tab.page.wait_for_selector("#as-of time")
    assert "user:ann@shop.example" in tab.page.inner_text("header")
    # A scope that the token lacks.
    tab.open("/topics/orders?show=messages")
    assert "This call needs the scope messages.read. user:ann@shop.example does not have this scope." in tab.text()
    # The token ends: the open page's live connection closes and leads to the sign-in, and from there back.
    tab.page.context.clear_cookies()
    provider.token_seconds = 15
    closed = _ends_of(tab.page, "/console/live/streams")
    tab.page.goto(asked)
    tab.page.click("#provider")
    tab.page.click("#ann")
    tab.page.wait_for_url(asked)
    tab.page.wait_for_selector("#as-of time")
    tab.page.wait_for_url("**/console/sign-in?return=*", timeout=MILLISECONDS)
    assert closed
    provider.token_seconds = 300
    tab.page.click("#provider")
    tab.page.click("#decline")
    tab.page.wait_for_selector("text=access_denied: Ann declined. <b>Really</b>")
    tab.page.click("#provider")
    tab.page.click("#ann")
    tab.page.wait_for_url(asked)
    # The sign-out leads over the provider's page back to the sign-in, and the session is over.
    tab.page.click("text=Sign out")
    tab.page.wait_for_url(f"{yard.url}/sign-in")
    assert provider.signed_out == ["ann"]
    tab.page.goto(asked)
    assert tab.page.url.startswith(f"{yard.url}/sign-in?return=")
    assert tab.page.evaluate("window.refused") == []
    assert provider.refused == []


def test_a_page_whose_form_is_under_way_is_not_led_to_the_sign_in(yard, provider, open_tab):
    """A sign-out goes on to the provider, and the live connection may hear of it before the form is answered."""
    provider.reset()
    asked = f"{yard.url}/streams"
    tab = open_tab()
    tab.page.goto(asked)
    tab.page.click("#provider")
    tab.page.click("#ann")
    tab.page.wait_for_url(asked)
    leaving, staying, other = tab.page, tab.page.context.new_page(), tab.page.context.new_page()
    staying.goto(asked)
    other.goto(asked)
    for page in (leaving, staying):
        page.wait_for_selector("#as-of time")
    leaving.evaluate("window.dispatchEvent(new Event('submit'))")
    ended = _ends_of(leaving, "/console/live/")
    other.click("text=Sign out")
    staying.wait_for_url("**/console/sign-in?return=*", timeout=MILLISECONDS)
    until = monotonic() + MILLISECONDS / 1000
    while not ended and monotonic() < until:
        leaving.wait_for_timeout(50)
    assert ended
    assert leaving.url == asked


def _ends_of(page: Any, path: str) -> list[str]:
    """Return the list that each request with this in its address joins as it ends.

    The server ends a live connection, and the page aborts it as soon as it has read why: either may be first.
    """
    ended: list[str] = []

    def note(request: Any) -> None:
        if path in request.url:
            ended.append(request.url)

    for event in ("requestfinished", "requestfailed"):
        page.on(event, note)
    return ended
