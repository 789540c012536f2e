"""Merges and compactions beside the streams, killed in the middle: as commands, and as jobs of the API."""

from dataclasses import dataclass
from typing import Final

from model import failpoint
from tests.chaos.lanes import HIT_SECONDS, Lane
from tests.chaos.processes import Part
from tests.chaos.service import Service

# A command passes a place only when there is something to do; then it is tried again.
_TRIES: Final = 40
# Passed by the driver of a job only.
_OF_JOBS: Final = {"merge.noted"}
# Passed by a merge that finds replays only.
_OF_REPLAYS: Final = {"bigquery.merge.displaced"}


@dataclass
class TablesLane(Lane):
    """What works on tables, each a process that ends by itself."""

    merges: int = 0

    def act(self, harm: str) -> None:
        # The streams are to bring something in between.
        self.pause(2.0, 8.0)
        super().act(harm)

    def failpoint(self, name: str) -> None:
        if name in _OF_REPLAYS:
            self.yard.wants_replays.set()
        try:
            self._kill_at(name)
        finally:
            self.yard.wants_replays.clear()

    def kill(self, what: str) -> None:
        part = self._begin(what)
        part.start()
        self.pause(1.0, 5.0)
        part.kill()

    def _kill_at(self, name: str) -> None:
        what = "compact" if name.startswith("compact.") else "merge"
        if name in _OF_JOBS or (what == "merge" and self.dice.random() < 1 / 3):
            self._merge_by_job(name)
            return
        for _ in range(_TRIES):
            part = self._begin(what)
            failpoint.arm(part.orders, name)
            part.start()
            part.join(HIT_SECONDS)
            if failpoint.disarm(part.orders, name) or self.over.is_set():
                break
            # Nothing to merge or to compact yet.
            self.pause(1.0, 3.0)
        self.note(part, name, is_hit=failpoint.is_hit(part.orders, name))

    def _merge_by_job(self, name: str) -> None:
        """Have the service merge, its driver killed at ``name`` and replaced."""
        service = Service(self.yard, self.over, self.say)
        orders = self.yard.api.orders
        self.yard.api.ensure()
        failpoint.arm(orders, name)
        for _ in range(_TRIES):
            self.merges += 1
            merge_id = service.create("merges", {}, f"chaos-merge-{self.merges}")
            service.wait("merges", merge_id, lambda _: failpoint.is_hit(orders, name), f"it passes {name}")
            service.finish("merges", merge_id)
            if failpoint.is_hit(orders, name) or self.over.is_set():
                break
            self.pause(1.0, 3.0)
        self.note(self.yard.api, name, is_hit=failpoint.disarm(orders, name))

    def _begin(self, what: str) -> Part:
        if what == "merge":
            return self.yard.command("merge", "merge")
        tables = ([], ["--table", "staging.orders"])
        return self.yard.command("compact", "compact", *self.dice.choice(tables))
