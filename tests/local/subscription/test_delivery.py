"""What a subscription gives within its bounds, and who wakes; test_histories.py has when a message comes again."""

import threading

from tests.waiting import wait_until


def test_ids_that_come_twice_out_of_thin_air_or_of_another_subscription_do_nothing(bench):
    bench.publish("a", "b")
    got = bench.pull(2)
    bench.ack("0002" + got["b"][4:])
    bench.ack(got["a"], got["a"])
    bench.ack(got["a"])
    bench.ack("0001" + "0" * 11 + "9" + got["a"][16:])
    bench.ack("0001" + "f" * 12 + "f" * 16)
    assert bench.subscription.floor == 1


def test_a_response_keeps_to_its_bytes_but_has_one_message_at_least(bench):
    bench.publish("x" * 900, "y" * 100, "z" * 100)
    assert [text[0] for text in bench.pull(max_bytes=500)] == ["x"]
    assert [text[0] for text in bench.pull(max_bytes=500)] == ["y", "z"]
    bench.now += 11
    assert [text[0] for text in bench.pull(max_bytes=1200)] == ["x", "y"]
    assert [text[0] for text in bench.pull(max_bytes=1200)] == ["z"]


def test_a_waiting_consumer_wakes_for_a_publish_a_nack_and_an_expiry(bench):
    subscription = bench.subscription
    bell = threading.Event()

    def wait(act):
        bell.clear()
        thread = threading.Thread(target=lambda: subscription.wait(bell, 20), daemon=True)
        thread.start()
        wait_until(lambda: len(subscription._waiting) == 1, "the consumer waits")
        act()
        thread.join(5)
        assert not thread.is_alive()
        assert not subscription._waiting

    wait(lambda: (bench.publish("a"), subscription.notify()))
    got = bench.pull()
    wait(lambda: bench.extend(0, got["a"]))
    bench.pull()
    bench.now += 9.9
    subscription.expire_leases()
    assert bench.pull() == {}
    bench.now += 0.2
    wait(subscription.expire_leases)
    assert list(bench.pull()) == ["a"]


def test_a_publish_wakes_one_of_many_consumers_and_what_it_leaves_the_next(bench):
    subscription = bench.subscription
    wakes = []
    got = []
    over = threading.Event()

    def consume():
        bell = threading.Event()
        while not over.is_set():
            bell.clear()
            got.extend(bench.pull(2))
            subscription.wait(bell, 20, over.is_set)
            wakes.append(1)

    consumers = [threading.Thread(target=consume, daemon=True) for _ in range(20)]
    for consumer in consumers:
        consumer.start()
    wait_until(lambda: len(subscription._waiting) == 20, "all wait")
    for expected, texts in enumerate((["a"], ["b"], ["c"]), 1):
        bench.publish(*texts)
        subscription.notify()
        wait_until(lambda: len(got) == expected and len(subscription._waiting) == 20, "one has it")  # noqa: B023
    assert len(wakes) == 3
    bench.publish("d", "e", "f", "g", "h")
    subscription.notify()
    wait_until(lambda: len(got) == 8 and len(subscription._waiting) == 20, "three have them")
    # Four bells, and who has taken its part and is back before the rest is taken looks again: not all 20.
    assert len(wakes) <= 3 + 4 + 3
    over.set()
    subscription.wake()
    for consumer in consumers:
        consumer.join(5)
        assert not consumer.is_alive()
