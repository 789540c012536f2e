"""Backfills as whole processes: an operator over HTTP, real drivers, and kill -9; all tests share one home."""

import json
import os
import signal
import time
from collections import Counter
from contextlib import closing
from typing import Any

import pytest

from model.message import replay_filter, replay_token
from rollout.child import Children
from tests.waiting import wait_until
from tests.worlds.backfills import QUERY, RATE, ROWS, Office, check_tagged, rows_of

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def office(tmp_path_factory):
    environment = {"REFEED_APPROVAL_ROWS": str(ROWS), "REFEED_RATE_LIMIT_PER_MINUTE": "100000"}
    with Children() as children:
        office = Office(tmp_path_factory.mktemp("home"), children, **environment)
        office.use_keys()
        with closing(office):
            yield office


def test_every_selected_message_arrives_tagged_and_none_is_archived_again(office):
    token = replay_token(office.settings.replay_secret(), "whole")
    listener, backup = office.listen("whole"), office.listen("whole", replay_filter(token))

    backfill_id = office.create("whole")
    ended = office.wait_for_state(backfill_id, "SUCCEEDED")

    assert ended["progress"]["selected"] == ended["progress"]["published"] == ROWS
    assert (ended["progress"]["failed"], ended["progress"]["repeated_at_most"], ended["error"]) == (0, 0, None)
    received = office.receive(listener)
    assert rows_of(received) == Counter(range(ROWS))
    for message in received:
        check_tagged(message, token, backfill_id)
    assert len({message.attributes["n"] for message in received}) == ROWS
    assert office.receive(backup) == []


def test_a_cancel_takes_effect_within_two_seconds_and_counts_to_the_message(office):
    listener = office.listen("cancelled")
    backfill_id = office.create("cancelled", rate_limit_messages_per_second=RATE)
    office.wait_until_it_publishes(backfill_id)

    asked = time.monotonic()
    answer = office.client.post(f"/jobs/{backfill_id}:cancel")
    assert answer.json()["state"] in {"CANCELLING", "CANCELLED"}
    office.wait_for_state(backfill_id, "CANCELLED")
    took = time.monotonic() - asked

    received = office.receive(listener)
    shown = office.show(backfill_id)
    assert took < 4, f"{took:.1f} s on a busy machine"
    assert 0 < len(received) == shown["progress"]["published"] < ROWS
    assert shown["error"] is None

    assert office.client.post(f"/jobs/{backfill_id}:retry").status_code == 200
    office.lift_limit(backfill_id)
    ended = office.wait_for_state(backfill_id, "SUCCEEDED")
    assert rows_of(received + office.receive(listener)) == Counter(range(ROWS))
    assert ended["progress"]["repeated_at_most"] == 0


def test_a_backfill_goes_on_while_the_api_is_dead_and_is_found_again(office):
    listener = office.listen("orphan")
    backfill_id = office.create("orphan", rate_limit_messages_per_second=RATE)
    office.wait_until_it_publishes(backfill_id)

    os.killpg(office.api.pid, signal.SIGKILL)
    office.api = office.start_api()
    ended = office.wait_for_state(backfill_id, "SUCCEEDED")

    assert ended["progress"]["published"] == ROWS
    assert rows_of(office.receive(listener)) == Counter(range(ROWS))


def test_a_driver_that_died_while_the_api_was_dead_is_replaced_when_that_is_back(office):
    listener = office.listen("buried")
    backfill_id = office.create("buried", rate_limit_messages_per_second=RATE)
    office.wait_until_it_publishes(backfill_id)

    os.killpg(office.api.pid, signal.SIGKILL)
    office.kill_driver(backfill_id)
    office.api = office.start_api()
    office.lift_limit(backfill_id)

    ended = office.wait_for_state(backfill_id, "SUCCEEDED")
    found = rows_of(office.receive(listener))
    assert set(found) == set(range(ROWS))
    assert found.total() - ROWS <= ended["progress"]["repeated_at_most"] <= 2 * 4 * 1000
    assert ended["progress"]["published"] == ended["progress"]["selected"] == ROWS
    assert office.restarts_of(backfill_id) == 1


def test_a_pause_takes_effect_within_two_seconds_and_a_resume_loses_and_repeats_nothing(office):
    listener = office.listen("paused")
    backfill_id = office.create("paused", rate_limit_messages_per_second=RATE)
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

    lifted = office.client.patch(f"/jobs/{backfill_id}", json={"rate_limit_messages_per_second": None})
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
    slices = office.client.get(f"/jobs/{backfill_id}/figures").json()["slices"]
    assert {part["state"] for part in slices} == {"done"}
    assert sum(part["published"] for part in slices) == ROWS
    verified = office.wait(backfill_id, lambda b: b["verification"]["state"] != "pending", "it is verified")
    verification = verified["verification"]
    # No pipeline writes this topic, so nobody knows what landed.
    assert (verification["state"], verification["selected"], verification["published"]) == ("unknown", ROWS, ROWS)


def test_what_overlaps_is_refused_while_it_runs_and_runs_beside_it_when_asked(office):
    first = office.create("shared", rate_limit_messages_per_second=RATE)

    refused = office.post("shared")
    assert (refused.status_code, refused.json()["code"]) == (409, "backfill_overlaps")
    assert first in refused.json()["detail"]
    second = office.create("shared", allow_overlap=True)
    office.lift_limit(first)

    for backfill_id in (first, second):
        office.wait_for_state(backfill_id, "SUCCEEDED")
    assert office.create("shared", start_paused=True)


def test_a_canary_pauses_itself_and_goes_on_when_somebody_has_looked(office):
    listener = office.listen("canary")
    backfill_id = office.create("canary", canary_messages=700)

    with office.terminal("watch", backfill_id, "--json") as watcher:
        paused = office.wait_for_state(backfill_id, "PAUSED")
        canary = office.receive(listener)
        assert len(canary) == office.published(backfill_id) == 700
        assert paused["canary_messages"] == 700
        assert history(office, backfill_id)[-1]["actor"] == "driver"
        _, said = watcher.communicate(timeout=60)
    # It would wait for ever: only a person lets the backfill go on.
    assert watcher.returncode == 1, said
    assert f"go on with 'refeed resume {backfill_id}'" in said

    with office.terminal("resume", backfill_id, "--watch", "--json") as watcher:
        shown, said = watcher.communicate(timeout=60)
    assert rows_of(canary + office.receive(listener)) == Counter(range(ROWS))
    assert watcher.returncode == 0, said
    ended = json.loads(shown)
    assert (ended["progress"]["published"], ended["canary_messages"]) == (ROWS, None)


def test_more_rows_than_one_person_may_decide_about_wait_for_another_one(office):
    twice = f"SELECT data, attributes, message_id, topic, publish_time FROM ({full()}) UNION ALL {full()}"
    listener = office.listen("approved")
    backfill_id = office.create("approved", query=twice)

    waiting = office.wait_for_state(backfill_id, "PAUSED")
    assert waiting["approval"] == {"required": True, "above_rows": ROWS, "rows": 2 * ROWS, "by": None, "at": None}
    assert office.receive(listener) == []
    for verb, status, code in (("resume", 409, "approval_required"), ("approve", 403, "forbidden")):
        answer = office.client.post(f"/jobs/{backfill_id}:{verb}")
        assert (answer.status_code, answer.json()["code"]) == (status, code)

    approved = office.bob.post(f"/jobs/{backfill_id}:approve")
    assert (approved.status_code, approved.json()["approval"]["by"]) == (200, "key:bob")
    ended = office.wait_for_state(backfill_id, "SUCCEEDED")
    assert ended["progress"]["published"] == 2 * ROWS
    assert rows_of(office.receive(listener)) == Counter(range(2 * ROWS))


def full() -> str:
    return QUERY.replace("message_id FROM", "message_id, topic, publish_time FROM")


def test_a_watch_and_a_followed_log_tell_it_all_and_end_with_the_backfill(office):
    backfill_id = office.create("watched", rate_limit_messages_per_second=3 * RATE)
    told = []
    with office.terminal("logs", backfill_id, "--follow") as follower:
        with office.client.stream("GET", f"/jobs/{backfill_id}:watch", timeout=120) as response:
            fields = {}
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


def test_the_terminal_is_refused_without_a_key(office):
    with office.terminal("get", "backfills", key=None) as stranger:
        shown, said = stranger.communicate(timeout=60)

    assert (stranger.returncode, shown) == (4, "")
    assert "no valid key" in said


def history(office: Office, backfill_id: str) -> list[dict[str, Any]]:
    wanted = {"object": backfill_id, "page_size": 1000}
    events: list[dict[str, Any]] = office.client.get("/events", params=wanted).json()["events"]
    return events[::-1]
