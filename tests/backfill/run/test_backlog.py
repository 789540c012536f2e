from dataclasses import dataclass, field

import pytest

from backfill.plan.request import YieldTo
from backfill.run.backlog import BacklogThrottle, BacklogWatch, PublishedRate, open_throttle
from backfill.run.progress import CheckpointFolder, SliceCheckpoint
from connectors.pubsub.client import PubSub
from connectors.pubsub.publish import Publisher
from model.errors import PubSubError, PubSubUnavailableError, SubscriptionNotFoundError
from model.message import Message
from tests.waiting import wait_until


@dataclass
class Ages:
    """A backlog whose ages the test writes; an error is raised."""

    ages: list[float | Exception] = field(default_factory=list)
    every_seconds: float = 1.0

    def read_oldest_unacked_seconds(self) -> float:
        age = self.ages.pop(0)
        if isinstance(age, Exception):
            raise age
        return age

    def close(self) -> None: ...


def limits(throttle: BacklogThrottle, *ages: float) -> list[float | None]:
    found: list[float | None] = []
    for age in ages:
        throttle.see(age)
        found.append(throttle.limit())
    return found


@pytest.mark.parametrize(
    ("rate", "ages", "expected"),
    [
        # A young backlog is no limit.
        (1000.0, [0, 10, 29.9], [None, None, None]),
        # Above half of the limit the rate is halved, above the limit it stops.
        (1000.0, [31, 40, 61, 1e9], [500.0, 250.0, 0.0, 0.0]),
        # What stands still goes on only below half of the limit, and then step by step.
        (1000.0, [100, 59, 31, 5, 5, 5, 35], [0.0, 0.0, 0.0, 50.0, 150.0, 250.0, 125.0]),
        # One message a second is the slowest.
        (0.0, [40, 40, 40, 70, 1], [1.0, 1.0, 1.0, 0.0, None]),
    ],
)
def test_the_rate_follows_the_age_of_the_backlog(rate, ages, expected):
    assert limits(BacklogThrottle(60, lambda: rate), *ages) == expected


def test_once_it_holds_what_it_held_before_there_is_no_limit_any_more():
    throttle = BacklogThrottle(60, lambda: 1000.0)
    assert limits(throttle, 100, 59, 31, 5, 5, 5, 35, *[5] * 10)[-3:] == [925.0, None, None]


def test_the_rate_is_what_was_published_since_the_last_look(tmp_path):
    checkpoints = CheckpointFolder(tmp_path)
    now = [100.0]
    rate = PublishedRate(tmp_path, clock=lambda: now[0])
    assert rate() == 0.0
    checkpoints.write(SliceCheckpoint(0, 1, offset=300, published=300))
    checkpoints.write(SliceCheckpoint(1, 1, offset=100, published=100))
    now[0] += 4
    assert (rate(), rate()) == (100.0, 0.0)


def test_a_figure_that_can_not_be_read_for_long_counts_as_too_old():
    blind = PubSubUnavailableError("nobody answers")
    throttle = BacklogThrottle(60, lambda: 1000.0)
    watch = BacklogWatch(Ages([blind] * 3 + [1.0]), throttle, blind_seconds=2.0)
    seen = []
    for _ in range(4):
        watch.look()
        seen.append(throttle.limit())
    assert seen == [None, None, 0.0, 50.0]


def test_a_figure_that_is_refused_stops_at_once():
    throttle = BacklogThrottle(60, lambda: 1000.0)
    BacklogWatch(Ages([PubSubError("no permission")]), throttle).look()
    assert throttle.limit() == 0.0


def test_a_subscription_that_is_gone_for_long_is_told_of_and_one_that_comes_back_is_not():
    gone = SubscriptionNotFoundError("there is none any more")
    told = []
    throttle = BacklogThrottle(60, lambda: 1000.0)
    ages = Ages([gone, gone, 1.0, gone, gone, gone])
    watch = BacklogWatch(ages, throttle, blind_seconds=2.0, on_gone=lambda exc: told.append(exc.code))
    seen = []
    for _ in range(6):
        watch.look()
        seen.append(len(told))
    assert seen == [0, 0, 0, 0, 0, 1]
    assert told == ["subscription_not_found"]
    assert throttle.limit() == 0.0


@pytest.fixture
def lagging(pubsub):
    pubsub.create_topic("live")
    pubsub.create_subscription("slow", "live")
    Publisher(pubsub.channel, pubsub.topic_path("live")).publish([Message(b"1")])
    return "slow"


@pytest.mark.parametrize("name", ["slow", "projects/shop/subscriptions/slow"])
def test_a_subscription_that_lags_stops_it_until_it_has_caught_up(lagging, emulator_host, tmp_path, name):
    with open_throttle(YieldTo(name, 0.5), "projects/shop/topics/replay", emulator_host, tmp_path) as throttle:
        wait_until(lambda: throttle.limit() == 0.0, "it stops")
        with PubSub("shop", emulator_host) as pubsub:
            pubsub.delete_subscription(lagging)
            pubsub.create_subscription(lagging, "live")
        wait_until(lambda: throttle.limit() is None, "it goes on")


def test_a_subscription_that_is_not_there_is_an_error_at_once(emulator_host, tmp_path):
    with (
        pytest.raises(SubscriptionNotFoundError, match="gone"),
        open_throttle(YieldTo("gone", 1.0), "projects/shop/topics/replay", emulator_host, tmp_path),
    ):
        pass


def test_who_yields_to_nobody_has_no_throttle(tmp_path):
    with open_throttle(None, "projects/shop/topics/replay", None, tmp_path) as throttle:
        assert throttle is None
