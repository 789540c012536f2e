"""Verdicts by counting, with a staging table in memory."""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from backfill.run.folder import BackfillFolder
from backfill.run.progress import CheckpointFolder, Progress, SliceCheckpoint
from backfill.run.selection import read_selection, write_selection
from backfill.steer.verification import Verifier, Waiting
from jobs.store import Job
from model.errors import RegistryError, StagingUnknownError, WarehouseError
from model.job import JobState
from tests.backfill.conftest import MemoryStaging

JOB_ID = "bf_00000000000000000000000000"


def job(state=JobState.SUCCEEDED):
    unknown = dict.fromkeys(("started_at", "finished_at", "error", "driver"))
    asked = {
        "kind": "backfill",
        "request": {"topic": "replay"},
        "created_by": "ann",
        "created_at": datetime.now(UTC),
    }
    return Job(id=JOB_ID, state=state, progress={}, epoch=1, version=1, **asked, **unknown)


@pytest.fixture
def folder(tmp_path, rows):
    """60,000 rows in three slices, of which all but 2 dead letters are published."""
    folder = BackfillFolder(tmp_path / JOB_ID)
    selection = write_selection([rows(60_000)], folder.selection)
    assert len(selection.slices) > 1
    checkpoints = CheckpointFolder(folder.progress)
    checkpoints.create()
    for part in selection.slices:
        failed = 2 if part.number == 0 else 0
        checkpoints.write(
            SliceCheckpoint(
                part.number, 1, offset=part.rows, published=part.rows - failed, failed=failed, done=True
            )
        )
    return folder


def staged(*rows, merged=0):
    return MemoryStaging({JOB_ID: np.concatenate(rows)}, merged)


def verifier(folder, staging):
    return Verifier(lambda _id: folder, lambda topic: staging if topic == "replay" else None)


def publish_all(folder):
    CheckpointFolder(folder.progress).write(SliceCheckpoint(0, 2, offset=1, published=25_000, done=True))


def test_one_that_has_not_ended_is_pending(folder):
    for state in (JobState.PENDING, JobState.RUNNING, JobState.PAUSED, JobState.CANCELLING):
        found = verifier(folder, MemoryStaging()).verify(job(state))
        assert (found["state"], found["selected"], found["published"]) == ("pending", 60_000, 59_998)
        assert (found["landed"], found["merged"], found["missing"]) == (None, None, None)


def test_one_that_never_selected_is_incomplete(tmp_path):
    found = verifier(BackfillFolder(tmp_path), None).verify(job(JobState.FAILED))
    assert (found["state"], found["selected"], found["published"]) == ("incomplete", None, 0)


def test_without_a_staging_table_the_rest_is_unknown_when_all_is_published(folder):
    assert verifier(folder, None).verify(job(JobState.FAILED))["state"] == "incomplete"
    publish_all(folder)
    assert verifier(folder, None).verify(job()) == {
        "state": "unknown",
        "selected": 60_000,
        "published": 60_000,
        "landed": None,
        "merged": None,
        "missing": None,
        "waiting": None,
        "advice": "Refeed knows no staging table for the topic replay, because no source reads the topic. To "
        "check this replay, look at the backlogs of the topic's subscriptions: refeed histogram replay. To have "
        "later replays verified, add a source for the topic: refeed source publish --help",
        "dead_letters": None,
    }


def test_while_a_fault_of_the_registry_hides_the_staging_table_the_verdict_is_open(folder):
    publish_all(folder)

    def find(_topic):
        raise RegistryError("orders: there is no such message.")

    found = Verifier(lambda _id: folder, find).verify(job())
    assert (found["state"], found["advice"]) == ("pending", "orders: there is no such message.")


@pytest.mark.parametrize(
    ("waiting", "counts"),
    [
        (5, ("pending", 59_995, 0, 5)),
        (None, ("pending", 59_995, 0, 5)),
        (7_000, ("pending", 59_995, 0, 5)),
        (3, ("incomplete", 59_995, 2, 3)),
    ],
)
def test_messages_that_may_still_be_delivered_are_not_missing(folder, waiting, counts):
    publish_all(folder)
    asked = []

    def find(topic, until):
        asked.append((topic, until))
        return Waiting(waiting, "They wait.")

    ended = replace(job(), finished_at=datetime(2026, 1, 1, tzinfo=UTC))
    checked = Verifier(lambda _id: folder, lambda _topic: staged(np.arange(59_995)), find)
    found = checked.verify(ended)
    assert tuple(found[name] for name in ("state", "landed", "missing", "waiting")) == counts
    assert (found["advice"], asked) == ("They wait.", [("replay", ended.finished_at)])


def test_what_was_never_published_is_incomplete_whatever_waits(folder):
    checked = Verifier(
        lambda _id: folder, lambda _topic: staged(np.arange(59_995)), lambda *_: Waiting(9, "They wait.")
    )
    assert checked.verify(job(JobState.CANCELLED))["state"] == "incomplete"


def test_it_is_complete_when_every_row_has_landed_however_often_and_in_whatever_order(folder):
    publish_all(folder)
    landed = np.random.default_rng(1).permutation(np.arange(60_000))
    staging = staged(landed[:10_000], landed[5_000:], [3, 3, 3], merged=60_000)
    assert verifier(folder, staging).verify(job()) == {
        "state": "complete",
        "selected": 60_000,
        "published": 60_000,
        "landed": 60_000,
        "merged": 60_000,
        "missing": 0,
        "waiting": 0,
        "advice": None,
        "dead_letters": 0,
    }


def test_rows_that_no_selection_has_prove_nothing(folder):
    publish_all(folder)
    staging = staged(np.arange(1, 60_000), [-1, 60_000, 2**40])
    found = verifier(folder, staging).verify(job())
    assert (found["state"], found["landed"], found["missing"]) == ("incomplete", 59_999, 1)


def test_missing_messages_are_told_by_row_page_by_page(folder):
    gone = [0, 24_999, 25_000, 59_999]
    staging = staged(np.delete(np.arange(60_000), gone))
    checked = verifier(folder, staging)
    first = checked.missing_messages(job(), limit=3)
    second = checked.missing_messages(job(), limit=3, after=first[-1].row)
    assert [message.row for message in first + second] == gone
    assert first[1].message_id == "m24999"
    assert first[1].topic == "orders"
    assert checked.missing_rows(job()) == gone
    assert checked.missing_messages(job(), limit=3, after=59_999) == []


def test_missing_messages_that_are_dead_letters_are_counted(folder):
    publish_all(folder)
    asked, staging = [], staged(np.arange(3, 60_000))

    def find_reasons(messages, start):
        asked.append(start)
        return {message: ("not_json", "It is no JSON.") for message in messages if message[1] != "m1"}

    of_topic = Verifier(lambda _id: folder, lambda _topic: staging, find_reasons=find_reasons)
    found = of_topic.verify(made := job())
    assert (found["state"], found["missing"], found["dead_letters"]) == ("incomplete", 3, 2)
    assert asked == [made.created_at]
    waiting = Waiting(2, "Wait.")
    late = Verifier(lambda _id: folder, lambda _topic: staging, lambda *_: waiting, find_reasons).verify(made)
    assert (late["waiting"], late["missing"], late["dead_letters"]) == (1, 2, 2), "they do not wait"
    staging.rows = {JOB_ID: np.arange(2_000, 60_000)}
    assert of_topic.verify(made)["dead_letters"] is None, "a large replay counts no dead letters"


def test_a_verdict_does_not_need_the_table_of_dead_letters(folder):
    def fail(_messages, _start):
        raise WarehouseError("The warehouse is away.")

    publish_all(folder)
    staging = staged(np.arange(3, 60_000))
    found = Verifier(lambda _id: folder, lambda _topic: staging, find_reasons=fail).verify(job())
    assert (found["state"], found["missing"], found["dead_letters"]) == ("incomplete", 3, None)


def test_a_row_that_was_never_sent_because_somebody_cancelled_is_not_missing(folder):
    CheckpointFolder(folder.progress).write(SliceCheckpoint(0, 2, offset=10, published=10))
    second = read_selection(folder.selection).slices[1]
    CheckpointFolder(folder.progress).write(SliceCheckpoint(1, 2))
    staging = staged(np.arange(1, 9), np.arange(second.first_row + second.rows, 60_000))
    checked, cancelled = verifier(folder, staging), job(JobState.CANCELLED)
    found = checked.verify(cancelled)
    assert (found["state"], found["missing"]) == ("incomplete", 2)
    assert checked.missing_rows(cancelled) == [0, 9]


def test_nobody_knows_what_is_missing_without_a_staging_table(folder):
    checked = verifier(folder, None)
    for call in (checked.missing_rows, checked.delete_rows, lambda one: checked.missing_messages(one, limit=1)):
        with pytest.raises(StagingUnknownError, match="replay"):
            call(job())


def test_nothing_is_missing_of_what_was_never_selected(tmp_path):
    checked = verifier(BackfillFolder(tmp_path), MemoryStaging())
    assert checked.missing_rows(job()) == []
    assert checked.missing_messages(job(), limit=1) == []


def test_one_whose_files_were_removed_is_judged_by_its_figures(tmp_path):
    done = replace(job(), progress=Progress(selected=3, published=3).to_json())
    gone = BackfillFolder(tmp_path / "removed")
    found = verifier(gone, staged([0, 1, 2])).verify(done)
    assert (found["state"], found["selected"], found["published"], found["missing"]) == ("complete", 3, 3, 0)
    assert verifier(gone, None).verify(done)["state"] == "unknown"
