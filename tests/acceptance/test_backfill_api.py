"""What an operator does with a running backfill, over HTTP, with real drivers; all tests share one home."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from backfill.run.progress import CheckpointFolder
from jobs.keys import Keyring
from jobs.store import JobStore
from model.principal import SCOPES
from rollout.child import Children
from tests.acceptance.test_backfill import QUERY, RATE, ROWS, House, rows_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(400)]


class Office(House):
    """A house whose API knows ann, who makes backfills, and bob, who approves them."""

    def use_keys(self) -> None:
        store = JobStore(self.settings.job_store)
        keys = {name: Keyring(store).create(name, list(SCOPES))[1] for name in ("ann", "bob")}
        store.close()
        self.bob = httpx.Client(base_url=self.client.base_url, timeout=20, headers=bearer(keys["bob"]))
        self.client.headers.update(bearer(keys["ann"]))
        self.key = keys["ann"]

    def post(self, topic: str, **options: Any) -> httpx.Response:
        self.pubsub.create_topic(topic)
        return self.client.post("/backfills", json=request(topic, **options))

    def make(self, topic: str, **options: Any) -> str:
        answer = self.post(topic, **options)
        assert answer.status_code == 202, answer.text
        made: str = answer.json()["id"]
        return made

    def do(self, backfill_id: str, verb: str, **content: Any) -> dict[str, Any]:
        answer = self.client.post(f"/backfills/{backfill_id}:{verb}", **content)
        assert answer.status_code == 200, answer.text
        shown: dict[str, Any] = answer.json()
        return shown

    def published(self, backfill_id: str) -> int:
        """What is confirmed so far, as the tasks wrote it down."""
        folder = CheckpointFolder(self.home / "backfills" / backfill_id / "progress")
        return sum(c.published for c in folder.read_all())

    @contextmanager
    def terminal(self, *arguments: str, key: str | None = "ann") -> Iterator[subprocess.Popen[str]]:
        """Run ``refeed backfill`` against the API, with ann's key or without any."""
        environment = {**self.environment, "REFEED_API_URL": str(self.client.base_url)}
        if key is not None:
            environment["REFEED_API_KEY"] = self.key
        command = [sys.executable, "-m", "cli.main", "backfill", *arguments]
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def close(self) -> None:
        self.bob.close()
        super().close()


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def request(topic: str, **options: Any) -> dict[str, Any]:
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    bounds = {"from": today - timedelta(days=1), "to": today + timedelta(days=2)}
    parameters = {name: {"type": "TIMESTAMP", "value": at.isoformat()} for name, at in bounds.items()}
    return {"query": QUERY, "topic": topic, "parameters": parameters, **options}


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    environment = {"REFEED_APPROVAL_ROWS": str(ROWS), "REFEED_RATE_LIMIT_PER_MINUTE": "100000"}
    with Children() as children:
        office = Office(tmp_path_factory.mktemp("home"), children, **environment)
        office.use_keys()
        with closing(office):
            yield office


def test_a_pause_takes_effect_within_two_seconds_and_a_resume_loses_and_repeats_nothing(office: Office) -> None:
    listener = office.listen("paused")
    backfill_id = office.make("paused", rate_limit_messages_per_second=RATE)
    office.wait_until_it_publishes(backfill_id)

    paused = office.do(backfill_id, "pause")
    asked, answered = time.monotonic(), office.published(backfill_id)
    assert paused["state"] == "PAUSED"
    wait_until(lambda: time.monotonic() - asked > 2, "two seconds are over")
    stood = office.published(backfill_id)
    wait_until(lambda: time.monotonic() - asked > 4, "two seconds more are over")
    assert office.published(backfill_id) == stood, "nothing moves any more after two seconds"
    assert stood - answered <= paused["in_flight_at_most"]
    received = office.receive(listener)
    assert 0 < len(received) == stood < ROWS
    assert office.show(backfill_id)["state"] == "PAUSED"

    lifted = office.client.patch(f"/backfills/{backfill_id}", json={"rate_limit_messages_per_second": None})
    assert lifted.json()["rate_limit_messages_per_second"] is None
    assert office.do(backfill_id, "resume")["state"] == "RUNNING"
    ended = office.wait_for_state(backfill_id, "SUCCEEDED")

    assert rows_of(received + office.receive(listener)) == Counter(range(ROWS))
    assert (ended["progress"]["repeated_at_most"], ended["restarts"]) == (0, 0)
    # A verification comes after it.
    assert [(e["actor"], e["what"]) for e in history(office, backfill_id)][:6] == [
        ("key:ann", "created"),
        ("refeed", "PENDING -> RUNNING"),
        ("key:ann", "RUNNING -> PAUSED"),
        ("key:ann", "changed rate_limit_messages_per_second"),
        ("key:ann", "PAUSED -> RUNNING"),
        ("refeed", "RUNNING -> SUCCEEDED"),
    ]
    slices = office.client.get(f"/backfills/{backfill_id}/slices").json()["slices"]
    assert {part["state"] for part in slices} == {"done"}
    assert sum(part["published"] for part in slices) == ROWS
    verified = office.wait(backfill_id, lambda b: b["verification"]["state"] != "pending", "it is verified")
    verification = verified["verification"]
    # No pipeline writes this topic, so nobody knows what landed.
    assert (verification["state"], verification["selected"], verification["published"]) == ("unknown", ROWS, ROWS)


def test_a_cancelled_backfill_is_retried_from_where_it_stood(office: Office) -> None:
    listener = office.listen("cancelled")
    backfill_id = office.make("cancelled", rate_limit_messages_per_second=RATE)
    office.wait_until_it_publishes(backfill_id)

    cancelled = office.do(backfill_id, "cancel")
    assert cancelled["in_flight_at_most"] >= 0
    office.wait_for_state(backfill_id, "CANCELLED")
    before = office.receive(listener)
    # A driver's end is told before its tasks' last answers are counted.
    office.wait(backfill_id, lambda b: b["progress"]["published"] == len(before), "every message is counted")
    assert 0 < len(before) < ROWS
    assert office.do(backfill_id, "retry")["state"] == "PENDING"
    office.lift_limit(backfill_id)
    office.wait_for_state(backfill_id, "SUCCEEDED")

    assert rows_of(before + office.receive(listener)) == Counter(range(ROWS))


def test_what_overlaps_is_refused_while_it_runs_and_runs_beside_it_when_asked(office: Office) -> None:
    first = office.make("shared", rate_limit_messages_per_second=RATE)

    refused = office.post("shared")
    assert (refused.status_code, refused.json()["code"]) == (409, "backfill_overlaps")
    assert first in refused.json()["detail"]
    second = office.make("shared", allow_overlap=True)
    office.lift_limit(first)

    for backfill_id in (first, second):
        office.wait_for_state(backfill_id, "SUCCEEDED")
    assert office.make("shared", start_paused=True)


def test_a_canary_pauses_itself_and_goes_on_when_somebody_has_looked(office: Office) -> None:
    listener = office.listen("canary")
    backfill_id = office.make("canary", canary_messages=700)

    with office.terminal("watch", backfill_id, "--json") as watcher:
        paused = office.wait_for_state(backfill_id, "PAUSED")
        canary = office.receive(listener)
        assert len(canary) == office.published(backfill_id) == 700
        assert paused["canary_messages"] == 700
        assert history(office, backfill_id)[-1]["actor"] == "driver"

        assert office.do(backfill_id, "resume")["canary_messages"] is None
        office.wait_for_state(backfill_id, "SUCCEEDED")
        shown, said = watcher.communicate(timeout=60)

    assert rows_of(canary + office.receive(listener)) == Counter(range(ROWS))
    assert watcher.returncode == 0, said
    assert json.loads(shown)["progress"]["published"] == ROWS
    assert f"go on with 'refeed backfill resume {backfill_id}'" in said


def test_more_rows_than_one_person_may_decide_about_wait_for_another_one(office: Office) -> None:
    twice = f"SELECT data, attributes, message_id, topic, publish_time FROM ({full()}) UNION ALL {full()}"
    listener = office.listen("approved")
    backfill_id = office.make("approved", query=twice)

    waiting = office.wait_for_state(backfill_id, "PAUSED")
    assert waiting["approval"] == {
        "required": True,
        "above_rows": ROWS,
        "rows": 2 * ROWS,
        "by": None,
        "at": None,
    }
    assert office.receive(listener) == []
    for verb, status, code in (("resume", 409, "approval_required"), ("approve", 403, "forbidden")):
        answer = office.client.post(f"/backfills/{backfill_id}:{verb}")
        assert (answer.status_code, answer.json()["code"]) == (status, code)

    approved = office.bob.post(f"/backfills/{backfill_id}:approve")
    assert (approved.status_code, approved.json()["approval"]["by"]) == (200, "key:bob")
    ended = office.wait_for_state(backfill_id, "SUCCEEDED")
    assert ended["progress"]["published"] == 2 * ROWS
    assert rows_of(office.receive(listener)) == Counter(range(2 * ROWS))


def full() -> str:
    return QUERY.replace("message_id FROM", "message_id, topic, publish_time FROM")


def test_a_watch_and_a_followed_log_tell_it_all_and_end_with_the_backfill(office: Office) -> None:
    backfill_id = office.make("watched", rate_limit_messages_per_second=3 * RATE)
    told: list[tuple[str, dict[str, Any]]] = []
    with office.terminal("logs", backfill_id, "--follow") as follower:
        with office.client.stream("GET", f"/backfills/{backfill_id}:watch", timeout=120) as response:
            fields: dict[str, str] = {}
            for line in response.iter_lines():
                name, _, value = line.partition(": ")
                if line and name:
                    fields[name] = value
                elif not line and fields:
                    told.append((fields["event"], json.loads(fields["data"])))
                    fields = {}
        log, _ = follower.communicate(timeout=60)

    figures = [data["progress"]["published"] for event, data in told if event == "progress"]
    assert figures == sorted(figures)
    assert len(set(figures)) > 2
    assert (told[-1][0], told[-1][1]["state"]) == ("end", "SUCCEEDED")
    assert [data["what"] for event, data in told if event == "history"][:3] == [
        "created",
        "PENDING -> RUNNING",
        "RUNNING -> SUCCEEDED",
    ]
    assert follower.returncode == 0
    assert log == office.log_of(backfill_id)
    assert f"rows={ROWS}" in log
    assert "state=SUCCEEDED" in log


def test_the_terminal_is_refused_without_a_key(office: Office) -> None:
    with office.terminal("list", key=None) as stranger:
        shown, said = stranger.communicate(timeout=60)

    assert (stranger.returncode, shown) == (4, "")
    assert "Send a valid key" in said


def history(office: Office, backfill_id: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = office.client.get(f"/backfills/{backfill_id}/events").json()["events"]
    return events
