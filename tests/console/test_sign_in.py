"""The console's sign-in with an identity provider, without a browser's engine."""

import re
from html import unescape
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest

from tests.standin.oidc_provider import StrictProvider, served_provider

SECONDS = 20.0
ASKED = "/console/streams?zone=Asia%2FTokyo"
SIGNED_OUT = "event: signed-out\ndata: {}\n\n"


@pytest.fixture(scope="module")
def api(start_api, served):
    api = start_api(**served.environment(), REFEED_RATE_LIMIT_PER_MINUTE="0")
    served.register(api.url)
    return api


@pytest.fixture(scope="module")
def served():
    with served_provider() as provider:
        yield provider


@pytest.fixture
def provider(served):
    served.reset()
    return served


@pytest.fixture
def browser(api, provider):
    assert provider.refused == []
    with httpx.Client(base_url=api.url, timeout=SECONDS) as client:
        yield client


def start(browser: httpx.Client, back: str = ASKED) -> str:
    """Where the link of the sign-in page leads."""
    page = browser.get("/console/sign-in", params={"return": back})
    link = re.search(r'id="provider"', page.text)
    assert link is not None, page.text
    (href,) = re.findall(r'href="(/console/sign-in/provider[^"]*)"', page.text)
    answer = browser.get(unescape(href))
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def approve(provider: StrictProvider, url: str, link: str = "approve") -> str:
    """Where the provider leads back to, after the person's click."""
    with httpx.Client(timeout=SECONDS) as client:
        ticket = client.get(url).text.partition("ticket=")[2].partition('"')[0]
        return str(client.get(f"{provider.url}/{link}", params={"ticket": ticket}).headers["location"])


def sign_in(browser: httpx.Client, provider: StrictProvider, back: str = ASKED) -> httpx.Response:
    return browser.get(approve(provider, start(browser, back)))


def test_who_signs_in_comes_back_to_the_page_that_they_asked_for(browser, provider):
    refused = browser.get(ASKED)
    back = dict(parse_qsl(urlsplit(refused.headers["location"]).query))["return"]
    answer = sign_in(browser, provider, back)
    assert (answer.status_code, answer.headers["location"]) == (303, ASKED)
    page = browser.get(ASKED)
    assert (page.status_code, "user:ann@shop.example" in page.text) == (200, True)
    assert browser.cookies["refeed_session"] not in page.text
    assert provider.refused == []


def test_the_attempt_is_a_cookie_of_the_sign_in_alone_and_goes_with_its_use(browser, provider):
    page = browser.get("/console/sign-in/provider", params={"return": ASKED})
    wanted = r"refeed_sign_in_[\w-]{43}=[\w.-]+; HttpOnly; Max-Age=600; Path=/console/sign-in; SameSite=lax$"
    assert re.match(wanted, page.headers["set-cookie"])
    answer = browser.get(approve(provider, page.headers["location"]))
    session, gone = answer.headers.get_list("set-cookie")
    assert re.match(r"refeed_session=ru_[\w-]{43}; HttpOnly; Path=/console; SameSite=lax$", session)
    assert (gone.startswith("refeed_sign_in_"), "Max-Age=0" in gone) == (True, True)


def test_abandoned_attempts_do_not_pile_up_in_the_browser(browser):
    for _ in range(8):
        start(browser)
    assert len([name for name in browser.cookies if name.startswith("refeed_sign_in_")]) == 4


def test_a_callback_counts_in_the_browser_that_started_it_and_once(api, browser, provider):
    callback = approve(provider, start(browser))
    with httpx.Client(base_url=api.url, timeout=SECONDS) as other:
        stolen = other.get(callback)
        assert (stolen.status_code, "not started in this browser" in stolen.text) == (403, True)
        assert "refeed_session" not in other.cookies
    assert provider.token_requests == []
    kept = dict(browser.cookies)
    assert browser.get(callback).status_code == 303
    with httpx.Client(base_url=api.url, timeout=SECONDS, cookies=kept) as again:
        replayed = again.get(callback)
        assert (replayed.status_code, "was already used" in replayed.text) == (403, True)
    assert len(provider.token_requests) == 1


@pytest.mark.parametrize(
    "evil",
    [
        "https://evil.example/console",
        "//evil.example/console",
        "/\\evil.example",
        "/console\\@evil.example",
        "/console/../../evil",
        "/consolation",
        "/console/sign-out",
        "javascript:alert(1)",
        "/console/\r\nLocation: https://evil.example",
        "/console/" + "x" * 5000,
    ],
)
def test_a_sign_in_never_goes_on_outside_of_the_console(browser, provider, evil):
    url = browser.get("/console/sign-in/provider", params={"return": evil}).headers["location"]
    where = browser.get(approve(provider, url)).headers["location"]
    assert urlsplit(str(browser.base_url.join(where)))[:2] == urlsplit(str(browser.base_url))[:2]
    assert where.startswith("/console")
    if ".." not in evil:
        assert where == "/console"


def test_a_path_that_somebody_put_into_the_cookie_is_judged_again(browser, provider):
    callback = approve(provider, start(browser))
    (name,) = [name for name in browser.cookies if name.startswith("refeed_sign_in_")]
    attempt = browser.cookies[name].rpartition(".")[0]
    for path in ("aHR0cHM6Ly9ldmlsLmV4YW1wbGU", "%%%", "w4Q"):
        browser.cookies.clear()
        answer = browser.get(callback, headers={"Cookie": f"{name}={attempt}.{path}"})
        assert answer.headers.get("location", "/console") == "/console"


def test_what_the_provider_says_is_shown_and_is_no_markup(browser, provider):
    answer = browser.get(approve(provider, start(browser), "decline"))
    assert answer.status_code == 403
    assert "access_denied: Ann declined. &lt;b&gt;Really&lt;/b&gt;" in answer.text
    # The next try goes on where this one would have.
    assert "Tokyo" in answer.text


def test_another_person_s_words_are_not_shown_without_a_sign_in_of_this_browser(browser):
    said = {"error": "x", "error_description": "Call 555 0100 to unlock", "state": "s" * 43}
    answer = browser.get("/console/sign-in/callback", params=said)
    assert (answer.status_code, "Call 555" in answer.text) == (403, False)


def test_a_page_of_another_site_starts_no_sign_in(browser):
    answer = browser.get("/console/sign-in/provider", headers={"Sec-Fetch-Site": "cross-site"})
    assert (answer.status_code, "refeed_sign_in" in answer.headers["set-cookie"]) == (403, False)


@pytest.mark.usefixtures("refreshed_often")
def test_a_token_that_has_ended_leads_to_the_sign_in_and_ends_live_pages(browser, provider):
    provider.gives_refresh_token = False
    provider.token_seconds = 2
    sign_in(browser, provider)
    with browser.stream("GET", "/console/live/streams") as live:
        events = "".join(live.iter_text())
    assert "event: page" in events
    assert events.endswith(SIGNED_OUT)
    assert browser.get(ASKED).headers["location"].startswith("/console/sign-in?return=%2Fconsole%2Fstreams")


def test_a_sign_out_ends_both_sessions(browser, provider):
    sign_in(browser, provider)
    token = re.search(r'name="form_token" value="([0-9a-f]{64})"', browser.get("/console").text)
    page = browser.post("/console/sign-out", data={"form_token": token[1]})
    assert (page.status_code, "refeed_session" in browser.cookies) == (200, False)
    (where,) = re.findall(r'http-equiv="refresh" content="0;url=([^"]+)"', page.text)
    answer = browser.get(unescape(where))
    assert answer.headers["location"] == str(browser.base_url.join("/console/sign-in"))
    assert provider.signed_out == ["ann"]


def test_a_provider_that_is_away_is_said_and_keys_still_sign_in(start_api, provider):
    api = start_api(**provider.environment())
    provider.status = 500
    with httpx.Client(base_url=api.url, timeout=SECONDS) as browser:
        answer = browser.get("/console/sign-in/provider")
        assert (answer.status_code, "identity_unavailable" in answer.text) == (503, True)
        assert 'name="key"' in browser.get("/console/sign-in").text
