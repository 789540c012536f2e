import json
import time
from types import SimpleNamespace

import pytest

from connectors.pubsub.source import TaskResult
from model.errors import RefeedError, StorageFullError
from streams.batch import Batch, read_batch
from streams.ids import IDS_SCHEMA
from streams.targets import TaskOutput

NONE = IDS_SCHEMA.empty_table()


def output(*, is_lesson: bool = False) -> TaskOutput:
    return TaskOutput((), NONE, NONE, None, is_lesson=is_lesson)


def read(*rows: TaskResult, quota_seconds: float = 0.0) -> Batch:
    work = SimpleNamespace(read_output=lambda _: output())
    return read_batch(rows, work, SimpleNamespace(quota_seconds=lambda _: quota_seconds))


def test_only_a_batch_with_something_to_wait_for_keeps_the_next():
    assert not Batch((output(),), next_at=time.monotonic()).keeps_the_next
    assert Batch((output(), output(is_lesson=True))).keeps_the_next
    assert Batch(error=RefeedError("broken")).keeps_the_next
    assert read(TaskResult(0, b"", None, "{}"), quota_seconds=60.0).keeps_the_next


@pytest.mark.parametrize(("code", "kind"), [("storage_full", StorageFullError), ("odd", RefeedError)])
def test_an_error_that_a_task_reports_is_of_its_own_class_where_the_stream_can_wait_for_its_end(code, kind):
    error = json.dumps({"code": code, "message": "no"})
    found = read(TaskResult(0, b"", None, "{}"), TaskResult(1, None, error, '{"orders": "away"}'))
    assert (type(found.error), found.error.message) == (kind, "no")
    assert (len(found.outputs), found.faults) == (1, 1)
