"""Topics, subscriptions and snapshots by name: made, changed, kept and deleted."""

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from local import configs
from local.acklog import AckLog
from local.catalog import ResourceCatalog, parse_config, remove_leftovers
from local.configs import DELETED_TOPIC
from local.dead_letters import build_dead_letter
from local.entries import Entry, Snapshot, SubscriptionEntry, Topic, microseconds, read_needs, read_rules
from local.segments import MessageLog, store_error
from local.seqset import SeqSet
from local.status import StatusError
from local.subscription import Subscription
from model.filters import parse_filter

# "The lifetime of the snapshot is 7 days - (age of oldest unacked message in the subscription)", and "the service
# will refuse to create a snapshot that would expire in less than 1 hour after creation":
# https://cloud.google.com/pubsub/docs/reference/rest/v1/projects.snapshots
_SNAPSHOT_SECONDS: Final = 7 * 86400
_MIN_SNAPSHOT_SECONDS: Final = 3600
# Snapshots of one project: https://cloud.google.com/pubsub/quotas#resource_limits
MAX_SNAPSHOTS: Final = 5000
# A publisher that does not read its connection must not keep a topic's consumers waiting.
MAX_ANSWER_SECONDS: Final = 1.0

_Entry = TypeVar("_Entry", Topic, SubscriptionEntry, Snapshot)


class Resources:
    """Everything a data folder holds; safe to use from many threads.

    Raises:
        StatusError: on the calls below, with the real service's codes and words.
        CheckpointCorruptError: on opening, a file is damaged.
    """

    def __init__(self, folder: Path, *, fsync: bool = False, segment_bytes: int | None = None) -> None:
        self._folder = folder
        self._fsync = fsync
        self._log_options: dict[str, Any] = {"fsync": fsync}
        if segment_bytes is not None:
            self._log_options["segment_bytes"] = segment_bytes
        self._lock = threading.RLock()
        self._next_number = 1
        # After all message ids of topics that were deleted: a clock may be put back, and a log may jump ahead.
        self._next_id = 0
        self._logs: dict[int, MessageLog] = {}
        self._first_ids: dict[int, int] = {}
        self.topics: dict[str, Topic] = {}
        self.subscriptions: dict[str, SubscriptionEntry] = {}
        self.snapshots: dict[str, Snapshot] = {}
        (folder / "topics").mkdir(parents=True, exist_ok=True)
        (folder / "subscriptions").mkdir(exist_ok=True)
        self._catalog = ResourceCatalog(folder)
        self._load(self._catalog.content)

    # -- topics

    def create_topic(self, config: Any) -> Any:
        """Create a topic and return its configuration."""
        config = configs.complete_topic(config)
        with self._lock:
            if config.name in self.topics:
                raise StatusError.already_exists(config.name)
            number = self._take_number()
            # Ids begin at the time of creation, in microseconds: 16 digits until the year 2286.
            self._first_ids[number] = max(time.time_ns() // 1000, self._next_id)
            try:
                with _disk():
                    topic = Topic(config, number, self._open_log(number, config.name))
                self._write(topic)
            except StatusError:
                self._drop_unused_logs()
                raise
            self.topics[config.name] = topic
        return config

    def topic(self, name: str) -> Topic:
        """Return the topic, or raise NOT_FOUND."""
        return _find(self.topics, name, "topics")

    def update_topic(self, config: Any, paths: list[str]) -> Any:
        """Set the fields in ``paths`` and return the whole configuration."""
        with self._lock:
            topic = self.topic(config.name)
            updated = configs.update_topic(topic.config, config, paths)
            self._write(replace(topic, config=updated))
            topic.config = updated
            return updated

    def publish(self, name: str, bodies: Sequence[bytes]) -> int:
        """Store messages in the topic and return the first one's id; the others' follow it."""
        first_id, deliver = self.store(name, bodies)
        deliver()
        return first_id

    def store(self, name: str, bodies: Sequence[bytes]) -> tuple[int, Callable[[], None]]:
        """Store messages in the topic; return the first one's id, and the call that has them delivered.

        Where that call does not come within ``MAX_ANSWER_SECONDS``, they are delivered without it.
        """
        topic = self.topic(name)
        first_seq = topic.log.append(bodies, is_answered=False)

        def deliver() -> None:
            topic.log.release(first_seq)
            topic.notify()

        return topic.log.first_id + first_seq, deliver

    def delete_topic(self, name: str) -> None:
        """Delete a topic; its subscriptions stay and keep what they have not delivered."""
        with self._lock:
            log = self.topic(name).log
            self._next_id = max(self._next_id, log.first_id + log.next_seq)
            users: list[SubscriptionEntry | Snapshot] = [*self.subscriptions.values(), *self.snapshots.values()]
            left = [entry for entry in users if entry.config.topic == name]
            changed = [configs.change(entry.config, topic=DELETED_TOPIC) for entry in left]
            self._write(
                *(replace(entry, config=config) for entry, config in zip(left, changed, strict=True)),
                deleted=[name],
            )
            del self.topics[name]
            for entry, config in zip(left, changed, strict=True):
                entry.config = config
            self._drop_unused_logs()

    # -- subscriptions

    def create_subscription(self, config: Any) -> Any:
        """Create a subscription, which receives what is published from now on, and return its configuration."""
        config = configs.complete_subscription(config)
        config.detached = False
        with self._lock:
            if config.name in self.subscriptions:
                raise StatusError.already_exists(config.name)
            topic = self.topic(config.topic)
            self._check_dead_letter_topic(config)
            with _disk():
                number, first_seq = self._take_number(), topic.log.next_seq
                acks = AckLog(self._acks_path(number), first_seq, owner=config.name, fsync=self._fsync)
                entry = self._open_subscription(config, topic.log_number, number, first_seq, acks)
            try:
                self._write(entry)
            except StatusError:
                entry.working.close()
                self._acks_path(number).unlink(missing_ok=True)
                raise
            self.subscriptions[config.name] = entry
            topic.subscriptions.append(entry.working)
        return config

    def subscription(self, name: str) -> SubscriptionEntry:
        """Return the subscription, or raise NOT_FOUND."""
        return _find(self.subscriptions, name, "subscriptions")

    def with_topic_retention(self, config: Any) -> Any:
        """Return a subscription's configuration as Pub/Sub answers it, with its topic's retention."""
        shown = configs.change(config)
        if self._topic_retention_us(config):
            retention = self.topic(config.topic).config.message_retention_duration
            shown.topic_message_retention_duration.CopyFrom(retention)
        return shown

    def _topic_retention_us(self, config: Any) -> int:
        """Return for how long the topic of a subscription keeps messages; 0 where it does not, or is deleted."""
        topic = self.topics.get(config.topic)
        return 0 if topic is None else microseconds(topic.config.message_retention_duration)

    def update_subscription(self, config: Any, paths: list[str]) -> Any:
        """Set the fields in ``paths`` and return the whole configuration."""
        with self._lock:
            entry = self.subscription(config.name)
            updated = configs.update_subscription(entry.config, config, paths)
            self._check_dead_letter_topic(updated)
            self._write(replace(entry, config=updated))
            entry.config = updated
            entry.working.rules = read_rules(entry.config)
            return entry.config

    def detach_subscription(self, name: str) -> None:
        """Take a subscription from its topic: what it retains is dropped and its pulls fail."""
        with self._lock:
            entry = self.subscription(name)
            detached = configs.change(entry.config, detached=True)
            self._write(replace(entry, config=detached))
            self._take_from_topic(entry)
            entry.config = detached
            entry.working.detach()

    def _take_from_topic(self, entry: SubscriptionEntry) -> None:
        topic = self.topics.get(entry.config.topic)
        if topic is not None and entry.working in topic.subscriptions:
            topic.subscriptions.remove(entry.working)

    def _check_dead_letter_topic(self, config: Any) -> None:
        if config.HasField("dead_letter_policy"):
            self.topic(config.dead_letter_policy.dead_letter_topic)

    def _bury(self, subscription: str, records: Sequence[bytes], counts: Sequence[int]) -> None:
        policy = self.subscription(subscription).config.dead_letter_policy
        bodies = [build_dead_letter(r, subscription, n) for r, n in zip(records, counts, strict=True)]
        self.publish(policy.dead_letter_topic, bodies)

    def delete_subscription(self, name: str) -> None:
        """Delete a subscription and its acknowledgements; its streams end."""
        with self._lock:
            entry = self.subscription(name)
            self._write(deleted=[name])
            del self.subscriptions[name]
            self._take_from_topic(entry)
            entry.working.close(deleted=True)
            self._acks_path(entry.working.number).unlink(missing_ok=True)
            self._drop_unused_logs()

    # -- snapshots and seeks

    def create_snapshot(self, name: str, subscription: str, labels: dict[str, str]) -> Any:
        """Keep what ``subscription`` has acknowledged by now; what is published later is not.

        "If the name is not provided in the request, the server will assign a random name for this snapshot on the
        same project as the subscription": https://cloud.google.com/pubsub/docs/reference/rpc/google.pubsub.v1
        """
        if not name:
            project = subscription.partition("/subscriptions/")[0]
            name = f"{project}/snapshots/s-{secrets.token_hex(8)}"
        configs.validate_name(name, "snapshots")
        with self._lock:
            if name in self.snapshots:
                raise StatusError.already_exists(name)
            entry = self.subscription(subscription)
            prefix = name.partition("/snapshots/")[0] + "/snapshots/"
            count = sum(each.startswith(prefix) for each in self.snapshots)
            if count >= MAX_SNAPSHOTS:
                raise StatusError.limit_reached("snapshots-per-project", count, MAX_SNAPSHOTS)
            if entry.config.topic == DELETED_TOPIC:
                raise StatusError.failed_precondition(f"The topic of the subscription {subscription} was deleted.")
            state = entry.working.read_state()
            left = _SNAPSHOT_SECONDS - entry.working.read_backpressure().oldest_unacked_seconds
            if left < _MIN_SNAPSHOT_SECONDS:
                raise StatusError.failed_precondition(
                    "The subscription's oldest unacknowledged message is too old: "
                    "the snapshot would expire in less than 1 hour."
                )
            config = configs.SnapshotConfig(name=name, topic=entry.config.topic, labels=labels)
            config.expire_time.FromMicroseconds(int((time.time() + left) * 1_000_000))
            snapshot = Snapshot(config, entry.log_number, state)
            self._write(snapshot)
            self.snapshots[name] = snapshot
        return config

    def snapshot(self, name: str) -> Snapshot:
        """Return the snapshot, or raise NOT_FOUND."""
        return _find(self.snapshots, name, "snapshots")

    def update_snapshot(self, config: Any, paths: list[str]) -> Any:
        """Set the fields in ``paths`` and return the whole configuration."""
        with self._lock:
            snapshot = self.snapshot(config.name)
            updated = configs.update_snapshot(snapshot.config, config, paths)
            self._write(replace(snapshot, config=updated))
            snapshot.config = updated
            return updated

    def delete_snapshot(self, name: str) -> None:
        """Delete a snapshot; what it alone retained goes with the next clean-up."""
        with self._lock:
            self.snapshot(name)
            self._write(deleted=[name])
            del self.snapshots[name]
            self._drop_unused_logs()

    def seek_to_snapshot(self, subscription: str, name: str, *, effect_seconds: float = 0.0) -> None:
        """Give ``subscription`` the state that the snapshot keeps; both must belong to one topic."""
        with self._lock:
            entry = self.subscription(subscription)
            snapshot = self.snapshot(name)
            if snapshot.log_number != entry.log_number:
                raise StatusError.failed_precondition(
                    "The subscription and the snapshot must be attached to the same topic."
                )
            state = SeqSet(snapshot.state.floor, snapshot.state.runs())
            entry.working.seek(state, effect_seconds=effect_seconds)

    def seek_to_time(self, subscription: str, publish_time_us: int, *, effect_seconds: float = 0.0) -> None:
        """Hold what was published before that time for done, and the rest, as far as retained, for undone."""
        with self._lock:
            entry = self.subscription(subscription)
            log = entry.working.log
            retained = log.next_seq
            if entry.config.retain_acked_messages:
                oldest = _now_us() - microseconds(entry.config.message_retention_duration)
                retained = max(entry.start_seq, log.first_seq_since(oldest))
            if topic_retention := self._topic_retention_us(entry.config):
                retained = min(retained, log.first_seq_since(_now_us() - topic_retention))
            entry.working.seek_to_time(publish_time_us, retained, effect_seconds=effect_seconds)

    def list_configs(self, entries: Mapping[str, Entry], project: str) -> list[Any]:
        """Return the configurations of those ``entries``, by their names, that are of ``project``."""
        return [entry.config for name, entry in list(entries.items()) if name.startswith(f"{project}/")]

    # -- upkeep

    def tick(self) -> None:
        """End the leases that are over, and deliver what no publisher takes the answer for."""
        moment = time.monotonic() - MAX_ANSWER_SECONDS
        for topic in list(self.topics.values()):
            if topic.log.is_answering and topic.log.release_before(moment):
                topic.notify()
        for entry in list(self.subscriptions.values()):
            entry.working.expire_leases()

    def clean_up(self) -> None:
        """Drop what retention has ended, expired snapshots, and the segments nobody needs any more.

        A full disk keeps the first two from being noted; the segments go all the same, which makes room on it.
        """
        with self._lock:
            now = _now_us()
            expired = [name for name, s in self.snapshots.items() if s.config.expire_time.ToMicroseconds() <= now]
            for name in expired:
                with contextlib.suppress(StatusError):
                    self.delete_snapshot(name)
            for entry in self.subscriptions.values():
                with contextlib.suppress(StatusError):
                    entry.working.drop_expired(now, self._topic_retention_us(entry.config))
            ends = {number: log.next_seq for number, log in self._logs.items()}
            living = [snapshot for name, snapshot in self.snapshots.items() if name not in expired]
            needs = read_needs(ends, self.topics.values(), self.subscriptions.values(), living, now)
            for number, log in self._logs.items():
                log.delete_before(*needs[number])

    def read_stats(self) -> dict[str, dict[str, float | str]]:
        """Return, by full subscription name: topic, undelivered and leased messages, seconds of the oldest."""
        stats: dict[str, dict[str, float | str]] = {}
        for name, entry in list(self.subscriptions.items()):
            numbers = entry.working.read_backpressure()
            stats[name] = {
                "topic": entry.config.topic,
                "undelivered_messages": numbers.undelivered_messages,
                "leased_messages": numbers.leased_messages,
                "oldest_unacked_seconds": round(numbers.oldest_unacked_seconds, 3),
            }
        return stats

    def wake(self) -> None:
        """Let every waiting call look around."""
        for entry in list(self.subscriptions.values()):
            entry.working.wake()

    def close(self) -> None:
        """Close the files; nothing may be called after it."""
        with self._lock:
            for entry in self.subscriptions.values():
                entry.working.close()
            self._catalog.close()

    # -- the files

    def _take_number(self) -> int:
        number = self._next_number
        self._next_number += 1
        return number

    def _open_log(self, number: int, owner: str, *, must_exist: bool = False) -> MessageLog:
        if number not in self._logs:
            self._logs[number] = MessageLog(
                self._folder / "topics" / str(number),
                self._first_ids[number],
                owner=owner,
                must_exist=must_exist,
                **self._log_options,
            )
        return self._logs[number]

    def _acks_path(self, number: int) -> Path:
        return self._folder / "subscriptions" / f"{number}.acks"

    def _open_subscription(
        self, config: Any, log_number: int, number: int, start_seq: int, acks: AckLog
    ) -> SubscriptionEntry:
        working = Subscription(
            number,
            self._logs[log_number],
            acks,
            parse_filter(config.filter),
            read_rules(config),
            ordered=config.enable_message_ordering,
            bury=partial(self._bury, config.name),
        )
        if config.detached:
            working.detach()
        return SubscriptionEntry(config, log_number, start_seq, working)

    def _drop_unused_logs(self) -> None:
        used = {user.log_number for user in self._users()}
        for number in self._logs.keys() - used:
            self._logs.pop(number).delete()
            # Its line in the file goes with the next change; a start passes over it.
            del self._first_ids[number]

    def _users(self) -> list[Entry]:
        return [*self.topics.values(), *self.subscriptions.values(), *self.snapshots.values()]

    def _write(self, *entries: Entry, deleted: Sequence[str] = ()) -> None:
        """Write a change to disk, before anything here is changed.

        Raises:
            StatusError: the disk did not take it; everything is as before.
        """
        change = self._render(entries) | {"deleted": deleted}
        if deleted:
            change["next_id"] = self._next_id
        with _disk():
            self._catalog.write(change, self._render_all)

    def _render_all(self) -> dict[str, Any]:
        # The logs of deleted topics too, which subscriptions may still need.
        logs = [self._render_log(number) for number in self._first_ids]
        return self._render(self._users()) | {"logs": logs, "next_id": self._next_id}

    def _render(self, entries: Iterable[Entry]) -> dict[str, Any]:
        rendered: dict[str, Any] = {
            "next_number": self._next_number,
            "logs": [],
            **{kind.KIND: [] for kind in (Topic, SubscriptionEntry, Snapshot)},
        }
        for entry in entries:
            rendered[entry.KIND].append(entry.to_json())
            if isinstance(entry, Topic):
                rendered["logs"].append(self._render_log(entry.log_number))
        return rendered

    def _render_log(self, number: int) -> dict[str, int]:
        return {"number": number, "first_id": self._first_ids[number]}

    def _load(self, content: dict[str, Any]) -> None:
        self._next_number = content["next_number"]
        self._next_id = content["next_id"]
        self._first_ids = {entry["number"]: entry["first_id"] for entry in content["logs"]}
        by_log: dict[int, Topic] = {}
        for saved in content["topics"]:
            config = parse_config(saved["config"], configs.TopicConfig)
            log = self._open_log(saved["log"], config.name, must_exist=True)
            by_log[saved["log"]] = self.topics[config.name] = Topic(config, saved["log"], log)
        acks: dict[int, AckLog] = {}
        for saved in content["subscriptions"]:
            name, number, first_seq = saved["config"]["name"], saved["number"], saved["start_seq"]
            log = self._open_log(saved["log"], name, must_exist=True)
            acks[number] = AckLog(
                self._acks_path(number), first_seq, owner=name, must_exist=True, fsync=self._fsync
            )
            log.claim(max(first_seq, acks[number].acked.end))
        for saved in content["snapshots"]:
            config = parse_config(saved["config"], configs.SnapshotConfig)
            state = SeqSet(saved["floor"], [(start, end) for start, end in saved["runs"]])
            self._open_log(saved["log"], config.name, must_exist=True).claim(state.end)
            self.snapshots[config.name] = Snapshot(config, saved["log"], state)
        # After all claims: what is missing from a log is done for every subscription.
        for saved in content["subscriptions"]:
            config = parse_config(saved["config"], configs.SubscriptionConfig)
            entry = self._open_subscription(
                config, saved["log"], saved["number"], saved["start_seq"], acks[saved["number"]]
            )
            self.subscriptions[config.name] = entry
            if saved["log"] in by_log and not config.detached:
                by_log[saved["log"]].subscriptions.append(entry.working)
        self._first_ids = {number: first for number, first in self._first_ids.items() if number in self._logs}
        acks_of = {entry.working.number for entry in self.subscriptions.values()}
        remove_leftovers(self._folder, self._next_number, logs=self._logs.keys(), acks=acks_of)


def _find(entries: Mapping[str, _Entry], name: str, kind: str) -> _Entry:
    found = entries.get(name)
    if found is None:
        configs.validate_name(name, kind)
        raise StatusError.not_found(name)
    return found


@contextlib.contextmanager
def _disk() -> Iterator[None]:
    """Turn an error of the disk into the status of the call."""
    try:
        yield
    except OSError as exc:
        raise store_error(exc) from exc


def _now_us() -> int:
    return time.time_ns() // 1000
