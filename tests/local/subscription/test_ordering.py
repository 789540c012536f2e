"""Ordering keys: one delivery of a key at a time, in order, over nacks and restarts."""

import pytest

from local.segments import SEGMENT_BYTES
from local.status import StatusError


def test_ordered_keys_have_one_delivery_at_a_time(open_bench):
    bench = open_bench(ordered=True)
    bench.publish("a1", "a2", "a3", key="a")
    bench.publish("b1", "b2", key="b")
    bench.publish("free")
    first = bench.pull(2)
    assert list(first) == ["a1", "a2"]
    assert list(bench.pull()) == ["b1", "b2", "free"]
    assert bench.pull() == {}
    bench.ack(first["a1"])
    assert bench.pull() == {}
    bench.ack(first["a2"])
    assert list(bench.pull()) == ["a3"]


def test_what_follows_a_message_that_comes_back_comes_back_too(open_bench):
    bench = open_bench(ordered=True)
    bench.publish("a1", "a2", "a3", "a4", key="a")
    bench.publish("b1", key="b")
    got = bench.pull()
    bench.ack(got["a1"], got["a3"], got["b1"])
    bench.extend(0, got["a2"])
    again = bench.pull()
    assert list(again) == ["a2", "a3", "a4"]
    bench.ack(got["a4"])
    bench.ack(again["a2"])
    bench.now += 11
    assert list(bench.pull()) == ["a3", "a4"]


def test_an_acknowledgement_out_of_turn_is_not_kept_over_a_restart(open_bench):
    bench = open_bench(ordered=True)
    bench.publish("a1", "a2", key="a")
    bench.ack(bench.pull()["a2"])
    bench.open()
    assert list(bench.pull()) == ["a1", "a2"]


def test_a_late_acknowledgement_of_a_keys_first_message_counts(open_bench):
    bench = open_bench(ordered=True)
    bench.publish("a1", "a2", key="a")
    got = bench.pull()
    bench.now += 11
    bench.subscription.read_backpressure()
    bench.ack(got["a1"])
    assert list(bench.pull()) == ["a2"]


def test_a_key_with_many_messages_waiting_holds_up_no_other_key(open_bench):
    bench = open_bench(ordered=True)
    bench.log._segment_bytes = SEGMENT_BYTES
    bench.publish("hot 0", key="hot")
    hot = bench.pull()
    for start in range(1, 20_501, 500):
        bench.publish(*(f"hot {n}" for n in range(start, start + 500)), key="hot")
    bench.publish("b1", "b2", key="b")
    bench.publish("free")
    got = []
    for _ in range(100):
        got += bench.pull()
        if len(got) == 3:
            break
    assert got == ["b1", "b2", "free"]
    bench.ack(*hot.values())
    assert list(bench.pull(3)) == ["hot 1", "hot 2", "hot 3"]


def test_a_key_keeps_its_order_however_its_messages_end(open_bench):
    bench = open_bench(ordered=True)
    texts = [f"{n}" for n in range(3000)]
    bench.publish(*texts, key="a")
    got = []
    while batch := bench.pull(700):
        names = list(batch)
        if len(got) < 1400:
            # Of every delivery the last hundred come back.
            bench.ack(*(batch[name] for name in names[:-100]))
            bench.extend(0, batch[names[-100]])
            names = names[:-100]
        else:
            bench.ack(*batch.values())
        got += names
    assert got == texts
    assert bench.subscription.floor == 3000
    assert not bench.subscription._backlog._keys
    assert not bench.subscription._backlog._key_of


def test_a_log_that_cannot_be_read_for_a_while_loses_no_ordered_message(open_bench, monkeypatch):
    bench = open_bench(ordered=True)
    bench.publish("a1", "a2", key="a")

    def fail(*_):
        raise StatusError.unavailable("The disk is away.")

    with monkeypatch.context() as patch:
        patch.setattr(bench.log, "read", fail)
        with pytest.raises(StatusError, match="away"):
            bench.pull()
    assert list(bench.pull()) == ["a1", "a2"]
