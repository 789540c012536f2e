"""What was staged since a snapshot goes; what the snapshot knows stays, whatever clock wrote its time."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from model.schema import RowSchema
from pipeline.schema import row_columns
from pipeline.staged_ids import discard_staged
from streams.ids import TABLE_IDS_SCHEMA
from streams.journal import Journal
from tests.memory.tables import Memory, RowTables

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SCHEMA = RowSchema(tuple(row_columns((), "plain")))


def journal_of(folder: Path, *known: str) -> Journal:
    journal = Journal(folder, keep_seconds=600, schema=TABLE_IDS_SCHEMA)
    if known:
        ids = {
            "topic": ["orders"] * len(known),
            "message_id": list(known),
            "publish_time": pa.array([NOON] * len(known), pa.timestamp("us", "UTC")),
            "table": ["staging.orders"] * len(known),
        }
        journal.remember(1, pa.table(ids))
    return journal


def stage(**seconds: float) -> RowTables:
    """Return tables with one row for each message; each number is its ingest time in seconds after noon."""
    memory = Memory()
    table = memory.table("staging.orders")
    table.schema = SCHEMA
    table.rows = [
        {
            "_topic": "orders",
            "_message_id": name,
            "_publish_time": NOON,
            "_backfill_id": None,
            "ingest_time": NOON + timedelta(seconds=late),
        }
        for name, late in seconds.items()
    ]
    return RowTables(memory, stream="s", lease="l")


def staged(tables: RowTables) -> list[str]:
    return [row["_message_id"] for row in tables.open("staging.orders").read_rows()]


def test_what_came_in_since_the_snapshot_goes_and_a_second_call_finds_nothing(tmp_path: Path) -> None:
    tables = stage(a=-1, b=0, c=5)
    journal = journal_of(tmp_path, "a")
    assert discard_staged(tables, "staging.orders", journal, NOON) == 2
    assert staged(tables) == ["a"]
    assert discard_staged(tables, "staging.orders", journal, NOON) == 0
    assert discard_staged(tables, "staging.none", journal, NOON) == 0


def test_rows_that_the_snapshot_knows_stay_where_a_task_s_clock_is_ahead(tmp_path: Path) -> None:
    # By the tasks' clock b came in after the snapshot, whose journal has it: its message never comes again.
    tables = stage(a=-1, b=3, c=2, d=5)
    assert discard_staged(tables, "staging.orders", journal_of(tmp_path, "a", "b"), NOON) == 1
    assert staged(tables) == ["a", "b", "c"]
