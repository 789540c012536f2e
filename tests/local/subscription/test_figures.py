"""What a subscription says of itself: what waits, what is out, what a stream holds."""


def test_numbers_tell_undelivered_leased_and_age(bench):
    bench.publish("a", "b", "c")
    assert bench.subscription.read_backpressure().undelivered_messages == 3
    got = bench.pull(2)
    bench.ack(got["a"])
    numbers = bench.subscription.read_backpressure()
    assert (numbers.undelivered_messages, numbers.leased_messages) == (2, 1)
    assert 0 <= numbers.oldest_unacked_seconds < 60
    bench.now += 11
    assert bench.subscription.read_backpressure().leased_messages == 0
    bench.ack(*bench.pull().values())
    assert bench.subscription.read_backpressure().oldest_unacked_seconds == 0
