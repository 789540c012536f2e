"""How each part of the system is broken: a lane a part, which waits until the harm is done and lets it go on."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from model import failpoint
from streams.status import StatusFile
from tests.chaos.processes import Part, StuckError, kill_pid, suspend
from tests.chaos.yard import KNOWN_IDS_SECONDS, ChaosYard

# Longer than the ack deadline of the yard's subscriptions: whoever wakes up finds its leases gone.
SUSPEND_SECONDS: Final = 12.0
# Longer than the streams know the ids of what they have acknowledged.
OUTAGE_SECONDS: Final = KNOWN_IDS_SECONDS + 20.0
# An outage may come before it is passed.
HIT_SECONDS: Final = 240.0 + OUTAGE_SECONDS
# Passed with a message that is too large for an append only.
_SELDOM: Final = {"bigquery.staged"}


@dataclass
class Lane:
    """Breaks one part; ``hit`` collects the failpoints (part, name) at which a process was killed."""

    name: str
    yard: ChaosYard
    dice: random.Random
    over: threading.Event
    say: Callable[[str], object]
    hit: set[tuple[str, str]] = field(default_factory=set)

    def act(self, harm: str) -> None:
        """Do ``harm`` and return once it is done.

        Raises:
            StuckError: it could not be done.
        """
        kind, _, what = harm.partition(":")
        getattr(self, kind)(what)

    def keep(self) -> None:
        """See that the part runs while only others are broken."""

    def pause(self, least: float, most: float) -> None:
        """Let the part work for a time that the dice choose."""
        self.over.wait(self.dice.uniform(least, most))

    def note(self, part: Part, name: str, *, is_hit: bool) -> None:
        """Note a failpoint that was hit.

        Raises:
            StuckError: it was not.
        """
        if not is_hit:
            raise StuckError(f"{self.name}: {name} was not passed; {part.last_words()}")
        self.hit.add((self.name, name))


@dataclass
class StreamLane(Lane):
    """The backup stream, or the pipeline's."""

    @property
    def part(self) -> Part:
        return self.yard.backup if self.name == "backup" else self.yard.pipeline

    def keep(self) -> None:
        self.part.start()

    def failpoint(self, name: str) -> None:
        # Once in every task, once in every table: not always the first.
        skip = 0 if name in _SELDOM else self.dice.choice([0, 0, 1, 3])
        failpoint.arm(self.part.orders, name, skip=skip)
        self.note(self.part, name, is_hit=self.part.wait_for_kill(name, seconds=HIT_SECONDS))

    def kill(self, what: str) -> None:
        self.part.ensure()
        self.pause(0.0, 3.0)
        if what == "driver":
            self.part.kill()
            return
        victims = self.part.processes({"jvm": "java", "worker": "python"}[what])
        # A stream without its JVM or with a dead worker goes on or ends; either way it is started again.
        if victims:
            kill_pid(self.dice.choice(victims))

    def suspend(self, what: str) -> None:
        self.part.ensure()
        self.pause(0.0, 3.0)
        below = [] if what == "driver" else [*self.part.processes("java"), *self.part.processes("python")]
        suspend([self.part.pid, *below], SUSPEND_SECONDS, self.over)


@dataclass
class ServerLane(Lane):
    """The local Pub/Sub server, which everything else needs."""

    def kill(self, _: str) -> None:
        self.pause(10.0, 30.0)
        self.yard.server.kill()
        self.pause(0.0, 2.0)
        self.yard.server.ensure()

    def outage(self, _: str) -> None:
        # A stream that has nothing in hand yet has nothing to forget.
        self.yard.backup.wait(self._has_archived, "has archived something")
        self.pause(0.0, 20.0)
        self.yard.server.kill()
        self.pause(OUTAGE_SECONDS, OUTAGE_SECONDS)
        self.yard.server.ensure()

    def suspend(self, _: str) -> None:
        self.pause(10.0, 30.0)
        suspend([self.yard.server.pid], SUSPEND_SECONDS, self.over)

    def _has_archived(self) -> bool:
        status = StatusFile.read(self.yard.home / "streams" / "backup" / "status.json") or {}
        return bool(status.get("totals", {}).get("messages"))


@dataclass
class WarehouseLane(Lane):
    """BigQuery's stand-in: errors, answers that are lost after the work is done, a server that dies."""

    def fault(self, what: str) -> None:
        standin = self.yard.standin
        assert standin is not None
        self.pause(10.0, 30.0)
        match what:
            case "lost":
                standin.fault(self.dice.choice(["BatchCommitWriteStreams", "AppendRows"]), "drop", when="after")
                standin.fault("jobs.insert", "drop", when="after")
            case "refused":
                standin.fault("BatchCommitWriteStreams", status="UNAVAILABLE", count=self.dice.choice([1, 5]))
            case "error":
                standin.fault("AppendRows", status="INTERNAL", count=2, in_band=self.dice.choice([True, False]))
                standin.fault("jobs.insert", reason="backendError")
            case "busy":
                standin.fault("CreateWriteStream", status="RESOURCE_EXHAUSTED", count=3)
                standin.fault("AppendRows", "delay", seconds=3.0)

    def kill(self, _: str) -> None:
        standin = self.yard.standin
        assert standin is not None
        self.pause(10.0, 30.0)
        standin.kill()
        self.pause(0.0, 2.0)
        standin.start()
