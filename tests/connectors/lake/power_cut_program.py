"""Appends and all of the upkeep, on an archive and on a table of rows: the program that test_delta_log.py cuts.

Each line that it writes to the file of its second argument is a promise: ``archive <id>`` and ``rows <id>`` after
the commit, ``-archive <id>`` and ``-rows <id>`` before the row is deleted.
"""

import os
import sys
import time
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from connectors.columns import arrow_schema
from connectors.lake import entities, tables
from connectors.lake.archive import LakeArchive
from connectors.lake.entities import EntityTable, write_partition
from connectors.lake.merged_files import MergedFileLists
from connectors.lake.rows import LakeRowTable
from connectors.pubsub.pull import PULLED_SCHEMA
from model.archive import Attempt
from model.schema import Field, RowSchema

_INGEST_TIME = Field("ingest_time", "TIMESTAMP")
_ROWS = RowSchema((Field("id", "INT64"), Field("n", "INT64"), Field("tag", "STRING"), _INGEST_TIME))
_MORE_ROWS = RowSchema((*_ROWS.fields, Field("more", "STRING")))
_OTHER_ROWS = RowSchema((Field("id", "INT64"), Field("n", "STRING"), *_MORE_ROWS.fields[2:]))


def promise(*lines):
    with MARKS.open("ab", buffering=0) as marks:
        marks.write("".join(f"{line}\n" for line in lines).encode())


def grow_old(folder):
    """Make every file two days old: upkeep deletes no young ones."""
    two_days_ago = time.time() - 2 * 86_400
    for path in folder.rglob("*"):
        os.utime(path, (two_days_ago, two_days_ago))


class Archive:
    def __init__(self):
        self.table = LakeArchive(str(ROOT / "lake"), "backup.messages")
        self.table.create()
        self.epoch = self.table.take_lease("l")
        self.number = 0

    def append(self, partition=None):
        self.number += 1
        message = {
            "data": b"x" * 50,
            "attributes": [],
            "message_id": str(self.number),
            "publish_time": datetime(2024, 3, 1, tzinfo=UTC),
            "ordering_key": "",
            "ack_id": "a",
        }
        batch = pa.RecordBatch.from_pylist([message], schema=PULLED_SCHEMA)
        file = self.table.writer().write([("orders", "s", batch)])
        if partition is not None:
            file = replace(file, partition=partition)
        self.table.commit([file], Attempt("s", self.number, "l", self.epoch))
        promise(f"archive {self.number}")
        return self.number

    def live(self):
        old = self.append("2024-01-01")
        self.append()
        # Upkeep that comes between the stream's last look at the table and its commit.
        self.table.another().compact()
        self.append()
        self.table.another().compact()
        for _ in range(2):
            self.append()
        promise(f"-archive {old}")
        self.table.another().expire(before=date(2024, 2, 1))
        self.append()
        self.table.compact()
        grow_old(Path(self.table.uri))
        self.append()
        self.table.vacuum(keep_hours=0)
        for _ in range(5):
            self.append()


class Rows:
    def __init__(self):
        self.table = LakeRowTable(str(ROOT / "lake"), "staging.orders")
        self.table.evolve(_ROWS)
        self.epoch = self.table.take_lease("l")
        self.number = 0

    def append(self, tag):
        self.number += 1
        schema = pa.schema(
            [
                ("id", pa.int64()),
                ("n", pa.int64()),
                ("tag", pa.string()),
                ("ingest_time", pa.timestamp("us", "UTC")),
            ]
        )
        row = {"id": self.number, "n": 7, "tag": tag, "ingest_time": datetime.now(UTC)}
        file = self.table.writer().write_rows([pa.RecordBatch.from_pylist([row], schema=schema)])
        self.table.commit([file], Attempt("s", self.number, "l", self.epoch))
        promise(f"rows {self.number}")
        return self.number

    def live(self):
        self.append("kept")
        gone = self.append("gone")
        self.table.compact()
        self.table.evolve(_MORE_ROWS)
        also_gone = self.append("gone")
        promise(f"-rows {gone}", f"-rows {also_gone}")
        self.table.delete_where("tag", "gone", since=datetime.now(UTC) - timedelta(days=2))
        self.append("kept")
        self.table.widen(_OTHER_ROWS)
        promise("rows rewritten")


class Entities:
    def __init__(self):
        self.table = EntityTable(str(ROOT / "lake"), "reporting.orders")
        self.table.evolve(_ROWS)
        self.number = 0

    def replace(self, removed=()):
        self.number += 1
        schema = arrow_schema(self.table.schema())
        row = {"id": self.number, "ingest_time": datetime.now(UTC)}
        batch = pa.RecordBatch.from_pylist([row], schema=schema)
        added = write_partition(self.table.uri, None, schema, iter([batch]))
        taken_number = MergedFileLists(self.table.uri).write({f"{self.number}": datetime.now(UTC)})
        numbers = {"watermark_us": self.number, "index_number": self.number, "taken_number": taken_number}
        self.table.replace(self.table.snapshot(), removed, added, **numbers)
        promise(f"entities {self.number}")

    def live(self):
        for _ in range(3):
            self.replace()
        self.table.evolve(_MORE_ROWS)
        self.table.overtake()
        grow_old(Path(self.table.uri))
        promise("-entities 1", "-entities 2", "-entities 3")
        self.replace(self.table.snapshot().files)


if __name__ == "__main__":
    ROOT, MARKS = Path(sys.argv[1]), Path(sys.argv[2])
    # What takes 100 commits and days elsewhere happens here at once.
    tables.CONFIGURATION["delta.checkpointInterval"] = "5"
    entities._CONFIGURATION["delta.checkpointInterval"] = "5"
    entities._CONFIGURATION["delta.logRetentionDuration"] = "interval 1 days"
    tables.MIN_VACUUM_HOURS = 0
    Archive().live()
    Rows().live()
    Entities().live()
