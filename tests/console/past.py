"""A backfill that has run: slices, rates, a log and dead letters, two of which anybody could misread as markup."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from backfill.run.dead_letters import DeadLetterWriter
from backfill.run.folder import BackfillFolder
from backfill.run.progress import CheckpointFolder, Progress, SliceCheckpoint
from backfill.run.selection import read_slice, write_selection
from connectors.lake import files
from connectors.lake.archive import LakeArchive
from jobs.store.tables import JOBS
from model.job import JobState
from tests.archive import messages, write_commits
from tests.console.yard import BIG, EVIL, Yard

ROWS = 30


def run_backfill(yard: Yard) -> str:
    """Make a backfill that ended ten minutes ago, with 27 of 30 messages published and three dead letters."""
    job = yard.backfill(JobState.SUCCEEDED, Progress(selected=ROWS, published=27, failed=3))
    folder = BackfillFolder(yard.api.home / "backfills" / job)
    rows = pa.RecordBatch.from_pylist(
        [
            {
                "data": BIG if n == 2 else b"{}",
                "attributes": [{"key": EVIL, "value": EVIL}],
                "message_id": f"m{n}",
                "topic": "orders",
            }
            for n in range(ROWS)
        ]
    )
    selection = write_selection([rows], folder.selection)
    refused = [(0, "gave_up: no answer"), (2, f"refused_by_pubsub: {EVIL}"), (5, "gave_up: no answer")]
    DeadLetterWriter(folder, 1, selection.slices[0]).write(
        read_slice(folder.selection, selection.slices[0]), refused
    )
    checkpoints = CheckpointFolder(folder.progress)
    checkpoints.create()
    checkpoints.write(SliceCheckpoint(0, 1, offset=ROWS, published=27, failed=3, done=True))
    folder.write_specification({"run": {}})
    folder.driver_log.write_text("".join(f"line {n} {EVIL}\n" for n in range(200)))
    # Points are kept under whole minutes.
    started = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=20)
    for minute in range(1, 9):
        point = {
            "published": 3 * minute,
            "failed": 0,
            "state": "PAUSED" if minute == 5 else "RUNNING",
            "event_time": "2026-01-01T00:00:00Z",
            "rate_limit_messages_per_second": 0.06,
        }
        yard.api.store.put_figures(started + timedelta(minutes=minute), {f"job:{job}": point})
    with yard.api.store._database.write() as connection:
        ended = {"created_at": started, "started_at": started, "finished_at": started + timedelta(minutes=10)}
        connection.execute(JOBS.update().where(JOBS.c.id == job).values(**ended))
    return job


def archive_past(yard: Yard, hours: Iterable[tuple[str, datetime, int]]) -> None:
    """Archive messages of earlier hours: a commit of each topic, hour and number of messages."""
    archive = LakeArchive(str(yard.api.home / "lake"), "backup.messages")
    with pytest.MonkeyPatch.context() as patch:
        for number, (topic, hour, count) in enumerate(hours, 1):
            at = hour + timedelta(minutes=20)

            class Then(datetime):
                @classmethod
                def now(cls, tz: Any = None, at: datetime = at) -> datetime:
                    return at

            patch.setattr(files, "datetime", Then)
            ids = [f"past-{number}-{n}" for n in range(count)]
            write_commits(archive, {topic: messages(count, message_id=ids, publish_time=[at] * count)})
