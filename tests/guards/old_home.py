"""A home that a killed system left behind, made with one checkout and opened with another.

``python -m tests.guards.old_home FILE`` makes such a home with the program beside this Python, or with
``--refeed PATH`` of any other checkout, and packs it.
"""

import argparse
import base64
import hashlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from google.cloud.pubsub_v1 import SubscriberClient

from tests.guards.home_system import AUDIENCE, PROJECT, Record, System, free_port, wait_for, wait_until_all_is_in

TOPICS: Final = ("orders", "members", "events")
REPLAYED_ROWS: Final = 60
NOTIFY_SECRET: Final = "whsec_" + base64.b64encode(b"a home of old is opened again").decode()
RECORD: Final = "record.json"

_PROTO: Final = """
syntax = "proto3";
package shop;
message Order { int64 id = 1; int64 version = 2; string customer = 3; }
message Member { int64 id = 1; int64 version = 2; repeated string tags = 3; }
"""
_SOURCES: Final = """
sources:
  orders: {topic: orders, message: shop.Order, key: id, dedup_order: [version]}
  members: {topic: members, message: shop.Member, key: id, dedup_order: [version]}
  events: {topic: events, schema: inferred}
"""
_QUERY: Final = (
    "SELECT data, attributes, message_id, topic, publish_time FROM backup.messages "
    "WHERE _PARTITIONTIME >= @from AND _PARTITIONTIME < @to AND topic = 'orders' "
    "AND EXISTS (SELECT 1 FROM UNNEST(attributes) AS a WHERE a.key = 'phase' AND a.value = @phase)"
)
# The next process creates these again, or they belong to processes that have ended.
_LEFT_OUT: Final = ("logs", "run", "failpoints", "spark", "artifacts", "spark-warehouse", "duckdb_temp")
# A message waits in the packed home for longer than Pub/Sub would keep it, and its subscription too.
_KEPT: Final = re.compile(rb'"(604800|2678400)s"')
_KEPT_FOR_YEARS: Final = b'"3153600000s"'


def backfill_request(phase: str, **more: Any) -> dict[str, Any]:
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    bounds = {"from": today - timedelta(days=1), "to": today + timedelta(days=2)}
    parameters: dict[str, Any] = {
        name: {"type": "TIMESTAMP", "value": at.isoformat()} for name, at in bounds.items()
    }
    parameters["phase"] = {"type": "STRING", "value": phase}
    return {"query": _QUERY, "topic": "orders", "parameters": parameters, "allow_overlap": True, **more}


def make(program: Path, folder: Path) -> Record:
    """Make the home ``folder/home``: run everything, break everything, and leave it as the kills left it."""
    home = folder / "home"
    notify_url = f"http://127.0.0.1:{free_port()}/news"
    with System(home, program, REFEED_NOTIFY_URL=notify_url, REFEED_NOTIFY_SECRET=NOTIFY_SECRET) as system:
        record = Record(str(home), system.host, notify_url)
        system.start_pubsub()
        _set_up(system, folder)
        scopes = ["plan", "run", "read", "messages.read"]
        made = system.run("key", "create", "old", *[f"--scope={each}" for each in scopes], "--days=0", "--json")
        record.key = json.loads(made)["key"]
        system.start_streams()
        system.start_api(record.key)
        # Both streams are there before anything is published: the pipeline makes its own subscriptions.
        wait_for(
            lambda: _has_subscriptions(2 * len(TOPICS)), lambda: f"streams have begun: {system.log('pipeline')}"
        )

        system.publish(record, "first", orders=REPLAYED_ROWS, members=20, events=20)
        wait_until_all_is_in(system, record)
        # History: a backfill and a merge that ended, and a plan.
        system.ask("POST", "/backfills?validate_only=true", backfill_request("first"))
        small = backfill_request("first", description="an earlier one", max_rows=1000)
        ended = system.ask("POST", "/backfills", small)["id"]
        merged = system.ask("POST", "/merges", {})["id"]
        for path in (f"/jobs/{ended}", f"/jobs/{merged}"):
            record.ended[path] = system.wait_job(path, lambda shown: shown["state"] == "SUCCEEDED")

        system.publish(record, "second", orders=30, members=20, events=20)
        wait_until_all_is_in(system, record)
        _pause_a_backfill(system, record)
        _break_a_merge(system, record)
        _break_the_streams(system, record)
        system.kill_all()
    return record


def _set_up(system: System, folder: Path) -> None:
    system.run("attach", *TOPICS)
    with SubscriberClient() as subscriber:
        subscriber.create_subscription(
            name=subscriber.subscription_path(PROJECT, AUDIENCE), topic=f"projects/{PROJECT}/topics/orders"
        )
    (folder / "shop.proto").write_text(_PROTO)
    (folder / "sources.yaml").write_text(_SOURCES)
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={folder}", "--include_imports"]
    subprocess.run([*command, f"--descriptor_set_out={folder / 'shop.desc'}", "shop.proto"], check=True)
    system.run("source", "publish", str(folder / "shop.desc"), str(folder / "sources.yaml"))


def _has_subscriptions(count: int) -> bool:
    with SubscriberClient() as subscriber:
        found = subscriber.list_subscriptions(project=f"projects/{PROJECT}")
        return sum(not each.name.endswith(f"/{AUDIENCE}") for each in found) >= count


def _pause_a_backfill(system: System, record: Record) -> None:
    request = backfill_request("first", description="half of it", rate_limit_messages_per_second=10)
    record.paused_backfill = system.ask("POST", "/backfills", request)["id"]
    path = f"/jobs/{record.paused_backfill}"
    system.wait_job(path, lambda shown: shown["progress"]["published"] >= REPLAYED_ROWS // 3)
    system.ask("POST", f"{path}:pause")
    shown = system.wait_job(path, lambda shown: shown["state"] == "PAUSED")
    assert 0 < shown["progress"]["published"] < REPLAYED_ROWS, shown


def _break_a_merge(system: System, record: Record) -> None:
    """Kill a merge with files that no commit has, then with a commit that its job does not know, and the API."""
    points = ("merge.rewritten", "merge.committed")
    for point in points:
        system.arm("api", point)
    record.half_merge = system.ask("POST", "/merges", {})["id"]
    wait_for(
        lambda: all(system.is_hit("api", point) for point in points), lambda: f"merges die: {system.log('api')}"
    )
    # Before another driver has started Spark.
    system.kill("api")


def _break_the_streams(system: System, record: Record) -> None:
    """Leave attempts that are committed and recovered, committed and not, and messages that nobody pulled."""
    # Of the pipeline's attempt the first table is in then, and the others are not.
    places = dict.fromkeys(("backup", "pipeline"), "commit.after")
    for phase in ("third", "fourth"):
        for name, point in places.items():
            system.arm(name, point)
        if phase == "fourth":
            system.start_streams()
        system.publish(record, phase, orders=20, members=20, events=10)
        system.kill_at(places)
        system.kill("pubsub")
        system.start_pubsub()
        # What was committed can't be acknowledged any more, and comes again.
        system.void_acks()
        if phase == "third":
            for name in places:
                system.arm(name, "batch.collected")
            system.start_streams()
            system.kill_at(dict.fromkeys(places, "batch.collected"))
    system.publish(record, "fifth", orders=10, members=10, events=5)


def pack(folder: Path, record: Record, archive: Path) -> None:
    """Write the home and its record as one file, without what can be made again."""
    home = folder / "home"
    for name in _LEFT_OUT:
        shutil.rmtree(home / name, ignore_errors=True)
    _keep_messages(home / "pubsub")
    (folder / RECORD).write_text(json.dumps(vars(record), ensure_ascii=False))
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for path in (home, folder / RECORD):
            packed.add(path, path.name, filter=_without_owner)


def _keep_messages(folder: Path) -> None:
    """Let the Pub/Sub server's subscriptions keep messages for years; what it writes has checksums."""
    changes = folder / "resources.changes"
    bodies = [line.partition(b" ")[2] for line in changes.read_bytes().splitlines()]
    kept = [_KEPT.sub(_KEPT_FOR_YEARS, body) for body in bodies]
    changes.write_bytes(b"".join(b"%08x %s\n" % (zlib.crc32(body), body) for body in kept))
    catalogue = folder / "resources.json"
    content = json.loads(_KEPT.sub(_KEPT_FOR_YEARS, catalogue.read_bytes()))
    del content["checksum"]
    checksum = f"{zlib.crc32(json.dumps(content, indent=1).encode()):08x}"
    catalogue.write_text(json.dumps({"checksum": checksum, **content}, indent=1))


def unpack(archive: Path, folder: Path, *, host: str, notify_url: str) -> Record:
    """Unpack a home into ``folder/home`` as if its machine had stopped a moment ago, and return its record.

    Paths and addresses that the old processes wrote down are replaced by those of here.
    """
    with tarfile.open(archive) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 has it
        packed.extractall(folder)
    record = Record(**json.loads((folder / RECORD).read_text()))
    replaced = {
        record.home: str(folder / "home"),
        record.host: host,
        _digest(record.notify_url): _digest(notify_url),
    }
    # An old log of the job store's database is read into it, and goes.
    for path in (folder / "home").glob("*.db"):
        _replace_in_database(path, replaced)
    for path in sorted((folder / "home").rglob("*")):
        if path.is_file() and path.suffix != ".db":
            _replace_in_text(path, replaced)
            assert record.home.encode() not in path.read_bytes(), f"{path} names the folder that it was made in"
        # The journal and the jobs' folders count from files' times.
        os.utime(path)
    return record


def _replace_in_text(path: Path, replaced: Mapping[str, str]) -> None:
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        return
    for old, new in replaced.items():
        if old in text:
            text = text.replace(old, new)
            path.write_text(text)


def _replace_in_database(path: Path, replaced: Mapping[str, str]) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for column in [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]:
                for old, new in replaced.items():
                    database.execute(
                        f'UPDATE "{table}" SET "{column}" = replace("{column}", ?, ?) '
                        f'WHERE typeof("{column}") = \'text\' AND instr("{column}", ?)',
                        (old, new, old),
                    )


def _digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path, help="the file to write, homes/home-COMMIT.tar.xz")
    parser.add_argument("--refeed", type=Path, default=Path(sys.executable).parent / "refeed", metavar="PATH")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="refeed-old-home-") as folder:
        record = make(chosen.refeed, Path(folder))
        states = Counter(path.name.split(".")[1] for path in (Path(record.home) / "streams").rglob("*.arrow"))
        pack(Path(folder), record, chosen.archive)
    size = chosen.archive.stat().st_size
    sys.stdout.write(f"{chosen.archive}: {size:,} bytes, journals {dict(states)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
