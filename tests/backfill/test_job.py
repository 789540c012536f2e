"""The driver, with two threads in Spark's place: they run the same tasks on the same folder."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from backfill.job import check_budget, run_backfill
from backfill.plan.options import RunOptions
from backfill.run.dead_letters import list_dead_letters
from backfill.run.folder import BackfillFolder
from backfill.run.progress import CheckpointFolder, SliceCheckpoint
from backfill.run.selection import write_selection
from connectors.lake.archive import LakeArchive
from jobs import driver
from jobs.driver_watch import DriverWatch
from jobs.folder import Control, Order, Outcome
from model.errors import (
    CheckpointCorruptError,
    MessagesFailedError,
    NothingSelectedError,
    QueryError,
    SelectionTooLargeError,
    StorageFullError,
)
from model.job import JobState
from model.typed import field_readers, reader
from tests.archive import messages, write_commits
from tests.waiting import wait_until
from tests.years.clock import datetime_of, replaced

ROWS = 4000
ALL = "SELECT * FROM refeed_archive"


@dataclass
class Threads:
    """As much of a Spark session as a driver asks for; ``passes`` counts its jobs."""

    passes: int = 0
    stopped: bool = False
    places: pa.RecordBatch | None = None
    conf: Any = field(default_factory=lambda: SimpleNamespace(set=lambda *_: None))

    def range(self, _start: int, end: int, _step: int, _partitions: int) -> "Threads":
        self.passes += 1
        self.places = pa.record_batch({"id": pa.array(range(end), pa.int64())})
        return self

    def mapInArrow(self, work: Any, _ddl: str) -> Any:  # noqa: N802 - Spark's name
        batches = [self.places.slice(n, 1) for n in range(self.places.num_rows)]

        def run(batch: pa.RecordBatch) -> list[SimpleNamespace]:
            return [SimpleNamespace(**row) for found in work(iter([batch])) for row in found.to_pylist()]

        def collect() -> list[SimpleNamespace]:
            with ThreadPoolExecutor(2) as pool:
                return [row for rows in pool.map(run, batches) for row in rows]

        return SimpleNamespace(collect=collect)

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def spark(monkeypatch):
    threads = Threads()
    monkeypatch.setattr("connectors.spark.session._open_launched", lambda _name: threads)
    # Eight slices.
    monkeypatch.setattr("backfill.run.selection._SLICE_ROWS", 500)
    return threads


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    path = tmp_path_factory.mktemp("home") / "lake"
    times = [datetime(2024, 3, 1, tzinfo=UTC) + timedelta(milliseconds=n) for n in range(ROWS)]
    # The second half is one key, newest first in the archive.
    keys = [f"k{n % 7}" if n < ROWS // 2 else "hot" for n in range(ROWS)]
    ids = [str(n) for n in range(ROWS)]
    rows = messages(ROWS, data=[b"x"] * ROWS, message_id=ids, publish_time=times, ordering_key=keys)
    newest_first = rows.take(pa.array(range(ROWS - 1, -1, -1)))
    write_commits(LakeArchive(str(path), "backup.messages"), {"orders": newest_first})
    return path


@dataclass
class Backfill:
    folder: BackfillFolder

    def order(self, epoch: int, order: Order = Order.RUN, **controls: Any) -> None:
        self.folder.write_control(Control(epoch, order, **controls))

    def run(self, epoch: int = 1, *, idle: float = 30.0, **controls: Any) -> Outcome:
        self.order(epoch, **controls)
        return run_backfill(self.folder, epoch, pause_idle_seconds=idle)

    def change(self, **run: Any) -> None:
        specification = self.folder.read_specification()
        self.folder.write_specification({**specification, "run": {**specification.get("run", {}), **run}})

    @property
    def published(self) -> int:
        return sum(checkpoint.published for checkpoint in CheckpointFolder(self.folder.progress).read_all())


@pytest.fixture
def make(tmp_path, lake, emulator_host, receive):
    def make_backfill(sql=ALL, **run):
        today = datetime.now(UTC)
        folder = BackfillFolder(tmp_path / "bf_1")
        target = {
            "backfill_id": "bf_1",
            "topic_path": "projects/shop/topics/replay",
            "emulator_host": emulator_host,
            "replay_token": "token",
        }
        query = {
            "sql": sql,
            "parameters": {},
            "window": [(today - timedelta(days=2)).isoformat(), (today + timedelta(days=2)).isoformat()],
            "memory": "1GB",
        }
        source = {"lake": str(lake), "table": "backup.messages", "partitioning": "day"}
        specification = {"query": query, "archive": source, "target": target}
        folder.write_specification({**specification, "run": run} if run else specification)
        return Backfill(folder)

    return make_backfill


def rows_in(messages: list[Any]) -> Counter[int]:
    return Counter(int(message.attributes["refeed_row"]) for message in messages)


@pytest.fixture
def background():
    threads = []

    def start(do):
        threads.append(threading.Thread(target=do, daemon=True))
        threads[-1].start()
        return threads[-1]

    yield start
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_a_folder_of_an_earlier_version_is_published_whole(spark, make, receive):
    backfill = make()
    assert backfill.run() == Outcome(1, JobState.SUCCEEDED)
    assert rows_in(receive(ROWS)) == Counter(range(ROWS))
    assert (spark.passes, spark.stopped) == (1, True)


@pytest.fixture(params=[-400, 400])
def wrong_clock(request):
    """The driver's clock, more than a year late or early; what time passes is right."""
    skew = timedelta(days=request.param)
    clock = SimpleNamespace(**vars(time))
    clock.time, clock.time_ns = (lambda: time.time() + skew.total_seconds()), lambda: int(clock.time() * 1e9)
    shown = datetime_of(lambda: datetime.now(UTC) + skew)
    packages = ("backfill", "connectors", "jobs", "model")
    try:
        with replaced(packages, [("datetime", datetime, shown), ("time", time, clock)]):
            yield clock
    finally:
        # They remember the class of the wrong clock.
        field_readers.cache_clear()
        reader.cache_clear()


def test_a_driver_whose_clock_is_wrong_publishes_each_message_once_and_is_heard_of(
    spark, make, receive, wrong_clock
):
    backfill = make(f"{ALL} WHERE CAST(message_id AS INT) < 600")
    heard = DriverWatch(backfill.folder, lambda _: None)
    there = SimpleNamespace(driver=SimpleNamespace(is_here=False), epoch=1)
    backfill.folder.beat(1)
    assert heard.death(there, None) is None
    assert abs(int(backfill.folder.read_heartbeat(1)) / 1e9 - time.time()) > 86_400
    assert backfill.run(rate_limit_messages_per_second=600.0) == Outcome(1, JobState.SUCCEEDED)
    assert rows_in(receive(600)) == Counter(range(600))


def test_a_driver_that_was_slow_starts_again_what_its_tasks_left(spark, make, receive, monkeypatch):
    monkeypatch.setattr("backfill.run.pace._TURN_SECONDS", 0.1)
    backfill = make(f"{ALL} WHERE CAST(message_id AS INT) < 600")
    # Every turn is over after a tenth of a second: nothing but passes gets it done.
    assert backfill.run(rate_limit_messages_per_second=200.0) == Outcome(1, JobState.SUCCEEDED)
    assert rows_in(receive(600)) == Counter(range(600))
    assert spark.passes > 2


def test_more_rows_than_may_be_sent_without_an_approval_wait(spark, make, receive):
    backfill = make(approval_rows=ROWS - 1)
    assert backfill.run(idle=0.3) == Outcome(1, JobState.PAUSED)
    assert str(ROWS) in str(backfill.folder.read_pause(1))
    assert spark.passes == 0
    backfill.change(approval_rows=None)
    assert backfill.run(2) == Outcome(2, JobState.SUCCEEDED)
    assert len(receive(ROWS)) == ROWS


def test_an_order_to_run_is_no_approval(spark, make, background):
    backfill = make(approval_rows=ROWS - 1)
    ended = []
    running = background(lambda: ended.append(backfill.run()))
    wait_until(lambda: backfill.folder.read_pause(1) is not None, "it waits for an approval")
    # A new rate is such an order, and takes the pause back; so does a resume that comes before the rows are known.
    backfill.order(1, rate_limit_messages_per_second=5000.0)
    wait_until(lambda: backfill.folder.read_pause(1) is not None, "it waits on")
    assert (spark.passes, backfill.published) == (0, 0)
    backfill.change(approval_rows=None)
    backfill.order(1)
    running.join(60)
    assert ended == [Outcome(1, JobState.SUCCEEDED)]


def test_a_subscription_to_yield_to_that_is_deleted_fails_it(spark, make, pubsub, background, monkeypatch):
    monkeypatch.setattr("backfill.run.backlog._BLIND_SECONDS", 0.2)
    pubsub.create_topic("live")
    pubsub.create_subscription("slow", "live")
    backfill = make(yield_to={"subscription": "slow", "max_oldest_unacked_seconds": 60.0})
    ended = []
    running = background(lambda: ended.append(backfill.run(rate_limit_messages_per_second=20.0)))
    wait_until(lambda: backfill.published > 0, "it publishes")
    pubsub.delete_subscription("slow")
    running.join(60)
    assert [(end.state, (end.error or {})["code"]) for end in ended] == [
        (JobState.FAILED, "subscription_not_found")
    ]


def test_a_driver_shows_that_it_lives_though_its_storage_fails_for_once(make, background, monkeypatch):
    backfill, ended, failures = make(), threading.Event(), iter([CheckpointCorruptError("stale file handle")])
    backfill.order(1)
    may_go_on = BackfillFolder.may_go_on

    def flaky(folder, epoch):
        for failure in failures:
            raise failure
        return may_go_on(folder, epoch)

    monkeypatch.setattr(BackfillFolder, "may_go_on", flaky)
    background(lambda: driver._leave_when_told(backfill.folder, 1, ended))
    wait_until(lambda: backfill.folder.read_heartbeat(1) is not None, "it is heard of")
    ended.set()


def test_a_query_that_selects_nothing_fails_where_that_was_asked_for(spark, make):
    nothing = make(f"{ALL} WHERE false")
    assert nothing.run() == Outcome(1, JobState.SUCCEEDED)
    nothing.change(fail_if_empty=True)
    # On the selection that is there: a retry fails as the first attempt did.
    with pytest.raises(NothingSelectedError):
        nothing.run(2)
    assert spark.passes == 0


@pytest.mark.parametrize(
    ("bounds", "fault"),
    [({"max_rows": ROWS - 1}, SelectionTooLargeError), ({"min_free_bytes": 10**15}, StorageFullError)],
)
def test_more_than_the_deployment_allows_is_not_published_at_all(spark, make, bounds, fault):
    with pytest.raises(fault):
        make(bounds=bounds).run()
    assert (spark.passes, spark.stopped) == (0, True)


def test_by_key_takes_the_columns_that_it_sorts_by(spark, make):
    backfill = make("SELECT data, attributes, message_id FROM refeed_archive", ordering="by_key")
    with pytest.raises(QueryError, match="needs the columns ordering_key, publish_time and message_id"):
        backfill.run()


@pytest.mark.parametrize(
    ("unknown", "said"),
    [
        (0, "the other 60 were not sent"),
        (
            30,
            (
                "of the other 60, at most 30 may have been published without a confirmation; a retry "
                "publishes them again"
            ),
        ),
        (
            1030,
            (
                "of the other 60, at most 60 may have been published without a confirmation; a retry "
                "publishes them again"
            ),
        ),
    ],
)
def test_too_many_failures_say_what_became_of_the_other_rows(tmp_path, rows, unknown, said):
    selection = write_selection([rows(100)], BackfillFolder(tmp_path).selection)
    reached = {
        0: SliceCheckpoint(0, 1, 25, published=23, failed=2, newly_failed=2, repeated_at_most=unknown),
        1: SliceCheckpoint(1, 1, 15, published=15),
    }
    with pytest.raises(MessagesFailedError) as stopped:
        check_budget(1, selection, reached, RunOptions(max_failed=1))
    assert stopped.value.message.startswith("2 messages could not be published, but max_failed allows only 1; ")
    assert said in stopped.value.message


def test_failures_within_the_budget_do_not_keep_the_rest_from_going_out(spark, make, receive):
    sql = (
        "SELECT * REPLACE (CASE WHEN message_id IN ('7', '3000') "
        "THEN [{'key': 'goog', 'value': 'kept by Pub/Sub'}] ELSE attributes END AS attributes) FROM refeed_archive"
    )
    backfill = make(sql, max_failed=2)
    with pytest.raises(MessagesFailedError, match=f"2 of {ROWS}"):
        backfill.run()
    assert len(receive(ROWS - 2)) == backfill.published == ROWS - 2
    assert {letter.message_id for letter in list_dead_letters(backfill.folder, limit=9).letters} == {"7", "3000"}


def test_what_a_task_finds_out_is_how_the_attempt_ends(spark, make):
    backfill = make()
    specification = backfill.folder.read_specification()
    target = {**specification["target"], "topic_path": "projects/shop/topics/deleted"}
    backfill.folder.write_specification({**specification, "target": target})
    outcome = backfill.run()
    assert outcome.state is JobState.FAILED
    assert (outcome.error or {})["code"] == "topic_not_found"


def test_only_missing_sends_them_a_second_time(spark, make, receive):
    backfill = make()
    backfill.run()
    backfill.change(only="missing", rows=[5, 1700])
    assert backfill.run(2) == Outcome(2, JobState.SUCCEEDED)
    assert rows_in(receive(ROWS + 2)) == Counter(range(ROWS)) + Counter([5, 1700])
    assert backfill.published == ROWS
