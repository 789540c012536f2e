"""The backup into BigQuery (the stand-in) beside its limit: a plain Python loop that pulls and appends Arrow.

Both drain a backlog of 1 KB messages with 4 attributes from the same local Pub/Sub server into the same stand-in,
which shares the machine with them. Timed is from the first commit to the last, by the stand-in's record of calls.
"""

import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.cloud.bigquery_storage_v1 import types

from bench.yard import IN_FLIGHT, LIMIT_COMMIT_BYTES, attach, publish, start_server
from connectors.bigquery.writes.batches import ARCHIVE_SCHEMA, archive_batch
from connectors.pubsub.acks import acknowledge
from connectors.pubsub.client import PubSub
from connectors.pubsub.pull import decode_pull_response
from connectors.wire import bytes_field
from model.settings import Settings, read_settings
from rollout.child import Child, Children
from tests.standin.fixture import StandIn, run_standin
from warehouse.open import open_warehouse

MESSAGES = 600_000
ROUNDS = 3
_RUN_BACKUP = (
    "import os, sys; from app.streams import run_backup; from model.settings import read_settings; "
    "sys.exit(run_backup(read_settings(os.environ)))"
)


def run(messages: int = MESSAGES, rounds: int = ROUNDS) -> dict[str, Any]:
    """Drain a backlog with both, turn about, and return the medians."""
    refeed: list[float] = []
    limit: list[float] = []
    for number in range(rounds):
        limit.append(_measure(messages, drain=_drain_with_a_loop))
        refeed.append(_measure(messages, drain=_drain_with_the_stream))
        print(
            f"  round {number + 1}: refeed {refeed[-1]:,.0f} msg/s, limit {limit[-1]:,.0f} msg/s, "
            f"ratio {refeed[-1] / limit[-1]:.2f}",
            flush=True,
        )
    return {
        "name": "backup into BigQuery",
        "unit": "messages/s",
        "refeed": statistics.median(refeed),
        "limit": statistics.median(limit),
        "ratio": statistics.median(a / b for a, b in zip(refeed, limit, strict=True)),
        "goal_ratio": 0.5,
    }


@dataclass(frozen=True)
class Yard:
    """Servers that run, and a backlog that waits."""

    messages: int
    settings: Settings
    environment: dict[str, str]
    standin: StandIn
    children: Children
    folder: Path


def _measure(messages: int, *, drain: Callable[[Yard], None]) -> float:
    with tempfile.TemporaryDirectory() as name, Children() as children, run_standin(Path(name) / "bq") as standin:
        _, environment, _ = start_server(Path(name), children)
        environment |= {**standin.environment, "REFEED_WAREHOUSE": "bigquery"}
        settings = read_settings(environment)
        archive = open_warehouse(settings).open_archive()
        archive.create()
        archive.close()
        attach(settings)
        publish(settings, messages)
        standin.clear_log()
        drain(Yard(messages, settings, environment, standin, children, Path(name)))
        return _rate(standin, messages)


def _drain_with_the_stream(yard: Yard) -> None:
    """Run the stream as it is started in production."""
    backup = yard.children.start(
        Child(
            "backup",
            [sys.executable, "-c", _RUN_BACKUP],
            environment=yard.environment,
            log=yard.folder / "log",
        )
    )
    backup.wait_until(
        lambda: sum(_commits(yard.standin).values()) >= yard.messages, seconds=300, what="drained the backlog"
    )


def _drain_with_a_loop(yard: Yard) -> None:
    """Run nothing but the loop: Pull in flight, Arrow, append, commit, acknowledge."""
    messages, settings, standin = yard.messages, yard.settings, yard.standin
    client = standin.write_client()
    table = f"projects/{settings.project}/datasets/backup/tables/messages"
    with PubSub(settings.project, settings.pubsub_emulator_host) as pubsub:
        path = pubsub.subscription_path("refeed-backup.orders")
        request = bytes_field(1, path.encode()) + b"\x18\xe8\x07"
        pull = pubsub.channel.unary_unary(
            "/google.pubsub.v1.Subscriber/Pull", request_serializer=None, response_deserializer=None
        )
        flying = deque(pull.future(request) for _ in range(IN_FLIGHT))
        done = 0
        while done < messages:
            ack_ids: list[pa.Array] = []
            stream = client.create_write_stream(
                parent=table, write_stream=types.WriteStream(type_=types.WriteStream.Type.PENDING)
            ).name

            def requests(stream: str = stream, ack_ids: list[pa.Array] = ack_ids, done: int = done) -> Any:
                size = offset = 0
                while size < LIMIT_COMMIT_BYTES and done + offset < messages:
                    response = flying.popleft().result()
                    flying.append(pull.future(request))
                    if response:
                        rows = decode_pull_response(response)
                        batch = archive_batch("orders", "refeed-backup.orders", rows, datetime.now(UTC))
                        data = types.AppendRowsRequest.ArrowData(
                            writer_schema=types.ArrowSchema(
                                serialized_schema=ARCHIVE_SCHEMA.serialize().to_pybytes()
                            ),
                            rows=types.ArrowRecordBatch(serialized_record_batch=batch.serialize().to_pybytes()),
                        )
                        yield types.AppendRowsRequest(write_stream=stream, offset=offset, arrow_rows=data)
                        size += len(response)
                        offset += rows.num_rows
                        ack_ids.append(rows.column("ack_id"))

            for answer in client.append_rows(requests()):
                assert not answer.error.code, answer.error.message
            client.finalize_write_stream(name=stream)
            client.batch_commit_write_streams({"parent": table, "write_streams": [stream]})
            acknowledge(pubsub.channel, path, pa.concat_arrays(ack_ids))
            done += sum(len(ids) for ids in ack_ids)
        for future in flying:
            future.cancel()


def _commits(standin: StandIn) -> dict[float, int]:
    """Return how many rows of the archive each commit made visible, by its time."""
    found: dict[float, int] = {}
    rows = 0
    for call in standin.calls():
        if "/tables/messages/" in f"{call['resource']}/" and call["outcome"] == "ok":
            if call["method"] == "AppendRows":
                rows += call["rows"]
            elif call["method"] == "BatchCommitWriteStreams":
                found[call["at"]] = rows
                rows = 0
    return found


def _rate(standin: StandIn, messages: int) -> float:
    """Return rows a second between the first commit and the last."""
    commits = _commits(standin)
    assert sum(commits.values()) == messages, f"{sum(commits.values())} of {messages} rows were committed"
    assert len(commits) > 1, "the backlog was drained in one commit: raise the number of messages"
    times = sorted(commits)
    return sum(commits[at] for at in times[1:]) / (times[-1] - times[0])


if __name__ == "__main__":
    print(
        run(int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES, int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS)
    )
