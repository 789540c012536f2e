from types import SimpleNamespace

import pytest

from connectors.bigquery.writes import stream_ends
from connectors.bigquery.writes.part_writer import PendingRows
from connectors.bigquery.writes.stream_ends import StreamBudget, StreamEnds, created_streams, flushes_of


def kept(stream: str, first: int, end: int) -> PendingRows:
    return PendingRows("shop.staging.orders", stream, None, first, end)


def test_a_part_behind_one_that_does_not_follow_does_not_follow_either():
    assert StreamEnds().which_follow([[kept("a", 0, 1), kept("b", 1, 2)], [kept("a", 1, 2)]]) == [False, False]


def test_what_was_asked_and_not_committed_is_no_ground_for_the_next_part():
    ends = StreamEnds()
    assert ends.which_follow([[kept("a", 0, 1)]]) == [True]
    assert ends.which_follow([[kept("a", 1, 2)]]) == [False]


def test_nothing_follows_in_a_stream_that_was_given_up():
    ends = StreamEnds()
    ends.commit([kept("a", 0, 2)])
    ends.give_up("a")
    assert ends.which_follow([[kept("a", 2, 3)]]) == [False]


def test_a_part_without_a_kept_stream_depends_on_no_other():
    assert StreamEnds().which_follow([[PendingRows("t", "pending", None)], []]) == [True, True]


def test_a_stream_is_flushed_once_for_all_its_parts_and_known_by_each_one_s_time():
    tables = [(kept("a", 0, 2), "t1"), (kept("b", 0, 1), "t1"), (kept("a", 2, 5), "t2")]
    assert flushes_of([*tables, (PendingRows("t", "pending", None), "t3")]) == [
        {"stream": "a", "end": 5, "ingest_times": ["t1", "t2"]},
        {"stream": "b", "end": 1, "ingest_times": ["t1"]},
    ]


def test_streams_are_counted_where_they_begin():
    tables = [kept("a", 0, 2), kept("a", 2, 5), PendingRows("t", "pending", None), PendingRows("t", None, None)]
    assert created_streams(tables) == 2


def test_no_hour_has_more_streams_than_allowed(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(stream_ends, "time", SimpleNamespace(monotonic=lambda: now))
    budget = StreamBudget(400)
    spent = 0
    while now < 1000.0 + 3600:
        spent += 1
        now += budget.spend(1)
    assert 390 <= spent <= 401
    now += 3600
    assert budget.spend(60) == budget.spend(40) == 0.0
    assert budget.spend(3) == pytest.approx(3 * 3600 / 300)
