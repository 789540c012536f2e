import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.pubsub_v1 import types
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from local.acklog import AckLog
from local.filters import parse_filter
from local.segments import MessageLog
from local.seqset import SeqSet
from local.subscription import Rules, Subscription
from local.wire import AckIds, parse_ack_ids

PubsubMessage = types.PubsubMessage.pb()
PullResponse = types.PullResponse.pb()
DAY = 86_400.0


class Bench:
    """A subscription with a clock that a test turns by hand."""

    def __init__(self, folder: Path, *, ordered: bool = False, text: str = "", deadline: int = 10) -> None:
        self.now = 1000.0
        self.folder = folder
        self.options = {"ordered": ordered, "text": text, "deadline": deadline}
        self.log = MessageLog(folder / "log", 10**15, segment_bytes=2000)
        self.opened: list[AckLog] = []
        self.open()

    def open(self) -> None:
        """Begin anew on the same files, as after a kill: what was open before is closed by :meth:`close` only."""
        self.acks = AckLog(self.folder / "acks", 0)
        self.opened.append(self.acks)
        self.subscription = Subscription(
            1,
            self.log,
            self.acks,
            parse_filter(self.options["text"]),
            Rules(self.options["deadline"], 7 * DAY),
            ordered=self.options["ordered"],
            clock=lambda: self.now,
        )

    def close(self) -> None:
        for acks in self.opened:
            acks.close()

    def publish(self, *texts: str, key: str = "", **attributes: str) -> None:
        self.log.append(
            [
                PubsubMessage(data=t.encode(), ordering_key=key, attributes=attributes).SerializeToString()
                for t in texts
            ]
        )

    def pull(self, count: int = 100, max_bytes: int = 1_000_000, **options: int) -> dict[str, str]:
        """Return the ack id of each delivered text."""
        raw = self.subscription.take(count, max_bytes, **options)
        return {m.message.data.decode(): m.ack_id for m in PullResponse.FromString(raw).received_messages}

    def ack(self, *ack_ids: str) -> None:
        self.subscription.acknowledge(parse_ack_ids(ack_ids))

    def extend(self, seconds: int, *ack_ids: str) -> None:
        self.subscription.modify_ack_deadline(parse_ack_ids(ack_ids), seconds)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def test_messages_come_once_in_order_and_not_again_while_leased(bench: Bench) -> None:
    bench.publish("a", "b", "c")
    assert list(bench.pull(2)) == ["a", "b"]
    assert list(bench.pull()) == ["c"]
    assert bench.pull() == {}


def test_an_unacknowledged_message_comes_back_after_its_deadline_and_only_it(bench: Bench) -> None:
    bench.publish("a", "b", "c")
    got = bench.pull()
    bench.ack(got["b"])
    bench.now += 9.9
    assert bench.pull() == {}
    bench.now += 0.2
    assert list(bench.pull()) == ["a", "c"]


def test_a_nack_brings_a_message_back_at_once(bench: Bench) -> None:
    bench.publish("a", "b")
    got = bench.pull()
    bench.extend(0, got["a"])
    assert list(bench.pull()) == ["a"]


def test_more_time_is_more_time_and_less_is_less(bench: Bench) -> None:
    bench.publish("a", "b", "c")
    got = bench.pull()
    bench.extend(60, got["a"])
    bench.extend(3, got["c"])
    bench.now += 4
    assert list(bench.pull()) == ["c"]
    bench.now += 7
    assert list(bench.pull()) == ["b"]
    bench.now += 50
    assert list(bench.pull()) == ["a", "b", "c"]


def test_a_late_acknowledgement_counts_even_when_the_message_went_out_again(bench: Bench) -> None:
    bench.publish("a", "b")
    first = bench.pull()
    bench.now += 11
    bench.ack(first["a"])
    second = bench.pull()
    assert list(second) == ["b"]
    bench.ack(first["b"])
    assert bench.subscription.floor == 2
    bench.ack(second["b"])
    bench.now += 11
    assert bench.pull() == {}


def test_an_acknowledgement_of_before_a_restart_counts_for_what_went_out_again(bench: Bench) -> None:
    bench.publish("a", "b")
    before = bench.pull()
    bench.open()
    bench.pull()
    bench.ack(before["a"])
    bench.now += 11
    assert list(bench.pull()) == ["b"]


def test_an_acknowledgement_of_before_a_restart_counts(bench: Bench) -> None:
    bench.publish("a", "b", "c")
    got = bench.pull()
    bench.open()
    bench.ack(got["b"])
    assert list(bench.pull()) == ["a", "c"]


def test_acknowledging_twice_or_out_of_thin_air_does_nothing(bench: Bench) -> None:
    bench.publish("a", "b")
    got = bench.pull(1)
    bench.ack(got["a"], got["a"])
    bench.ack(got["a"])
    bench.ack("0001" + "0" * 11 + "9" + got["a"][16:])
    bench.ack("0001" + "f" * 12 + "f" * 16)
    assert bench.subscription.floor == 1


def test_ids_of_another_subscription_do_nothing(bench: Bench) -> None:
    bench.publish("a")
    got = bench.pull()
    bench.ack("0002" + got["a"][4:])
    assert bench.subscription.floor == 0


def test_what_was_acknowledged_stays_so_over_a_restart_and_the_rest_comes_again(bench: Bench) -> None:
    bench.publish(*"abcdef")
    got = bench.pull()
    bench.ack(got["b"], got["e"], got["a"])
    bench.open()
    assert list(bench.pull()) == ["c", "d", "f"]


def test_a_response_keeps_to_its_bytes_but_has_one_message_at_least(bench: Bench) -> None:
    bench.publish("x" * 900, "y" * 100, "z" * 100)
    assert [text[0] for text in bench.pull(max_bytes=500)] == ["x"]
    assert [text[0] for text in bench.pull(max_bytes=500)] == ["y", "z"]
    bench.now += 11
    assert [text[0] for text in bench.pull(max_bytes=1200)] == ["x", "y"]
    assert [text[0] for text in bench.pull(max_bytes=1200)] == ["z"]


def test_messages_that_come_back_go_before_new_ones_within_the_bytes(bench: Bench) -> None:
    bench.publish("a" * 300)
    bench.pull()
    bench.publish("b" * 300, "c" * 300)
    bench.now += 11
    assert [text[0] for text in bench.pull(max_bytes=800)] == ["a", "b"]
    assert [text[0] for text in bench.pull()] == ["c"]


def test_filtered_messages_are_never_delivered_and_count_as_acknowledged(tmp_path: Path) -> None:
    bench = Bench(tmp_path, text='NOT attributes.replay = "t"')
    for n in range(30):
        bench.publish(f"keep{n}", other="x")
        bench.publish(f"drop{n}", f"drop{n}b", replay="t")
        bench.publish(f"other{n}", replay="u")
        bench.publish(f"in data: replay t {n}")
    got = bench.pull(1000)
    assert len(got) == 90
    assert not any(text.startswith("drop") for text in got)
    bench.ack(*got.values())
    assert bench.subscription.floor == 150
    bench.open()
    assert bench.pull() == {}


def test_a_filter_that_wants_a_key_refuses_what_has_none(tmp_path: Path) -> None:
    bench = Bench(tmp_path, text="attributes:wanted")
    bench.publish(*(f"no{n}" for n in range(2500)))
    bench.publish("yes", wanted="")
    assert list(bench.pull(1)) == ["yes"]


def test_the_place_behind_filtered_messages_survives_a_restart(tmp_path: Path) -> None:
    bench = Bench(tmp_path, text="attributes:wanted")
    bench.publish("no", "no", "no")
    assert bench.pull() == {}
    bench.subscription.drop_expired(0)
    bench.open()
    assert bench.subscription.floor == 3


def test_retention_drops_old_messages_also_those_that_wait(bench: Bench) -> None:
    bench.publish("a")
    got = bench.pull()
    bench.publish("b")
    bench.extend(0, *got.values())
    bench.subscription.drop_expired(bench.log.publish_time(1) + int(7 * DAY * 1e6))
    assert list(bench.pull()) == ["b"]


def test_a_seek_to_a_state_delivers_again_and_voids_old_ids(bench: Bench) -> None:
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


def test_a_seek_to_a_time_marks_everything_before_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_numbers_tell_undelivered_leased_and_age(bench: Bench) -> None:
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


def test_flow_control_counts_what_a_stream_holds(bench: Bench) -> None:
    bench.publish("a", "b", "c", "d")
    got = bench.pull(3, stream=4)
    messages, size = bench.subscription.outstanding(4)
    assert messages == 3
    assert size > 3 * 70
    bench.ack(got["a"])
    bench.extend(0, got["b"])
    assert bench.subscription.outstanding(4)[0] == 1
    bench.now += 11
    bench.pull(stream=5)
    assert bench.subscription.outstanding(4) == (0, 0)
    assert bench.subscription.outstanding(5)[0] == 3


def test_a_waiting_consumer_wakes_for_a_publish_a_nack_and_an_expiry(
    tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    bench = Bench(tmp_path)
    subscription = bench.subscription
    woken: list[bool] = []

    def wait(act: Callable[[], None]) -> None:
        woken.clear()
        thread = threading.Thread(target=lambda: (subscription.wait(20), woken.append(True)))
        thread.start()
        wait_until(lambda: subscription._waiters == 1, "the consumer waits")
        act()
        thread.join(5)
        assert woken == [True]

    wait(lambda: (bench.publish("a"), subscription.notify()))
    got = bench.pull()
    wait(lambda: bench.extend(0, got["a"]))
    bench.pull()
    bench.now += 9.95
    subscription.wait(20)
    bench.now += 0.1
    assert list(bench.pull()) == ["a"]


def test_ordered_keys_have_one_delivery_at_a_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ordered=True)
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


def test_what_follows_a_message_that_comes_back_comes_back_too(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ordered=True)
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


def test_an_expired_key_starts_again_in_order(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ordered=True)
    bench.publish("a1", "a2", key="a")
    bench.pull(1)
    bench.now += 11
    got = bench.pull()
    assert list(got) == ["a1", "a2"]
    bench.ack(*got.values())
    assert bench.subscription.floor == 2


def test_an_acknowledgement_out_of_turn_is_not_kept_over_a_restart(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ordered=True)
    bench.publish("a1", "a2", key="a")
    bench.ack(bench.pull()["a2"])
    bench.open()
    assert list(bench.pull()) == ["a1", "a2"]


def test_a_late_acknowledgement_of_a_keys_first_message_counts(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ordered=True)
    bench.publish("a1", "a2", key="a")
    got = bench.pull()
    bench.now += 11
    bench.subscription.read_backpressure()
    bench.ack(got["a1"])
    assert list(bench.pull()) == ["a2"]


class SubscriptionModel(RuleBasedStateMachine):
    """Random publishes, pulls, acks, nacks, expiries and restarts against a plain model."""

    folder: Path
    count = 0
    ordered = False

    def __init__(self) -> None:
        super().__init__()
        type(self).count += 1
        folder = self.folder / str(self.count)
        folder.mkdir()
        self.bench = Bench(folder, ordered=self.ordered)
        self.published = 0
        self.acked: set[str] = set()
        self.ids: dict[str, str] = {}
        self.leased: dict[str, float] = {}

    @rule(count=st.integers(1, 4), key=st.sampled_from(["", "a", "b"]))
    def publish(self, count: int, key: str) -> None:
        names = [f"{key}:{self.published + n}" for n in range(count)]
        self.published += count
        self.bench.publish(*names, key=key)

    @rule(count=st.integers(1, 6))
    def pull(self, count: int) -> None:
        for name, ack_id in self.bench.pull(count).items():
            if not self.ordered or name.startswith(":"):
                assert name not in self.acked
                assert self.leased.get(name, 0) <= self.bench.now
            self.ids[name] = ack_id
            self.leased[name] = self.bench.now + 10

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        if self.ids:
            names = data.draw(st.lists(st.sampled_from(sorted(self.ids)), unique=True))
            self.bench.ack(*(self.ids[name] for name in names))
            self.acked |= set(names)

    @rule(data=st.data())
    def nack(self, data: st.DataObject) -> None:
        if self.ids:
            name = data.draw(st.sampled_from(sorted(self.ids)))
            self.bench.extend(0, self.ids[name])
            self.leased.pop(name, None)

    @rule(seconds=st.sampled_from([4, 11]))
    def pass_time(self, seconds: int) -> None:
        self.bench.now += seconds

    @rule()
    def restart(self) -> None:
        self.bench.open()
        self.leased.clear()

    @invariant()
    def nothing_unacknowledged_is_lost(self) -> None:
        state = self.bench.subscription.read_state()
        assert state.count_missing(self.published) >= self.published - len(self.acked)

    def teardown(self) -> None:
        self.bench.now += 1000
        rest: set[str] = set()
        order: dict[str, list[int]] = {}
        while got := self.bench.pull(3):
            for name in got:
                key, _, number = name.partition(":")
                order.setdefault(key, []).append(int(number))
            rest |= got.keys()
            self.bench.ack(*got.values())
        assert self.bench.subscription.floor == self.published
        assert len(rest | self.acked) == self.published
        if not self.ordered:
            assert not rest & self.acked
        else:
            assert all(numbers == sorted(numbers) for key, numbers in order.items() if key)
        self.bench.close()


@pytest.mark.parametrize("ordered", [False, True])
def test_nothing_is_lost_and_nothing_acknowledged_comes_again_whatever_happens(
    tmp_path: Path, ordered: bool
) -> None:
    class Model(SubscriptionModel):
        pass

    Model.folder = tmp_path
    Model.ordered = ordered
    run_state_machine_as_test(
        Model,
        settings=settings(
            max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_leases_of_thousands_are_split_by_acks_and_deadlines(bench: Bench) -> None:
    bench.publish(*(f"{n}" for n in range(1000)))
    got = bench.pull(1000)
    ids = list(got.values())
    bench.ack(*ids[::3], *ids[1::3])
    bench.now += 11
    assert len(bench.pull(2000)) == 333


def test_a_state_below_what_is_on_disk_is_lifted(bench: Bench) -> None:
    for n in range(60):
        bench.publish(f"{n}" * 20)
    bench.ack(*bench.pull(100).values())
    assert bench.log.delete_before(60) > 0
    bench.subscription.seek(SeqSet(0))
    assert len(bench.pull(100)) == 60 - bench.log.first_seq


def test_no_ids_are_no_work(bench: Bench) -> None:
    empty: AckIds = parse_ack_ids([])
    bench.subscription.acknowledge(empty)
    bench.subscription.modify_ack_deadline(empty, 0)
    assert bench.subscription.floor == 0


def test_late_acknowledgements_among_many_waiting_messages_take_out_the_right_ones(bench: Bench) -> None:
    bench.publish(*(f"{n}" for n in range(500)))
    got = bench.pull(500)
    bench.publish("new")
    bench.now += 11
    bench.subscription.read_backpressure()
    bench.ack(*(got[f"{n}"] for n in (0, 7, 499)))
    again = bench.pull(1000)
    assert list(again) == [f"{n}" for n in range(500) if n not in {0, 7, 499}] + ["new"]
    bench.ack(*again.values())
    assert bench.subscription.floor == 501
