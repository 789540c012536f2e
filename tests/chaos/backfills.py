"""Backfills through the API while it, their drivers and their Spark are broken; what each was to publish."""

import json
import signal
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import grpc

from model import failpoint
from model.errors import PubSubError
from tests.chaos.lanes import SUSPEND_SECONDS, Lane
from tests.chaos.messages import ORDERS, TOPICS, Key
from tests.chaos.oracle import Replay, select, settled
from tests.chaos.processes import Part, StuckError, descendants, kill_pid, suspend
from tests.chaos.service import Service

_QUERY: Final = (
    "SELECT data, attributes, message_id, publish_time, topic, ordering_key FROM backup.messages "
    "WHERE _PARTITIONTIME >= @from AND _PARTITIONTIME < @to AND publish_time < @until "
    "AND topic IN UNNEST(@topics) AND LENGTH(data) < @size"
)
_SIZE_BYTES: Final = 1_000_000
_ROWS: Final = 100
_ARCHIVED_SECONDS: Final = 400.0
# What a backfill at this rate takes: long enough to be broken in the middle.
_RUN_SECONDS: Final = 4.0
_TOPICS_A_BACKFILL: Final = 3
# Those that are passed once a request.
_REPEATED: Final = {"backfill.confirmed", "backfill.letters.written", "backfill.checkpoint.written"}


@dataclass
class BackfillLane(Lane):
    """A backfill for each harm: posted, broken, retried until it ends as it should."""

    asked: list[tuple[str, str, list[str], datetime, frozenset[Key]]] = field(default_factory=list)
    ended: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._service = Service(self.yard, self.over, self.say)

    @property
    def part(self) -> Part:
        return self.yard.api

    def keep(self) -> None:
        """Replay what a merge waits for: this lane's own harms may be done before it does."""
        if self.yard.wants_replays.is_set():
            self._finish(self._create())

    def failpoint(self, name: str) -> None:
        orders = self.part.orders
        failpoint.arm(orders, name, skip=self.dice.choice([0, 1, 2]) if name in _REPEATED else 0)
        backfill_id = self._create()
        self._service.wait("backfills", backfill_id, lambda _: failpoint.is_hit(orders, name), f"it passes {name}")
        self.note(self.part, name, is_hit=failpoint.disarm(orders, name))
        self._finish(backfill_id)

    def kill(self, what: str) -> None:
        backfill_id = self._create()
        self._wait_until_it_publishes(backfill_id)
        if what == "api":
            kill_pid(self.part.pid)
        elif what == "driver":
            driver = self._service.driver(backfill_id)
            if driver is not None:
                driver.signal_group(signal.SIGKILL)
        else:
            spark = self._spark_pid()
            victims = [spark] if what == "spark" else descendants(spark).get("python3", []) or [spark]
            kill_pid(self.dice.choice(victims))
        self._finish(backfill_id)

    def suspend(self, what: str) -> None:
        backfill_id = self._create()
        self._wait_until_it_publishes(backfill_id)
        driver = self._service.driver(backfill_id)
        pid = self.part.pid if what == "api" or driver is None else driver.pid
        suspend([pid], SUSPEND_SECONDS, self.over)
        self._finish(backfill_id)

    def replays(self) -> list[Replay]:
        """Return every backfill that ended with what it was to select; nothing is published any more."""
        taken = self.yard.ear.listen()
        found = []
        for (backfill_id, _, topics, until, known), shown in zip(self.asked, self.ended, strict=True):
            progress = shown["progress"]
            found.append(
                Replay(
                    backfill_id,
                    known,
                    select(taken, topics, until, smaller_than_bytes=_SIZE_BYTES),
                    progress["selected"],
                    progress["published"],
                    progress["failed"],
                    progress["repeated_at_most"],
                )
            )
        return found

    def _create(self, **environment: str) -> str:
        """Post a backfill of what some topics' archive holds for sure, and return its id."""
        self.part.ensure(**environment)
        number = len(self.asked)
        topics = sorted(self.dice.sample(TOPICS, _TOPICS_A_BACKFILL))
        # One to the pipeline's own topic becomes rows once more: every third one, and while a merge waits for it.
        is_to_pipeline = self.yard.has_pipeline and (number % 3 == 2 or self.yard.wants_replays.is_set())
        target = ORDERS if is_to_pipeline else f"replays-{number}"
        if target == ORDERS:
            topics = [ORDERS]
        else:
            self._service.keep_trying(lambda: self.yard.ear.open(target), PubSubError, "makes a topic")
        until, known = self._wait_until_archived(topics)
        request = {
            "query": _QUERY,
            "topic": target,
            "parameters": _parameters(topics, until),
            "rate_limit_messages_per_second": len(known) / _RUN_SECONDS,
            "max_failed": 1_000_000,
            "allow_overlap": True,
        }
        backfill_id = self._service.create("backfills", request, f"chaos-{number}", **environment)
        self.asked.append((backfill_id, target, topics, until, known))
        self.say(f"backfill {backfill_id} of {len(known)} messages to {target}")
        return backfill_id

    def _wait_until_archived(self, topics: list[str]) -> tuple[datetime, frozenset[Key]]:
        """Return a time before which all messages of ``topics`` are archived, and these."""
        deadline = time.monotonic() + _ARCHIVED_SECONDS
        while time.monotonic() < deadline and not self.over.is_set():
            until = datetime.now(UTC) - timedelta(seconds=2)
            taken = self._service.keep_trying(self.yard.ear.listen, grpc.RpcError, "the server says what it took")
            wanted = select(taken, topics, until, smaller_than_bytes=_SIZE_BYTES)
            until, known = settled(taken, wanted, self.yard.archived_ids(), until)
            if len(known) >= _ROWS:
                return until, known
            self.pause(0.5, 0.5)
        raise StuckError(f"backfill: {topics} are not archived; {self.yard.backup.last_words()}")

    def _wait_until_it_publishes(self, backfill_id: str) -> None:
        self._service.wait(
            "backfills", backfill_id, lambda shown: shown["progress"]["published"] > 0, "it publishes"
        )

    def _finish(self, backfill_id: str) -> None:
        """Wait until nothing that could be sent is left; what has no room for its tags ends it as failed."""
        self.ended.append(self._service.finish("backfills", backfill_id, fine="messages_failed"))

    def _spark_pid(self) -> int:
        return int(json.loads((self.yard.home / "run" / "connect.json").read_text())["pid"])


def _parameters(topics: list[str], until: datetime) -> dict[str, dict[str, Any]]:
    now = datetime.now(UTC)
    return {
        "from": {"type": "TIMESTAMP", "value": (now - timedelta(days=2)).isoformat()},
        "to": {"type": "TIMESTAMP", "value": (now + timedelta(days=2)).isoformat()},
        "until": {"type": "TIMESTAMP", "value": until.isoformat()},
        "topics": {"type": "ARRAY<STRING>", "value": topics},
        "size": {"type": "INT64", "value": _SIZE_BYTES},
    }
