"""Sign-in with an identity provider over HTTP: every refusal, renewal, and the end."""

import base64
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest

from tests.api.backfills import assert_problem
from tests.issuer import generated_key
from tests.standin.oidc_provider import served_provider
from tests.waiting import wait_until

SECONDS = 20.0


class Browser:
    """A browser at the provider, and the API as the console calls it."""

    def __init__(self, api, provider):
        self.api = api
        self.provider = provider

    def start(self):
        with self.api.client() as client:
            answer = client.post("/sign-ins")
        assert answer.status_code == 201, answer.text
        return answer.json()

    def approve(self, started, link="approve"):
        """The parameters that come back to the callback."""
        with httpx.Client(timeout=SECONDS) as client:
            page = client.get(started["authorization_url"])
            assert page.status_code == 200, page.text
            ticket = page.text.partition("ticket=")[2].partition('"')[0]
            answer = client.get(f"{self.provider.url}/{link}", params={"ticket": ticket})
        where = urlsplit(answer.headers["location"])
        assert f"{where.scheme}://{where.netloc}{where.path}" == f"{self.api.url}/console/sign-in/callback"
        return dict(parse_qsl(where.query))

    def complete(self, started, answer):
        with self.api.client() as client:
            return client.post("/sign-ins:complete", json={"attempt": started["attempt"], **answer})

    def sign_in(self):
        started = self.start()
        answer = self.complete(started, self.approve(started))
        assert answer.status_code == 201, (answer.text, self.provider.refused)
        return answer.json()

    def refusal(self, started=None):
        """Why a sign-in that the provider approved is refused, as the audit log has it."""
        started = started or self.start()
        assert_problem(self.complete(started, self.approve(started)), 403, "sign_in_refused")
        return str(self.api.audit()[-1].why)

    def call(self, session, path="/backfills"):
        with self.api.client(session["token"]) as client:
            return client.get(path)


def serve(start_api, provider, **environment):
    api = start_api(**{**provider.environment(), **environment})
    provider.register(api.url)
    return Browser(api, provider)


@pytest.fixture(scope="module")
def served(start_api):
    with served_provider() as provider:
        yield serve(start_api, provider, REFEED_RATE_LIMIT_PER_MINUTE="0")


@pytest.fixture
def browser(served):
    """The module's, with a provider that does nothing wrong."""
    served.provider.reset()
    return served


def test_a_person_who_signed_in_calls_with_the_rights_of_their_token(browser):
    browser.provider.scope = "backfills.read"
    session = browser.sign_in()
    assert session["token"].startswith("ru_")
    assert (session["name"], session["scopes"]) == ("user:ann@shop.example", ["backfills.read"])
    assert browser.call(session).status_code == 200
    problem = assert_problem(browser.call(session, "/messages?topic=orders"), 403, "forbidden")
    assert "messages.read" in problem["detail"]
    shown = browser.call(session, "/sessions/current").json()
    assert shown == {name: value for name, value in session.items() if name != "token"}
    lines = [(line.actor, line.action, line.outcome) for line in browser.api.audit()]
    assert ("user:ann@shop.example", "completeSignIn", "done") in lines
    # Anybody may start one; a line for each would let them fill the log.
    assert "startSignIn" not in {action for _, action, _ in lines}
    assert browser.provider.refused == []


def test_a_sign_in_is_offered_where_there_is_one(browser, start_api):
    with browser.api.client() as client:
        assert client.get("/sign-ins").json() == {"issuer": browser.provider.url}
    with start_api().client() as client:
        assert client.get("/sign-ins").json() == {"issuer": None}
        assert_problem(client.post("/sign-ins"), 403, "sign_in_refused")
        assert_problem(client.post("/sign-ins:complete", json={"attempt": "x"}), 403, "sign_in_refused")


def test_what_the_browser_has_shows_neither_verifier_nor_nonce_and_the_store_no_token(browser):
    started = browser.start()
    session = browser.complete(started, browser.approve(started)).json()
    (request,) = browser.provider.token_requests
    assert request["code_verifier"] not in started["attempt"]
    assert dict(parse_qsl(urlsplit(started["authorization_url"]).query))["nonce"] not in started["attempt"]
    kept = b"".join(path.read_bytes() for path in browser.api.home.glob("jobs.db*"))
    assert session["token"].encode() not in kept
    # How every token of this provider begins, by itself and in base64 wherever it stands; long enough that
    # ciphertext in base64 does not have it by chance.
    begin = browser.provider.issuer.token().partition(".")[0].encode()
    assert len(begin) > 40
    assert begin not in kept
    for shift in range(3):
        assert base64.b64encode(b" " * shift + begin)[4:40] not in kept


def test_a_public_client_signs_in_by_its_verifier_alone(start_api):
    with served_provider(client_secret=None) as provider:
        public = serve(start_api, provider)
        assert public.call(public.sign_in()).status_code == 200
        assert provider.refused == []


def test_a_replica_completes_and_knows_what_another_one_started(browser, start_api):
    other = serve(
        start_api,
        browser.provider,
        REFEED_JOB_STORE=f"sqlite:///{browser.api.home / 'jobs.db'}",
        REFEED_CONSOLE_URL=f"{browser.api.url}/console",
    )
    started = browser.start()
    answer = browser.approve(started)
    session = other.complete(started, answer)
    assert session.status_code == 201, session.text
    assert browser.call(session.json()).status_code == 200
    assert_problem(browser.complete(started, answer), 403, "sign_in_refused")


def test_an_id_token_is_the_bearer_where_the_access_token_is_not_for_the_api(start_api):
    with served_provider(access_changes={"aud": "elsewhere"}, id_changes={"groups": ["ops"]}) as provider:
        ids = serve(
            start_api,
            provider,
            REFEED_OIDC_AUDIENCE="refeed-console",
            REFEED_OIDC_SESSION_TOKEN="id_token",
            REFEED_OIDC_GRANTS="groups=ops:backfills.read",
        )
        assert ids.sign_in()["scopes"] == ["backfills.read"]


def test_a_provider_that_renews_no_id_token_ends_the_session_with_the_first_one(start_api):
    with served_provider(renews_id_token=False, token_seconds=4) as provider:
        wanted = {"REFEED_OIDC_AUDIENCE": "refeed-console", "REFEED_OIDC_SESSION_TOKEN": "id_token"}
        ids = serve(start_api, provider, **wanted)
        session = ids.sign_in()
        statuses = set()

        def has_asked():
            statuses.add(ids.call(session, "/sessions/current").status_code)
            return len(provider.token_requests) > 1

        wait_until(has_asked, "it is renewed", every_seconds=0.05)
        # Not before its end: asking is no reason to sign somebody out.
        assert statuses == {200}
        wait_until(
            lambda: ids.call(session, "/sessions/current").status_code == 401,
            "it ends with its token",
            every_seconds=0.05,
        )


def test_of_two_callbacks_at_the_same_time_one_counts(browser):
    started = browser.start()
    answer = browser.approve(started)
    with ThreadPoolExecutor(4) as pool:
        statuses = list(pool.map(lambda _: browser.complete(started, answer).status_code, range(4)))
    assert sorted(statuses) == [201, 403, 403, 403]
    assert any("was used already" in str(line.why) for line in browser.api.audit()[-2:])
    assert len(browser.provider.token_requests) == 1


def test_a_state_or_an_attempt_of_another_sign_in_is_refused(browser):
    mine, other = browser.start(), browser.start()
    answer = browser.approve(other)
    assert_problem(browser.complete(mine, answer), 403, "sign_in_refused")
    assert "the state is another attempt's" in str(browser.api.audit()[-1].why)
    without = {name: value for name, value in answer.items() if name != "state"}
    assert_problem(browser.complete(other, without), 403, "sign_in_refused")
    assert browser.provider.token_requests == []
    # What was refused for its state is not used up for who has the right one.
    assert browser.complete(other, answer).status_code == 201


@pytest.mark.parametrize("forge", ["mac", "ends", "id", "short"])
def test_an_attempt_that_this_deployment_did_not_make_is_refused(browser, forge):
    started = browser.start()
    answer = browser.approve(started)
    attempt_id, ends, mac = started["attempt"].split(".")
    forged = {
        "mac": f"{attempt_id}.{ends}.{mac[::-1]}",
        "ends": f"{attempt_id}.{int(ends) + 1}.{mac}",
        "id": f"{attempt_id[::-1]}.{ends}.{mac}",
        "short": attempt_id,
    }[forge]
    assert_problem(browser.complete({"attempt": forged}, answer), 403, "sign_in_refused")
    assert "not one of this deployment" in str(browser.api.audit()[-1].why)
    assert browser.provider.token_requests == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"nonce": "another"}, "nonce differs"),
        ({"nonce": None}, "nonce differs"),
        ({"aud": "another"}, "Audience doesn't match"),
        ({"aud": ["refeed-console", "another"]}, "issued to another client"),
        ({"aud": ["refeed-console", "another"], "azp": "another"}, "issued to another client"),
        ({"azp": "another"}, "issued to another client"),
        ({"key": "another"}, "InvalidSignatureError"),
    ],
)
def test_an_id_token_that_is_not_right_is_refused(browser, changes, why):
    if "key" in changes:
        changes = {"key": generated_key("RS256", 1)}
    browser.provider.id_changes = changes
    assert why in browser.refusal()


def test_an_access_token_that_the_api_does_not_take_is_said_so(browser):
    browser.provider.access_changes = {"aud": "another"}
    started = browser.start()
    problem = assert_problem(browser.complete(started, browser.approve(started)), 403, "sign_in_refused")
    assert "REFEED_OIDC_AUDIENCE" in problem["detail"]


def test_an_answer_of_another_issuer_is_refused_before_its_code_is_sent_anywhere(browser):
    browser.provider.answer_changes = {"iss": "https://evil.example"}
    assert "iss is https://evil.example" in browser.refusal()
    assert browser.provider.token_requests == []


def test_an_issuer_that_names_itself_in_each_answer_has_to(start_api):
    with served_provider(names_issuer=True) as provider:
        strict = serve(start_api, provider)
        assert strict.sign_in()["name"] == "user:ann@shop.example"
        started = strict.start()
        answer = strict.approve(started)
        del answer["iss"]
        assert_problem(strict.complete(started, answer), 403, "sign_in_refused")


def test_a_person_who_declines_is_told_in_the_provider_s_words(browser):
    started = browser.start()
    answer = browser.approve(started, "decline")
    problem = assert_problem(browser.complete(started, answer), 403, "sign_in_refused")
    assert problem["detail"].endswith("access_denied: Ann declined. <b>Really</b>")
    assert_problem(browser.complete(started, answer), 403, "sign_in_refused")


def test_a_code_that_the_provider_does_not_know_is_refused(browser):
    browser.provider.answer_changes = {"code": "made-up"}
    assert "token endpoint: invalid_grant" in browser.refusal()
    browser.provider.answer_changes = {"code": ""}
    started = browser.start()
    assert_problem(browser.complete(started, browser.approve(started)), 403, "sign_in_refused")


def test_a_provider_that_is_away_is_said_so(browser):
    started = browser.start()
    answer = browser.approve(started)
    browser.provider.status = 500
    assert_problem(browser.complete(started, answer), 503, "identity_unavailable")


def test_a_token_without_a_refresh_token_ends_its_session(browser):
    browser.provider.gives_refresh_token = False
    browser.provider.token_seconds = 2
    session = browser.sign_in()
    assert browser.call(session).status_code == 200
    wait_until(
        lambda: browser.call(session).status_code == 401, "the session ends with its token", every_seconds=0.05
    )


def test_a_refresh_token_keeps_the_session_and_is_used_once_by_all_replicas(browser):
    browser.provider.token_seconds = 2
    session = browser.sign_in()
    until = time.monotonic() + 3

    def work(_):
        found = set()
        while time.monotonic() < until:
            found.add(browser.call(session, "/sessions/current").status_code)
        return found

    with ThreadPoolExecutor(3) as pool:
        statuses = set().union(*pool.map(work, range(3)))
    assert statuses == {200}
    assert browser.provider.refused == []
    renewals = [each for each in browser.provider.token_requests if each["grant_type"] == "refresh_token"]
    assert 1 <= len(renewals) <= 4


def test_a_person_who_lost_their_rights_at_the_provider_is_out_with_the_next_renewal(browser):
    browser.provider.token_seconds = 2
    session = browser.sign_in()
    browser.provider.revoked.add("ann")
    wait_until(
        lambda: browser.call(session).status_code == 401, "the session ends with its renewal", every_seconds=0.05
    )
    browser.provider.revoked.clear()
    assert_problem(browser.call(session), 401, "unauthenticated")


def test_a_renewal_for_another_person_ends_the_session(browser):
    browser.provider.token_seconds = 2
    session = browser.sign_in()
    browser.provider.id_changes = {"sub": "bob"}
    wait_until(lambda: browser.call(session).status_code == 401, "the session ends", every_seconds=0.05)


def test_while_the_provider_is_away_a_token_counts_until_it_ends(browser, monkeypatch):
    monkeypatch.setattr("jobs.user_sessions._WAIT_SECONDS", 0.3)
    browser.provider.token_seconds = 2
    session = browser.sign_in()
    browser.provider.status = 500
    wait_until(lambda: "grant_type" not in browser.call(session).text, "it answers", every_seconds=0.05)
    wait_until(lambda: browser.call(session).status_code == 503, "the token has ended", every_seconds=0.05)
    assert_problem(browser.call(session), 503, "identity_unavailable")


def test_a_sign_out_ends_the_session_here_and_leads_to_the_provider_s_page(browser):
    session = browser.sign_in()
    with browser.api.client(session["token"]) as client:
        ended = client.delete("/sessions/current").json()
        assert_problem(client.get("/backfills"), 401, "unauthenticated")
    with httpx.Client(timeout=SECONDS) as client:
        answer = client.get(ended["provider_sign_out_url"])
    assert answer.headers["location"] == f"{browser.api.url}/console/sign-in"
    assert browser.provider.signed_out == ["ann"]


def test_a_key_s_session_is_as_before_beside_people_s(browser):
    with browser.api.client(browser.api.make_key("backfills.read")) as client:
        token = client.post("/sessions").json()["token"]
    with browser.api.client(token) as client:
        assert client.delete("/sessions/current").json()["provider_sign_out_url"] is None
    with browser.api.client(browser.sign_in()["token"]) as client:
        assert_problem(client.post("/sessions"), 403, "forbidden")


@pytest.mark.parametrize("token", ["ru_", "ru_" + "a" * 43, "ru_" + "a" * 44])
def test_what_is_no_session_of_a_person_is_nobody(browser, token):
    with browser.api.client(token) as client:
        assert_problem(client.get("/backfills"), 401, "unauthenticated")
