"""The demo itself: publish, back up, kill, go on, replay with SQL, compare."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final
from uuid import uuid4

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from cli.attach import attach_topics
from cli.demo.archive import ArchiveReader, receive
from cli.demo.verdict import ArchivedMessage, Key, Verdict, compare_archive, compare_replay
from cli.publish import publish_all
from cli.stack import Stack
from cli.terminal import err
from client.api import RefeedApi
from model.job import JobState
from model.message import Message, replay_token
from rollout.child import Children

_POLL_SECONDS: Final = 0.1
# Nothing new for so long is an end, not a pause: two of the demo's ack deadlines and a slow start of a JVM.
_PATIENCE_SECONDS: Final = 120.0
_SUBSCRIPTION: Final = "demo-second-subscription"

REPLAY_QUERY: Final = """\
SELECT data, attributes, message_id, topic, publish_time
FROM {table}
WHERE _PARTITIONTIME >= @from AND _PARTITIONTIME < @to
  AND topic = @topic"""


class Demo:
    """One run on a stack that nobody else uses; :meth:`run` starts it, and ``children`` ends it."""

    def __init__(self, stack: Stack, children: Children, messages: Sequence[tuple[str, Message]]) -> None:
        self.verdict = Verdict()
        self._stack = stack
        self._children = children
        self._messages = messages
        self._archive = ArchiveReader(stack.settings)
        self._published: dict[Key, Message] = {}
        self._markers: set[Key] = set()
        self._killed_at = 0.0
        self._first_day = _midnight(datetime.now(UTC))
        self._progress = Progress(
            TextColumn("{task.description:<42}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=err,
        )

    def run(self) -> Verdict:
        """Run every step and return the verdict.

        Raises:
            ProcessEndedError: a process ended that nobody killed, or was not ready in time.
        """
        started_at = time.monotonic()
        with self._progress:
            with self._step("start", "Pub/Sub server, backup, API", 2) as tick:
                self._start(tick)
            with self._step("publish", "publish, then kill -9 the backup", len(self._messages)) as tick:
                self._publish_and_kill(tick)
            with self._step("archive", "start it again, archive the rest", len(self._messages)) as tick:
                self._wait_until_archived(tick)
            topic = Counter(topic for topic, _ in self._messages).most_common(1)[0][0]
            expected = {row_key(row): row for row in self._archive.read() if row.topic == topic}
            self.verdict.expected_selected = len(expected)
            with self._step("replay", f"replay a day of {topic} with SQL", len(expected)) as tick:
                self._replay(topic, expected, tick)
            with self._step("verify", "look for what must not be there", None):
                self._verify(topic)
        self.verdict.seconds["total"] = round(time.monotonic() - started_at, 2)
        return self.verdict

    def _start(self, tick: Callable[[int], None]) -> None:
        stack = self._stack
        self._children.start(stack.pubsub)
        stack.wait_for_pubsub()
        tick(1)
        self._archive.create()
        # Before the first message: a subscription gets what is published after it.
        for _ in attach_topics(stack.settings, sorted({topic for topic, _ in self._messages})):
            pass
        self._children.start(stack.backup)
        self._children.start(stack.api)
        stack.wait_for_backup()
        tick(2)

    def _publish_and_kill(self, tick: Callable[[int], None]) -> None:
        waiting = iter(self._messages)
        half = (len(self._messages) + 1) // 2
        self._publish(list(islice(waiting, half)), tick)
        self._wait_for_growth(self._archive.count_rows, lambda rows: rows > 0)
        self._publish(list(waiting), tick)
        # The stream has pulled some of these and committed none or not all: the moment that loses or doubles.
        self._stack.backup.kill()
        self._killed_at = time.monotonic()

    def _publish(self, messages: Sequence[tuple[str, Message]], tick: Callable[[int], None]) -> None:
        for batch in publish_all(self._stack.settings, messages):
            keys = [(batch.topic, message_id) for message_id in batch.ids]
            self._published.update(zip(keys, batch.messages, strict=True))
            tick(len(self._published))

    def _wait_until_archived(self, tick: Callable[[int], None]) -> None:
        self._stack.backup.start()
        self._stack.wait_for_backup()

        def count() -> int:
            rows = self._archive.count_rows()
            tick(rows)
            return rows

        self._wait_for_growth(count, lambda rows: rows >= len(self._published))

    def _replay(self, topic: str, expected: dict[Key, ArchivedMessage], tick: Callable[[int], None]) -> None:
        from app.deployment import Deployment

        settings = self._stack.settings
        self._stack.wait_for_api()
        with (
            Deployment(settings).pubsub as pubsub,
            RefeedApi(self._stack.api_url) as api,
        ):
            pubsub.create_subscription(_SUBSCRIPTION, topic, ack_deadline_seconds=settings.ack_deadline_seconds)
            backfill = api.backfills.create(self._request(topic), idempotency_key=str(uuid4()))
            backfill = self._wait_for_end(api, backfill, tick)
            self.verdict.selected = int(backfill["progress"]["selected"] or 0)
            replayed = receive(
                pubsub.channel,
                pubsub.subscription_path(_SUBSCRIPTION),
                want=self.verdict.selected,
                # A Pull that was given up takes its messages along until their lease runs out.
                idle_seconds=3 * settings.ack_deadline_seconds,
                note=tick,
            )
        figures = compare_replay(
            expected, replayed, token=replay_token(settings.replay_secret(), topic), backfill_id=backfill["id"]
        )
        self.verdict.republished = figures.republished
        if figures.repeated:
            # At least once is the promise: no fault, and nothing to keep quiet about.
            err.print(f"{figures.repeated} messages came twice from Pub/Sub")
        self.verdict.payload_mismatches += figures.payload_mismatches + figures.untagged

    def _request(self, topic: str) -> dict[str, Any]:
        # Borders of partitions, the day after included: a run over midnight selects the same.
        window = {"from": self._first_day, "to": _midnight(datetime.now(UTC)) + timedelta(days=1)}
        moments = {name: {"type": "TIMESTAMP", "value": f"{at:%Y-%m-%dT%H:%M:%SZ}"} for name, at in window.items()}
        return {
            "query": REPLAY_QUERY.format(table=self._stack.settings.archive_table),
            "parameters": {**moments, "topic": {"type": "STRING", "value": topic}},
            "topic": topic,
            "description": "refeed demo",
        }

    def _wait_for_end(
        self, api: RefeedApi, backfill: dict[str, Any], tick: Callable[[int], None]
    ) -> dict[str, Any]:
        found = backfill

        def ask() -> int:
            nonlocal found
            found = api.jobs.read(backfill["id"])
            published = int(found["progress"]["published"] or 0)
            tick(published)
            return published

        self._wait_for_growth(ask, lambda _: JobState(found["state"]).is_final)
        if found["state"] != JobState.SUCCEEDED:
            fault = found.get("error") or {"message": "it has not ended in time"}
            err.print(f"backfill {found['id']} is {found['state']}: {fault['message']}")
        return found

    def _verify(self, topic: str) -> None:
        # What the killed driver had pulled comes again when its leases run out; until then the archive may
        # look clean and not be.
        leases_end_at = self._killed_at + self._stack.settings.ack_deadline_seconds + 1
        time.sleep(max(0.0, leases_end_at - time.monotonic()))
        # Once this one is archived, whatever stood before it in the topic, the replay too, was seen or left out.
        for batch in publish_all(self._stack.settings, [(topic, Message(b"", {"refeed-demo": "marker"}))]):
            self._markers.add((topic, batch.ids[0]))
        self._wait_for_growth(self._archive.count_rows, lambda _: self._markers <= self._archive.read_ids())
        figures = compare_archive(self._published, self._archive.read(), frozenset(self._markers))
        verdict = self.verdict
        verdict.published, verdict.archived = len(self._published), figures.archived
        verdict.lost, verdict.duplicates = figures.lost, figures.duplicates
        verdict.payload_mismatches += figures.payload_mismatches
        verdict.rearchived = figures.foreign

    def _wait_for_growth(self, measure: Callable[[], int], is_enough: Callable[[int], bool]) -> None:
        """Return once ``measure`` is enough, or has stood still for a minute: the verdict then says why.

        Raises:
            ProcessEndedError: a process that should run has ended.
        """
        last, changed_at = measure(), time.monotonic()
        while not is_enough(last):
            for child in self._children:
                if not child.is_running:
                    raise child.ended_error()
            if time.monotonic() - changed_at > _PATIENCE_SECONDS:
                return
            time.sleep(_POLL_SECONDS)
            value = measure()
            if value != last:
                last, changed_at = value, time.monotonic()

    @contextmanager
    def _step(self, name: str, description: str, total: int | None) -> Iterator[Callable[[int], None]]:
        """Time a step and show a bar for it, which ``tick`` moves to a count."""
        task: TaskID = self._progress.add_task(description, total=total)
        started_at = time.monotonic()
        yield lambda count: self._progress.update(task, completed=count)
        self.verdict.seconds[name] = round(time.monotonic() - started_at, 2)
        if total is None:
            self._progress.update(task, total=1, completed=1)
        self._progress.stop_task(task)


def row_key(row: ArchivedMessage) -> Key:
    """Return the identity of an archived message."""
    return row.topic, row.message_id


def _midnight(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)
