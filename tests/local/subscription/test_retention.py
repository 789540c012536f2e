"""What is dropped when it is old, and where a seek takes a subscription."""

from typing import Any

import pytest

from local.seqset import SeqSet

DAY = 86_400.0


def test_retention_drops_old_messages_also_those_that_wait(bench: Any) -> None:
    bench.publish("a")
    got = bench.pull()
    bench.publish("b")
    bench.extend(0, *got.values())
    bench.subscription.drop_expired(bench.log.publish_time(1) + int(7 * DAY * 1e6))
    assert list(bench.pull()) == ["b"]


def test_a_seek_to_a_state_delivers_again_and_voids_old_ids(bench: Any) -> None:
    bench.publish("a", "b")
    got = bench.pull()
    state = bench.subscription.read_state()
    bench.ack(got["a"])
    bench.publish("c")
    bench.subscription.seek(state)
    bench.ack(*got.values())
    assert list(bench.pull()) == ["a", "b", "c"]
    bench.open()
    assert list(bench.pull()) == ["a", "b", "c"]


def test_a_seek_to_a_time_marks_everything_before_it(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000, 1010))
    monkeypatch.setattr("local.segments.time.time_ns", lambda: next(clock) * 1000)
    for text in "abcde":
        bench.publish(text)
    got = bench.pull()
    bench.ack(got["d"])
    bench.subscription.seek_to_time(1002, first_retained_seq=5)
    again = bench.pull()
    assert list(again) == ["c", "e"]
    bench.subscription.seek_to_time(0, first_retained_seq=0)
    assert list(bench.pull()) == ["a", "b", "c", "d", "e"]
    bench.subscription.seek_to_time(5000, first_retained_seq=0)
    assert bench.pull() == {}
    assert bench.subscription.floor == 5


def test_a_state_below_what_is_on_disk_is_lifted(bench: Any) -> None:
    for n in range(60):
        bench.publish(f"{n}" * 20)
    bench.ack(*bench.pull(100).values())
    assert bench.log.delete_before(60) > 0
    bench.subscription.seek(SeqSet(0))
    assert len(bench.pull(100)) == 60 - bench.log.first_seq
