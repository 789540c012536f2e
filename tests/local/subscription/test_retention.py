"""What is dropped when it is old, and where a seek takes a subscription."""

import threading

from local.seqset import SeqSet
from tests.waiting import wait_until

DAY = 86_400.0


def test_retention_drops_old_messages_also_those_that_wait(bench):
    bench.publish("a")
    got = bench.pull()
    bench.publish("b")
    bench.extend(0, *got.values())
    bench.subscription.drop_expired(bench.log.publish_time(1) + int(7 * DAY * 1e6))
    assert list(bench.pull()) == ["b"]


def test_a_seek_to_a_state_delivers_again_and_voids_old_ids(bench):
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


def test_a_seek_to_a_time_marks_everything_before_it(bench, monkeypatch):
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


def test_a_state_below_what_is_on_disk_is_lifted(bench):
    for n in range(60):
        bench.publish(f"{n}" * 20)
    bench.ack(*bench.pull(100).values())
    assert bench.log.delete_before(60) > 0
    bench.subscription.seek(SeqSet(0))
    assert len(bench.pull(100)) == 60 - bench.log.first_seq


def test_a_delayed_seek_goes_on_with_what_it_holds_for_done_and_brings_the_rest_later(bench):
    bench.publish("a", "b")
    got = bench.pull()
    bench.ack(got["a"])
    state = bench.subscription.read_state()
    bench.extend(0, got["b"])
    # From "a" on all is wanted, but for "b", which is open now and done in the state.
    state = SeqSet(0, [(1, 2)])
    bench.subscription.seek(state, effect_seconds=60)
    assert list(bench.pull()) == ["b"]
    bench.publish("c")
    assert list(bench.pull()) == ["c"]
    assert bench.pull() == {}
    bench.now += 60
    bench.subscription.expire_leases()
    assert list(bench.pull()) == ["a", "c"]


def test_an_acknowledgement_during_a_delayed_seek_counts_where_the_seek_has_not_made_it_new(bench):
    bench.publish("a")
    state = bench.subscription.read_state()
    before = bench.pull()
    bench.subscription.seek(state, effect_seconds=60)
    bench.ack(before["a"])
    bench.publish("b")
    got = bench.pull()
    assert list(got) == ["a", "b"]
    bench.ack(got["b"])
    bench.now += 60
    assert list(bench.pull()) == ["a"]


def test_a_delayed_seek_is_durable_when_it_is_answered(bench):
    bench.publish("a", "b")
    state = bench.subscription.read_state()
    bench.ack(*bench.pull().values())
    bench.subscription.seek(state, effect_seconds=60)
    bench.publish("c")
    bench.open()
    assert list(bench.pull()) == ["a", "b", "c"]


def test_a_consumer_that_waits_is_woken_when_a_delayed_seek_takes_effect(bench):
    bench.publish("a")
    state = bench.subscription.read_state()
    bench.ack(*bench.pull().values())
    bench.subscription.seek(state, effect_seconds=60)
    bell = threading.Event()
    waiting = threading.Thread(target=bench.subscription.wait, args=(bell, 10.0), daemon=True)
    waiting.start()
    wait_until(lambda: len(bench.subscription._waiting) == 1, "the consumer waits")
    bench.now += 60
    bench.subscription.expire_leases()
    waiting.join(5)
    assert bell.is_set()
    assert list(bench.pull()) == ["a"]


def test_a_second_seek_during_a_delayed_one_is_what_takes_effect(bench):
    bench.publish("a", "b")
    nothing = bench.subscription.read_state()
    bench.ack(*bench.pull().values())
    everything = bench.subscription.read_state()
    bench.subscription.seek(nothing, effect_seconds=60)
    bench.subscription.seek(everything, effect_seconds=60)
    assert bench.pull() == {}
    bench.now += 60
    assert bench.pull() == {}
    assert bench.subscription.read_backpressure().undelivered_messages == 0
