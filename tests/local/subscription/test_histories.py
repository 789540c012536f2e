"""Histories that nobody thought of: publishes, pulls, acks of any id, nacks, more or less time, and restarts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

OpenBench = Callable[..., Any]


class SubscriptionModel(RuleBasedStateMachine):
    """Random publishes, pulls, acks, nacks, expiries and restarts against a plain model."""

    open_bench: OpenBench
    folder: Path
    count = 0
    ordered = False

    def __init__(self) -> None:
        super().__init__()
        type(self).count += 1
        folder = self.folder / str(self.count)
        folder.mkdir()
        self.bench = self.open_bench(folder, ordered=self.ordered)
        self.published = 0
        self.names: list[str] = []
        self.acked: set[str] = set()
        self.given: list[tuple[str, str]] = []
        self.ids: dict[str, str] = {}
        self.leased: dict[str, float] = {}

    @rule(count=st.integers(1, 4), key=st.sampled_from(["", "a", "b"]))
    def publish(self, count: int, key: str) -> None:
        names = [f"{key}:{self.published + n}" for n in range(count)]
        self.names += names
        self.published += count
        self.bench.publish(*names, key=key)

    @rule(count=st.integers(1, 6))
    def pull(self, count: int) -> None:
        got = self.bench.pull(count)
        waiting = [name for name in self.names if name not in self.acked and not self.is_leased(name)]
        if not self.ordered:
            # All that is neither acknowledged nor leased, in its order, and nothing else.
            assert list(got) == waiting[:count]
        else:
            assert {name for name in got if name.startswith(":")} <= set(waiting)
        for name, ack_id in got.items():
            self.ids[name] = ack_id
            self.given.append((name, ack_id))
            self.leased[name] = self.bench.now + 10

    def is_leased(self, name: str) -> bool:
        return self.leased.get(name, 0) > self.bench.now

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        """Acknowledge by any id, also a late one, one of before a restart, or one of a message that came again."""
        if self.given:
            found = data.draw(st.lists(st.sampled_from(self.given), unique=True))
            self.bench.ack(*(ack_id for _, ack_id in found))
            self.acked |= {name for name, _ in found}

    @rule(data=st.data(), seconds=st.sampled_from([3, 60]))
    def extend(self, data: st.DataObject, seconds: int) -> None:
        names = [name for name in self.leased if self.is_leased(name) and name not in self.acked]
        if names:
            name = data.draw(st.sampled_from(sorted(names)))
            self.bench.extend(seconds, self.ids[name])
            self.leased[name] = self.bench.now + seconds

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
        if not self.ordered:
            assert state.count_missing(self.published) == self.published - len(self.acked)

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
def test_nothing_is_lost_and_nothing_acknowledged_comes_again_whatever_happens(open_bench, tmp_path, ordered):
    class Model(SubscriptionModel):
        pass

    Model.open_bench = staticmethod(open_bench)
    Model.folder = tmp_path
    Model.ordered = ordered
    run_state_machine_as_test(
        Model,
        settings=settings(
            max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
