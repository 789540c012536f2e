"""What a subscription's filter leaves out counts as acknowledged."""


def test_a_filter_that_wants_a_key_refuses_what_has_none(open_bench):
    bench = open_bench(text="attributes:wanted")
    bench.publish(*(f"no{n}" for n in range(2500)))
    bench.publish("yes", wanted="")
    assert list(bench.pull(1)) == ["yes"]


def test_the_place_behind_filtered_messages_survives_a_restart(open_bench):
    bench = open_bench(text="attributes:wanted")
    bench.publish("no", "no", "no")
    assert bench.pull() == {}
    bench.subscription.drop_expired(0)
    bench.open()
    assert bench.subscription.floor == 3
