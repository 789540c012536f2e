from concurrent.futures import ThreadPoolExecutor

import model.limits
from model.limits import TokenBuckets


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_minutes_worth_of_calls_may_come_at_once_and_then_a_steady_rate() -> None:
    clock = Clock()
    buckets = TokenBuckets(60, clock=clock)
    assert [buckets.take("ann") for _ in range(60)] == [0.0] * 60
    assert buckets.take("ann") == 1.0
    clock.now = 0.5
    assert buckets.take("ann") == 0.5
    clock.now = 1.0
    assert [buckets.take("ann"), buckets.take("ann")] == [0.0, 1.0]
    clock.now = 7200.0
    assert [buckets.take("ann") for _ in range(61)].count(0.0) == 60


def test_without_a_limit_nobody_waits() -> None:
    buckets = TokenBuckets(0)
    assert [buckets.take("ann") for _ in range(10_000)] == [0.0] * 10_000


def test_many_callers_take_no_more_memory_than_some(monkeypatch) -> None:
    monkeypatch.setattr(model.limits, "_MAX_CALLERS", 10)
    clock = Clock()
    buckets = TokenBuckets(1, clock=clock)
    for number in range(1000):
        buckets.take(f"caller {number}")
    assert len(buckets._buckets) == 10
    assert buckets.take("caller 999") == 60.0


def test_threads_share_a_bucket_exactly() -> None:
    buckets = TokenBuckets(100, clock=Clock())
    with ThreadPoolExecutor(8) as pool:
        waits = list(pool.map(lambda _: buckets.take("ann"), range(400)))
    assert waits.count(0.0) == 100
