"""A home that an older program left behind, killed at its worst moments, is opened and goes on."""

import base64
import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.guards.home_system import NOT_JSON, Record, System, wait_for, wait_until_all_is_in
from tests.guards.old_home import NOTIFY_SECRET, REPLAYED_ROWS, unpack
from tests.worlds.http import Answer, answering

HOMES = sorted((Path(__file__).parent / "homes").glob("*.tar.xz"))
PROGRAM = Path(sys.executable).parent / "refeed"


@dataclass
class Listener:
    """Hears webhooks."""

    url: str = ""
    news: list[dict] = field(default_factory=list)


@pytest.fixture
def listener():
    found = Listener()

    def hear(call):
        found.news.append(json.loads(call.body))
        return Answer(204)

    with answering(hear) as address:
        found.url = f"{address}/news"
        yield found


def check_archive(system: System, record: Record) -> None:
    """Every message is there once, bit for bit."""
    wanted = {(each["topic"], each["id"]): each for each in record.messages}
    archived = system.archived()
    assert {key: count for key, count in archived.items() if count > 1} == {}
    assert set(archived) == set(wanted)
    for row in system.rows("backup/messages", "topic", "message_id", "data", "attributes"):
        message = wanted[row["topic"], row["message_id"]]
        assert row["data"] == base64.b64decode(message["data"])
        assert {pair["key"]: pair["value"] for pair in row["attributes"]} == message["attributes"]


def check_staging(system: System, record: Record) -> None:
    """Every message is one row of its table or one dead letter."""
    staged = system.staged()
    assert {key: count for key, count in staged.items() if count > 1} == {}
    assert set(staged) == {(each["topic"], each["id"]) for each in record.messages}
    refused = {row["message_id"] for row in system.rows("backup/dead_letters", "message_id")}
    assert refused == {m["id"] for m in record.messages if base64.b64decode(m["data"]) == NOT_JSON}


def check_reporting(system: System, record: Record) -> None:
    """Every entity is one row, of its newest version."""
    for source in ("orders", "members"):
        rows = system.rows(f"reporting/{source}", "id", "version")
        assert len({row["id"] for row in rows}) == len(rows)
        assert {row["id"]: row["version"] for row in rows} == record.newest(source)


def test_there_is_a_home_to_open():
    assert HOMES != []


@pytest.mark.java
@pytest.mark.kills
@pytest.mark.timeout(600)
@pytest.mark.parametrize("archive", HOMES, ids=lambda path: path.name.partition(".")[0])
def test_a_home_of_an_older_program_goes_on_and_nothing_is_lost_or_there_twice(archive, tmp_path, listener):
    environment = {"REFEED_NOTIFY_URL": listener.url, "REFEED_NOTIFY_SECRET": NOTIFY_SECRET}
    with System(tmp_path / "home", PROGRAM, **environment) as system:
        record = unpack(archive, tmp_path, host=system.host, notify_url=listener.url)
        # Else this shows nothing of recovery.
        assert {"pending", "recovered", "done"} <= set(system.journal())
        archived, staged = system.archived(), system.staged()
        assert 0 < archived.total() < len(record.messages)
        assert 0 < staged.total() < len(record.messages)

        system.start_pubsub()
        assert system.backlog() > 0
        # What the old streams committed and did not acknowledge comes again: only their journals know it.
        system.void_acks()
        system.start_streams()
        system.start_api(record.key)

        # What the old program said of ended jobs, this one says too.
        for path, said in record.ended.items():
            shown = system.ask("GET", path)
            assert shown["state"] == said["state"]
            assert {**shown["progress"], **said["progress"]} == shown["progress"]
            assert shown["finished_at"] == said["finished_at"]
        # The merge that was killed goes on by itself, the backfill when it is told to.
        merge = system.wait_job(f"/jobs/{record.half_merge}", lambda shown: shown["finished_at"] is not None)
        assert merge["state"] == "SUCCEEDED", merge
        path = f"/jobs/{record.paused_backfill}"
        paused = system.ask("GET", path)
        assert paused["state"] == "PAUSED"
        assert 0 < paused["progress"]["published"] < REPLAYED_ROWS
        system.ask("POST", f"{path}:resume")
        done = system.wait_job(path, lambda shown: shown["finished_at"] is not None)
        assert (done["state"], done["progress"]["published"]) == ("SUCCEEDED", REPLAYED_ROWS), done

        system.publish(record, "here", orders=10, members=10, events=10)
        wait_until_all_is_in(system, record)
        again = system.redelivered()
        assert len(again) == 2, again
        assert all(again.values()), again
        assert {name: system.drain(name) for name in ("backup", "pipeline")} == {"backup": 0, "pipeline": 0}
        check_archive(system, record)
        check_staging(system, record)

        heard = Counter(
            int(each.attributes["refeed_row"])
            for each in system.listen()
            if each.attributes.get("refeed_backfill_id") == record.paused_backfill
        )
        assert set(heard) == set(range(REPLAYED_ROWS))
        assert heard.total() - REPLAYED_ROWS <= done["progress"]["repeated_at_most"]
        replayed = [row for row in system.rows("staging/orders") if row["_backfill_id"] == record.paused_backfill]
        assert Counter(row["_backfill_row"] for row in replayed) == heard
        assert {row["_message_id"] for row in replayed} == record.ids("orders", phase="first")

        merge_id = system.ask("POST", "/merges", {})["id"]
        merge = system.wait_job(f"/jobs/{merge_id}", lambda shown: shown["finished_at"] is not None)
        assert merge["state"] == "SUCCEEDED", merge
        check_reporting(system, record)
        told = {("backfill.succeeded", record.paused_backfill), ("merge.succeeded", record.half_merge)}
        wait_for(
            lambda: told <= {(each["type"], each["data"]["id"]) for each in listener.news},
            lambda: f"webhooks are heard: {listener.news}; {system.log('api')}",
        )
