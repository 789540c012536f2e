import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest
from google.pubsub_v1 import types

from connectors.pubsub import pull as pull_module
from connectors.pubsub.acks import acknowledge, extend_each
from connectors.pubsub.channel import open_channel
from connectors.pubsub.client import PubSub
from connectors.pubsub.publish import Publisher
from connectors.pubsub.pull import PULLED_SCHEMA, BatchPull, Puller, PullLimits, PullTarget
from local.server import PubSubServer
from model.errors import SubscriptionNotFoundError
from model.message import Message

SHORT = PullLimits(idle_seconds=2.0, linger_seconds=0.3, backlog_seconds=1.0, max_bytes=10**9)


@pytest.fixture
def target(pubsub):
    pubsub.create_topic("orders")
    pubsub.create_subscription("held", "orders", ack_deadline_seconds=10)
    return PullTarget(pubsub.subscription_path("held"), "held", "orders", 10)


def publish(pubsub, *messages: Message, topic: str = "orders") -> list[str]:
    return Publisher(pubsub.channel, pubsub.topic_path(topic)).publish(messages)


def pull(pubsub, *targets: PullTarget, limits: PullLimits = SHORT) -> tuple[BatchPull, pa.Table]:
    """Pull one batch with a puller of its own, which gives back at once what comes later."""
    puller = Puller(lambda: pubsub.channel)
    batch = puller.start_batch(targets)
    table = pa.Table.from_batches([b.rows for b in batch.pull(limits, lambda: False)], PULLED_SCHEMA)
    puller.give_back()
    return batch, table


def test_a_batch_of_nothing_ends_after_the_idle_time(pubsub, target):
    began = time.monotonic()
    _, table = pull(pubsub, target, limits=PullLimits(0.3, 9, 9, 10**9))
    assert table.num_rows == 0
    assert time.monotonic() - began < 5


def test_a_backlog_goes_on_past_the_linger_time_and_ends_at_the_size(pubsub, target):
    for _ in range(10):
        publish(pubsub, *[Message(b"x" * 1000)] * 1000)
    _, whole = pull(pubsub, target, limits=PullLimits(2, 0.0, 5, 10**9))
    assert whole.num_rows == 10_000
    acknowledge(pubsub.channel, target.path, whole.column("ack_id").combine_chunks())
    for _ in range(10):
        publish(pubsub, *[Message(b"x" * 1000)] * 1000)
    _, bounded = pull(pubsub, target, limits=PullLimits(2, 5, 5, 2_000_000))
    # The Pulls in flight when the size is reached are taken too.
    assert 1_000 < bounded.num_rows < 10_000


@pytest.mark.parametrize("waited_seconds", [0.0, 100.0], ids=["keeps up", "has a backlog"])
def test_a_batch_of_many_subscriptions_lasts_longer(pubsub, target, monkeypatch, waited_seconds):
    """A second for each hundred, and here five seconds for one."""
    monkeypatch.setattr(pull_module, "_SUBSCRIPTIONS_PER_SECOND", 0.2)
    monkeypatch.setattr(pull_module, "_QUICK_SECONDS", 60.0)
    monkeypatch.setattr(pull_module, "_waited_seconds", lambda *_: waited_seconds)
    publish(pubsub, *[Message(b"x")] * pull_module.MAX_PULL_MESSAGES)
    puller = Puller(lambda: pubsub.channel)
    parts = puller.start_batch([target]).pull(PullLimits(5, 0.0, 0.0, 10**9), lambda: False)
    assert next(parts).rows.num_rows == pull_module.MAX_PULL_MESSAGES
    publish(pubsub, Message(b"later"))
    assert next(parts).rows.num_rows == 1
    puller.give_back()


def test_a_batch_lasts_no_longer_for_a_topic_that_it_keeps_up_with(pubsub, target):
    """Each Pull of a steady topic brings a part of a full one at once, as those of a backlog may."""
    is_over = threading.Event()

    def publish_steadily():
        while not is_over.wait(0.01):
            publish(pubsub, *[Message(b"x" * 100)] * 300)

    publisher = threading.Thread(target=publish_steadily)
    publisher.start()
    try:
        began = time.monotonic()
        _, table = pull(pubsub, target, limits=PullLimits(5, 1.0, 10, 10**9))
        assert time.monotonic() - began < 5
    finally:
        is_over.set()
        publisher.join()
    assert table.num_rows > 1000


@pytest.mark.parametrize(
    ("ages", "seconds"), [([3.0, 2.0, 9.0], 2.0), ([0.0], 0.0), ([-5.0, 1.0], -5.0), ([], 0.0)]
)
def test_an_answer_has_waited_for_as_long_as_the_newest_of_its_messages(ages, seconds):
    now = 1_700_000_000.0
    times = pa.array([int((now - age) * 1e6) for age in ages], pa.timestamp("us", tz="UTC"))
    rows = pa.record_batch({"publish_time": times})
    assert pull_module._waited_seconds(rows, now) == seconds


def test_an_answer_that_is_larger_than_a_full_one_is_full():
    """Messages of megabytes: no average is wanted to see that more of them wait."""
    assert pull_module._fullness(3, 10**9) == pull_module._fullness(pull_module.MAX_PULL_MESSAGES, 3) == 1


def test_a_backlog_is_a_backlog_when_pulls_bring_only_a_part_or_nothing(tmp_path, monkeypatch):
    limits = PullLimits(idle_seconds=5, linger_seconds=0.0, backlog_seconds=20, max_bytes=10_000_000)
    monkeypatch.setattr(pull_module, "_QUICK_SECONDS", 2.0)
    with PubSubServer(tmp_path, partial_pulls=True) as server, PubSub("shop", server.emulator_host) as pubsub:
        pubsub.create_topic("orders")
        pubsub.create_subscription("held", "orders", ack_deadline_seconds=60)
        target = PullTarget(pubsub.subscription_path("held"), "held", "orders", 60)
        for _ in range(40):
            publish(pubsub, *[Message(b"x" * 1000)] * 1000)
        puller = Puller(lambda: pubsub.channel)
        batch = puller.start_batch([target])
        in_flight: list[int] = []
        sizes: list[int] = []
        for part in batch.pull(limits, lambda: False):
            in_flight.append(len(puller._flying))
            sizes.append(part.rows.num_rows)
        puller.give_back()
    # Not one of them is full, and the batch goes on to its size all the same.
    assert max(sizes) <= 1000
    assert sum(sizes) * 1000 > 9_000_000
    assert max(in_flight) >= 2


@pytest.mark.parametrize(
    ("answers", "allowed", "is_backlog"),
    [
        ([(1.0, 0.0)], 2, True),
        ([(1.0, 0.0)] * 5, 4, True),
        ([(1.0, 9.0)], 2, True),
        ([(1.0, 0.0)] * 5 + [(0.03, 0.5)] * 2, 4, True),
        ([(0.4, 0.0), (0.7, 0.0), (0.0, 0.0), (0.3, 0.0), (0.05, 0.0), (0.6, 0.0)], 4, True),
        ([(0.005, 0.0)] * 9, 2, False),
        ([(1.0, 0.0)] * 5 + [(0.003, 9.0)] * 9, 1, False),
        ([(1.0, 0.0)] * 5 + [(0.0, 9.0)], 1, False),
        ([(0.0, 0.0)] * 9, 1, False),
    ],
)
def test_pulls_in_flight_follow_how_full_the_last_ones_came_back_at_once(answers, allowed, is_backlog):
    lane = pull_module._Lane(PullTarget("s", "s", "t", 10), b"", None)
    for fullness, seconds in answers:
        last = lane.note(fullness, is_quick=seconds < 0.2)
    assert (lane.allowed, last) == (allowed, is_backlog)


class OneEach:
    """A channel whose every Pull brings one message at once."""

    def __init__(self) -> None:
        self.pulls = 0
        received = types.ReceivedMessage.pb()(
            ack_id="a", message=types.PubsubMessage.pb()(data=b"x", message_id="1")
        )
        self._response = types.PullResponse.pb()(received_messages=[received]).SerializeToString()

    def unary_unary(self, *_, **__):
        return self

    def future(self, *_, **__):
        self.pulls += 1
        future = Future()
        future.set_result(self._response)
        return future


def test_a_batch_of_many_subscriptions_lasts_longer_and_asks_each_less_often():
    channel = OneEach()
    targets = [PullTarget(f"path-{number}", f"sub-{number}", "orders", 10) for number in range(40)]
    began = time.monotonic()
    batches = list(Puller(lambda: channel).start_batch(targets).pull(PullLimits(1, 0, 0, 10**9), lambda: False))
    assert time.monotonic() - began >= 40 / 100
    assert {batch.target for batch in batches} == set(targets)
    # At once, after 0.2 s, and at the end perhaps: without a rest they would be thousands.
    assert 40 <= channel.pulls <= 3 * 40


def test_a_subscription_that_is_gone_is_named_and_the_others_go_on(pubsub, target):
    gone = PullTarget(pubsub.subscription_path("gone"), "gone", "orders", 10)
    publish(pubsub, Message(b"x"))
    puller, table = pull(pubsub, gone, target)
    assert table.num_rows == 1
    assert isinstance(puller.faults["gone"], SubscriptionNotFoundError)


def test_stopping_ends_a_batch_at_once_and_keeps_what_came(pubsub, target):
    publish(pubsub, Message(b"x"))
    stopping = threading.Event()
    rows = 0
    began = time.monotonic()
    for batch in (
        Puller(lambda: pubsub.channel).start_batch([target]).pull(PullLimits(30, 30, 30, 10**9), stopping.is_set)
    ):
        rows += batch.rows.num_rows
        stopping.set()
    assert rows == 1
    assert time.monotonic() - began < 10


def note_extensions(monkeypatch) -> list[tuple[str, list[str], int]]:
    """Return a list that leases are put into which would be extended."""
    extended: list[tuple[str, list[str], int]] = []

    def note(_, held):
        for path, ack_ids, seconds in held:
            extended.append((path, ack_ids.to_pylist(), seconds))
            yield path, None

    monkeypatch.setattr(pull_module, "extend_each", note)
    return extended


def test_leases_are_extended_while_a_batch_is_pulled(pubsub, target, monkeypatch):
    extended = note_extensions(monkeypatch)
    publish(pubsub, Message(b"x"))
    hurried = replace(target, ack_deadline_seconds=0)  # a third of it is over at once
    _, table = pull(pubsub, hurried)
    assert extended
    assert extended[-1] == (target.path, table.column("ack_id").to_pylist(), 0)


def test_leases_that_are_young_are_left_alone(pubsub, target, monkeypatch):
    extended = note_extensions(monkeypatch)
    publish(pubsub, Message(b"x"))
    batch, _ = pull(pubsub, target)
    assert extended == []
    batch.extend_leases(at_once=True)
    assert len(extended) == 1


def test_what_comes_between_two_batches_is_in_the_next_one_and_not_a_lease_late(pubsub, target):
    """The promise behind a latency of seconds: a Pull in flight at a batch's end is not cancelled."""
    puller = Puller(lambda: pubsub.channel)
    publish(pubsub, Message(b"first"))
    first = [b.rows for b in puller.start_batch([target]).pull(SHORT, lambda: False)]
    publish(pubsub, Message(b"between"))
    second = [b.rows for b in puller.start_batch([target]).pull(SHORT, lambda: False)]
    assert [row["data"] for rows in first for row in rows.to_pylist()] == [b"first"]
    assert [row["data"] for rows in second for row in rows.to_pylist()] == [b"between"]
    puller.give_back()


def test_what_no_batch_takes_is_given_back_for_others_within_seconds(pubsub, target):
    resting = Puller(lambda: pubsub.channel)
    list(resting.start_batch([target]).pull(PullLimits(0.3, 0.1, 0.1, 10**9), lambda: False))
    publish(pubsub, Message(b"taken by the resting puller"))
    # Its Pull in flight takes the message; this one gets it well before the lease of 10 s runs out.
    _, table = pull(pubsub, target, limits=PullLimits(6, 0.1, 0.1, 10**9))
    assert table.num_rows == 1


def make_targets(pubsub, count: int) -> list[PullTarget]:
    """Return subscriptions of a quiet topic, and a last one of the topic ``busy``."""
    pubsub.create_topic("quiet")
    pubsub.create_topic("busy")
    targets = []
    for number in range(count):
        topic, name = "busy" if number == count - 1 else "quiet", f"held-{number}"
        pubsub.create_subscription(name, topic, ack_deadline_seconds=10)
        targets.append(PullTarget(pubsub.subscription_path(name), name, topic, 10))
    return targets


def test_a_message_does_not_wait_behind_pulls_of_other_subscriptions_that_wait_for_theirs(pubsub, server):
    # The server takes a hundred calls a connection, as Google's front end does.
    targets = make_targets(pubsub, 150)
    puller = Puller(partial(open_channel, server.emulator_host))
    publish(pubsub, Message(b"1", {}), topic="busy")
    began = time.monotonic()
    batches = list(puller.start_batch(targets).pull(PullLimits(20, 0.1, 0.1, 10**9), lambda: False))
    puller.give_back()
    assert [batch.target.subscription for batch in batches] == ["held-149"]
    assert time.monotonic() - began < 10


def test_every_subscription_has_its_turn_where_there_are_more_than_pulls_in_flight(pubsub, monkeypatch):
    monkeypatch.setattr("connectors.pubsub.pull.MAX_IN_FLIGHT", 2)
    targets = make_targets(pubsub, 5)
    monkeypatch.setattr("connectors.pubsub.pull._SHORT_PULL_SECONDS", 0.2)
    publish(pubsub, Message(b"1", {}), topic="busy")
    puller = Puller(lambda: pubsub.channel)
    batches = list(puller.start_batch(targets).pull(PullLimits(20, 0.1, 0.1, 10**9), lambda: False))
    puller.give_back()
    assert [batch.target.subscription for batch in batches] == ["held-4"]


def test_processes_that_die_young_come_to_every_subscription_in_the_end(pubsub, monkeypatch):
    monkeypatch.setattr("connectors.pubsub.pull.MAX_IN_FLIGHT", 1)
    targets = make_targets(pubsub, 4)[:3]
    publish(pubsub, Message(b"1", {}), topic="quiet")
    served = set()
    for _ in range(100):
        # Its first answer is all that it lives for.
        puller = Puller(lambda: pubsub.channel)
        (batch,) = puller.start_batch(targets).pull(PullLimits(20, 0.1, 0.1, 1), lambda: False)
        puller.give_back()
        assert list(extend_each(pubsub.channel, [(batch.target.path, batch.rows.column("ack_id"), 0)])) == [
            (batch.target.path, None)
        ]
        served.add(batch.target)
        if served == set(targets):
            return
    assert served == set(targets)


@pytest.mark.parametrize(("age_seconds", "is_longer"), [(0.0, False), (60.0, True)])
def test_a_batch_is_longer_than_a_backlog_wants_where_messages_waited_for_longer(
    pubsub, target, monkeypatch, age_seconds, is_longer
):
    """A stream that keeps up has messages that waited for its last batch: these make no batch longer."""
    waited = pull_module._waited_seconds
    monkeypatch.setattr(pull_module, "_waited_seconds", lambda rows, now: waited(rows, now) + age_seconds + 0.2)
    monkeypatch.setattr(pull_module, "_QUICK_SECONDS", 2.0)
    for _ in range(5):
        publish(pubsub, *[Message(b"x" * 1000)] * 1000)
    timer = threading.Timer(0.7, publish, (pubsub, *[Message(b"later")] * 300))
    timer.start()
    try:
        limits = PullLimits(5, 0.1, 0.3, 10**9, longest_seconds=1.5)
        _, table = pull(pubsub, target, limits=limits)
        assert (table.num_rows > 5_000) is is_longer
    finally:
        timer.join()
