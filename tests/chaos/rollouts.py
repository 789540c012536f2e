"""Rollouts of managed streams as manifests: put by a call or uploaded, under load, and killed at named places."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from model import failpoint
from model.rollout_record import RolloutSide
from model.stream_update import StreamUpdate, UpdateState
from tests.chaos.managed import ManagedStream
from tests.chaos.processes import Part, StuckError
from tests.chaos.yard import ChaosYard

STRATEGIES: Final = ("restart", "update", "rolling")
# Places that the service passes; agents pass all others.
_OF_SERVICE: Final = ("upload.",)
# The strategies whose rollouts pass a place; any strategy passes the others.
_PASSED_BY: Final = {
    "update.measure.": ("restart",),
    "update.stop.": ("restart",),
    "update.start.": ("restart",),
    "update.back_stop.": ("restart",),
    "update.back_start.": ("restart",),
    "shadow.": ("rolling",),
    "update.shadow.": ("rolling",),
    "update.": ("update",),
}
# Places that only a rollout passes which goes back.
_GOING_BACK: Final = ("update.back_", "update.hand_back.")
# Two minutes for the figures of the old process, a drain, and two starts of Spark of five minutes at most.
_ROLLOUT_SECONDS: Final = 1200.0
_UPLOAD_SECONDS: Final = 120.0
# A process that has just started takes a batch or two until its figures are known.
_WATCH_SECONDS: Final = 40.0
# Long enough to cancel a rollout, or to kill its process, while it is watched.
_LONG_WATCH_SECONDS: Final = 60.0
_TRIES: Final = 2
# A process that begins after a kill catches up: how fast it is says nothing about its release.
_THRESHOLDS: Final = {
    "dead_letter_share": 1.0,
    "faults_per_second": 1000.0,
    "lag_seconds": 3600.0,
    "rate_factor": 0.0,
}


@dataclass
class StreamRollouts:
    """Rollouts of the yard's streams to the same release with another pace."""

    yard: ChaosYard
    dice: random.Random
    say: Callable[[str], object]

    def strategies(self, stream: ManagedStream) -> tuple[str, ...]:
        """Return the strategies that bring this stream to another pace."""
        return STRATEGIES if stream.name == "pipeline" else STRATEGIES[:2]

    def roll_out(
        self, stream: ManagedStream, strategy: str, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        """Roll the stream out, do ``meanwhile``, and return once the rollout has ended.

        One that goes back because of something that was killed is tried again once, with another pace.
        """
        for _ in range(_TRIES):
            begun = self._begin(stream, strategy, _WATCH_SECONDS)
            meanwhile()
            if self._finish(stream, begun).state is UpdateState.STABLE:
                return

    def pass_place(self, streams: Sequence[ManagedStream], name: str) -> list[Part]:
        """Have rollouts pass ``name`` until a process was killed there, and return what was killed."""
        wanted = next((each for prefix, each in _PASSED_BY.items() if name.startswith(prefix)), STRATEGIES)
        for _ in range(_TRIES):
            stream = self.dice.choice([each for each in streams if set(wanted) & set(self.strategies(each))])
            strategy = self.dice.choice([each for each in wanted if each in self.strategies(stream)])
            parts = (self.yard.api,) if name.startswith(_OF_SERVICE) else self.yard.agents
            with armed(parts, name) as hit:
                if name.startswith(_GOING_BACK):
                    self._go_back(stream, strategy)
                else:
                    is_uploaded = name.startswith("upload.") or None
                    begun = self._begin(stream, strategy, _WATCH_SECONDS, is_uploaded=is_uploaded)
                    self._finish(stream, begun)
            if hit:
                return hit
        return []

    def _go_back(self, stream: ManagedStream, strategy: str) -> None:
        """Roll out, and give the rollout a reason to go back while its new process is watched."""
        begun = self._begin(stream, strategy, _LONG_WATCH_SECONDS)
        self._wait(stream, lambda: self._is_watched_or_over(stream, begun), f"{begun.id} is watched")
        if strategy == "restart":
            stream.call("post", f"/jobs/{begun.id}:cancel", f"cancels {begun.id}")
        elif (process := stream.process()) is not None:
            process.kill()
        self._finish(stream, begun)

    def _begin(
        self, stream: ManagedStream, strategy: str, seconds: float, *, is_uploaded: bool | None = None
    ) -> StreamUpdate:
        """Apply a manifest to the stream as it runs, and return the rollout that it began."""
        stream.ensure()
        record = stream.record()
        assert record is not None
        if is_uploaded is None:
            is_uploaded = self.dice.random() < 0.5
        name = f"{'uploaded' if is_uploaded else 'put'}-{stream.name}"
        options = dict(record.options)
        before = RolloutSide(record.release, options).to_json()
        # Another pace each time, so that no manifest has the content of one before.
        pace = round(self.dice.uniform(0.2, 1.5), 6)
        document = {
            "kind": "Rollout",
            "name": name,
            "stream": stream.name,
            "from": before,
            "to": {**before, "options": {**options, "batch_seconds": pace}},
            "strategy": strategy,
            "validate": {"seconds": seconds, "min_messages": 1, "thresholds": _THRESHOLDS},
        }
        content = json.dumps(document, indent=1)
        if is_uploaded:
            (self.yard.uploads / f"{name}.yaml").write_text(content)
        else:
            stream.call("post", "/manifests:apply", f"takes {name}", content=content)
        found: list[StreamUpdate] = []

        def is_begun() -> bool:
            with stream.store() as store:
                newest = store.list_updates(manifest=name)[:1]
            found[:] = [each for each in newest if each.to_options.get("batch_seconds") == pace]
            return bool(found)

        stream.wait(is_begun, f"{name} begins", seconds=_UPLOAD_SECONDS)
        self.say(f"{found[0].id} of {stream.name} by {strategy}, {name}")
        return found[0]

    def _finish(self, stream: ManagedStream, begun: StreamUpdate) -> StreamUpdate:
        """Return the rollout when it has ended and the stream is as it says.

        Raises:
            StuckError: it did not end, or the stream is as neither side of it.
        """
        self._wait(stream, lambda: self._now(stream, begun).state.is_ended, f"{begun.id} ends")
        ended = self._now(stream, begun)
        self.say(f"{ended.id} of {stream.name} is {ended.state}: {ended.error}")
        record = stream.record()
        assert record is not None
        is_as_before, is_as_wanted = (
            dict(record.options) == options for options in (dict(ended.from_options), ended.to_options)
        )
        code = "" if ended.error is None else ended.error.code
        is_right = {UpdateState.STABLE: is_as_wanted, UpdateState.ROLLED_BACK: is_as_before}.get(
            ended.state, False
        )
        # An update whose standby, snapshot or shadow was killed changes nothing and fails.
        is_untouched = ended.state is UpdateState.FAILED and not ended.request.is_restart and is_as_before
        if not (is_right or is_untouched) or code == "shadow_differs":
            raise StuckError(f"{ended} left {record}; {stream.last_words()}")
        stream.ensure()
        return ended

    def _is_watched_or_over(self, stream: ManagedStream, begun: StreamUpdate) -> bool:
        found = self._now(stream, begun)
        return found.state.is_ended or found.state is UpdateState.WATCHING

    def _now(self, stream: ManagedStream, begun: StreamUpdate) -> StreamUpdate:
        with stream.store() as store:
            return store.get_update(begun.id)

    def _wait(self, stream: ManagedStream, is_true: Callable[[], bool], what: str) -> None:
        stream.wait(is_true, what, seconds=_ROLLOUT_SECONDS)


@contextmanager
def armed(parts: Sequence[Part], name: str) -> Iterator[list[Part]]:
    """Let one of ``parts`` be killed where it passes ``name``; after the block the list has those that were."""
    hit: list[Part] = []
    for part in parts:
        failpoint.arm(part.orders, name)
    try:
        yield hit
    finally:
        hit += [part for part in parts if failpoint.disarm(part.orders, name)]
