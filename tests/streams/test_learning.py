import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pyarrow as pa
import pytest

from streams import learning as learning_module
from streams.ids import TABLE_IDS_SCHEMA
from streams.journal import Journal
from streams.journal_mark import ask_to_learn
from streams.learning import Learner
from streams.status import StatusFile
from tests.waiting import wait_until

CLOCKS = timedelta(minutes=2)
NEAR = timedelta(minutes=1)


class World:
    """A journal that does not know all, and what its learner asks for."""

    def __init__(self, folder, oldest: datetime, *, knows_all: bool = False) -> None:
        self.asked = 0
        self.oldest = oldest
        self.spans = {}
        self.lease = SimpleNamespace(again_since=None, name_journal=lambda _: None)
        self.slow = threading.Event()
        self.slow.set()
        self.journal = Journal(folder / "journal", keep_seconds=600, schema=TABLE_IDS_SCHEMA)
        self.journal.begin(knows_all=knows_all)
        self.status = StatusFile(folder / "status.json")
        self.learner = Learner(
            self.journal,
            self.lease,
            read_ids=self.read,
            find_oldest=self.find_oldest,
            min_free_bytes=0,
            status=self.status,
        )

    def find_oldest(self) -> datetime:
        self.asked += 1
        return self.oldest

    def read(self, table, span):
        self.spans[table] = span
        assert self.slow.wait(30), "the test lets it go on"
        yield pa.record_batch(
            {
                "topic": ["orders"],
                "message_id": ["1"],
                "publish_time": pa.array([now()], pa.timestamp("us", tz="UTC")),
                "table": [table],
            }
        )

    def take(self, *tables: str) -> None:
        for number, table in enumerate(tables, 1):
            self.learner.take(table, 0, lambda number=number: number)


def now() -> datetime:
    return datetime.now(UTC)


def is_near(found: datetime, wanted: datetime) -> bool:
    return abs(found - wanted) < NEAR


def test_many_tables_of_one_start_are_learned_once_each_and_pubsub_is_asked_once(tmp_path):
    world = World(tmp_path, now() - timedelta(hours=5))
    world.take("a", "b", "c")
    world.take("a", "b", "c")
    assert (list(world.spans), world.asked) == (["a", "b", "c"], 1)


def test_a_journal_that_has_no_entry_of_a_table_s_newest_attempt_any_more_is_no_copy_from_before(tmp_path):
    world = World(tmp_path, now() - timedelta(hours=5))
    world.learner.take("a", 7, lambda: 1)
    later = World(tmp_path, now(), knows_all=True)
    later.learner.take("a", 7, lambda: 8)
    assert (later.spans, later.journal.last_attempt()) == ({}, 1)


def test_ids_are_read_since_the_oldest_message_and_since_the_window_began_clocks_allowed_for(tmp_path):
    world = World(tmp_path, now() - timedelta(hours=5))
    world.take("a")
    assert is_near(world.spans["a"].published_since, now() - timedelta(hours=5) - CLOCKS)
    assert is_near(world.spans["a"].ingested_since, now() - timedelta(seconds=600) - CLOCKS)


@pytest.mark.parametrize(("asked_days", "wanted_days"), [(3, 3), (365, 31), (0, 1)])
def test_who_asks_for_older_ids_gets_them_as_far_back_as_pubsub_keeps_any(tmp_path, asked_days, wanted_days):
    ask_to_learn(tmp_path / "journal", now() - timedelta(days=asked_days))
    world = World(tmp_path, now() - timedelta(days=1))
    world.take("a")
    assert abs(world.spans["a"].published_since - (now() - timedelta(days=wanted_days))) < 2 * CLOCKS


@pytest.mark.parametrize(("again_days", "wanted_days"), [(3, 3), (0, 1)])
def test_ids_that_the_lease_says_may_come_again_are_read_as_far_back(tmp_path, again_days, wanted_days):
    world = World(tmp_path, now() - timedelta(days=1))
    world.lease.again_since = now() - timedelta(days=again_days)
    world.take("a")
    assert abs(world.spans["a"].published_since - (now() - timedelta(days=wanted_days))) < 2 * CLOCKS


def test_a_stream_that_learns_for_long_is_seen_to_live(tmp_path, monkeypatch):
    monkeypatch.setattr(learning_module, "_TELL_SECONDS", 0.01)
    world = World(tmp_path, now())
    world.slow.clear()
    learning = threading.Thread(target=world.take, args=("a",), daemon=True)
    learning.start()
    status = tmp_path / "status.json"
    wait_until(lambda: StatusFile.read(status) is not None, "the status is written while the ids are read")
    world.slow.set()
    learning.join(30)
    assert not learning.is_alive()
