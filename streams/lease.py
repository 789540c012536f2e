"""Mutual exclusion of streams: by a file lock in a home, and by a lease beside the tables for a project."""

import fcntl
import json
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

import structlog

from model.disk import replacing
from model.errors import CheckpointCorruptError, LeaseHeldError, LeaseLostError, RefeedError
from model.format import Format
from model.moment import CLOCK_SKEW
from streams.journal import Journal
from streams.pulse import repeating
from streams.snapshot import finish_restore
from warehouse.archive import LeaseStore

LEASE_SECONDS: Final = 30
# The format of the lease's content: a Holder as JSON.
LEASE_FORMAT: Final = Format(1)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a lease, and the time (Unix seconds) of its expiry without a renewal.

    ``journal`` is the mark of the journal that knows all commits under the lease: empty if none does, None if an
    earlier release without marks wrote it. ``again`` has pairs of Unix times: until the second one, messages
    published since the first one may be redelivered although their rows may be old.
    """

    stream: str
    host: str
    pid: int
    epoch: int
    expires_at: float
    journal: str | None = None
    again: tuple[tuple[float, float], ...] = ()


class HeldLease:
    """The lease ``name`` while this process holds it, in its ``epoch``."""

    def __init__(
        self,
        store: LeaseStore,
        name: str,
        stream: str,
        epoch: int,
        *,
        journal: str | None,
        again: tuple[tuple[float, float], ...],
    ) -> None:
        self.epoch = epoch
        self._store = store
        self._name = name
        self._stream = stream
        self._journal = journal
        self._again = again
        # Whether another stream has the lease; needed by a stream whose target has no epochs.
        self.is_lost = False
        # Another thread renews the lease.
        self._lock = threading.Lock()

    def write(self, expires_at: float) -> None:
        """Write the lease with the expiry ``expires_at``.

        Raises:
            LeaseLostError: another stream has it.
        """
        with self._lock:
            self._write(expires_at, self._again)

    def _write(self, expires_at: float, again: tuple[tuple[float, float], ...]) -> None:
        host, pid = socket.gethostname(), os.getpid()
        holder = Holder(self._stream, host, pid, self.epoch, expires_at, self._journal, again)
        self._store.write_lease(self._name, self.epoch, json.dumps(asdict(holder)).encode())
        self._again = again

    @property
    def again_since(self) -> datetime | None:
        """The publish time since which messages with old rows may be redelivered, or None."""
        now = self._store.now() - CLOCK_SKEW.total_seconds()
        since = min((since for since, until in self._again if until > now), default=None)
        return None if since is None else datetime.fromtimestamp(since, UTC)

    def expect_again(self, since: datetime, seconds: float) -> None:
        """Write that messages published since ``since``, with old rows, may be redelivered for ``seconds``.

        The next holder of the lease reads this. Nothing is written if the lease has it already.

        Raises:
            LeaseLostError: another stream has the lease.
            RefeedError: the lease can't be written.
        """
        now, first = self._store.now(), since.timestamp()
        with self._lock:
            if any(earlier <= first and now + seconds <= until for earlier, until in self._again):
                return
            # Twice as long, so that the next batch needs no write.
            kept = tuple(one for one in self._again if one[0] < first and one[1] > now)
            self._write(now + LEASE_SECONDS, (*kept, (first, now + 2 * seconds)))

    def renew(self) -> None:
        """Hold the lease for another LEASE_SECONDS; a failure is logged."""
        if self.is_lost:
            return
        try:
            self.write(self._store.now() + LEASE_SECONDS)
        except LeaseLostError:
            # The next commit ends the stream.
            self.is_lost = True
            _log.error("lease_lost", lease=self._name)
        except RefeedError as exc:
            # At worst another stream takes the expired lease; the epoch keeps the two apart.
            _log.warning("lease_not_renewed", lease=self._name, code=exc.code, error=exc.message)

    def give_back(self) -> None:
        """Release the lease for the next stream; a failure is logged, and the lease then expires."""
        try:
            self.write(0.0)
        except LeaseLostError:
            # Another stream has taken the lease over already.
            return
        except RefeedError as exc:
            _log.warning("lease_not_given_back", lease=self._name, code=exc.code, error=exc.message)

    def name_journal(self, mark: str) -> None:
        """Write this mark into the lease: from now on the journal with this mark has the ids of all commits.

        Raises:
            LeaseLostError: another stream has it.
        """
        self._journal = mark
        self.write(self._store.now() + LEASE_SECONDS)


@contextmanager
def lock_home(folder: Path) -> Iterator[str]:
    """Lock the stream's folder for this process and yield the stream's id, which is the same at every start.

    A restore of the state that was interrupted is finished first. The lock ends with the process in every case.

    Raises:
        LeaseHeldError: another process has the lock.
        StorageFullError: the disk has no room for the id of a new home.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            raise LeaseHeldError(
                f"Another stream uses {folder} (process {_read_pid(file)}). Stop it first, or start "
                "this stream with another --home.",
                folder=str(folder),
            ) from exc
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        if finish_restore(folder):
            _log.info("restore_finished", folder=str(folder))
        yield _stream_id(folder / "stream-id")


def refuse_held(store: LeaseStore, name: str, stream: str) -> Holder | None:
    """Return the last holder of the lease ``name``, after a check that no stream of another home has it now.

    :func:`hold_lease` checks this again.

    Raises:
        LeaseHeldError: a stream of another home has the lease.
    """
    holder = _read_holder(store, name)
    if holder is not None:
        left_seconds = holder.expires_at - store.now()
        if holder.stream != stream and left_seconds > 0:
            raise LeaseHeldError(
                f"A stream on {holder.host} (process {holder.pid}) holds the lease {name}. Stop this stream. "
                f"If the other stream has died, its lease expires in {left_seconds:.0f} s.",
                lease=name,
            )
    return holder


@contextmanager
def hold_lease(store: LeaseStore, name: str, stream: str, journal: Journal | None = None) -> Iterator[HeldLease]:
    """Hold the lease ``name`` and yield it; a thread renews it until the block ends.

    An earlier holder with the same ``stream`` id is dead, because this process has the home's lock: its lease is
    taken over at once. The lease of another home is taken over after its expiry, which depends on clocks. That the
    other home's commits fail from then on does not depend on clocks: the epoch is a fencing token.

    The ``journal`` begins its start here: from then on ``journal.mark`` shows whether it has the ids of all
    commits under the lease.

    Raises:
        LeaseHeldError: a stream of another home has the lease.
    """
    holder = refuse_held(store, name, stream)
    epoch = store.take_lease(name)
    if epoch > 1 and (holder is None or holder.epoch + 1 != epoch):
        # Another stream may have had the lease in the moment between.
        holder = _read_holder(store, name)
    mark = None if holder is None else holder.journal
    if journal is not None:
        journal.begin(knows_all=_knows_all(journal, holder, stream, epoch))
        mark = journal.mark.name
    again = () if holder is None else holder.again
    held = HeldLease(store, name, stream, epoch, journal=mark, again=again)
    held.write(store.now() + LEASE_SECONDS)
    if journal is not None:
        journal.mark.settle()
    try:
        with repeating(held.renew, every_seconds=LEASE_SECONDS / 3, name="lease"):
            yield held
    finally:
        held.give_back()


def _knows_all(journal: Journal, holder: Holder | None, stream: str, epoch: int) -> bool:
    """Whether the journal has the ids of all commits under the lease until now; ``holder`` had it last."""
    if journal.mark.is_asked:
        return False
    if holder is None:
        return epoch == 1
    if holder.journal is None:
        return holder.stream == stream
    return journal.mark.is_named(holder.journal)


def _read_holder(store: LeaseStore, name: str) -> Holder | None:
    found = store.read_lease(name)
    if found is None:
        return None
    known = {field.name for field in fields(Holder)}
    # A later release may write more fields.
    fields_of = {key: value for key, value in json.loads(found).items() if key in known}
    return Holder(**fields_of | {"again": tuple(map(tuple, fields_of.get("again", ())))})


def _stream_id(path: Path) -> str:
    if not path.exists():
        with replacing(path) as file:
            file.write(uuid.uuid4().hex.encode())
    text = path.read_text()
    if len(text) != len(uuid.uuid4().hex):
        raise CheckpointCorruptError(
            f"{path} is damaged. Delete the folder {path.parent}. Nothing is lost: the stream "
            "reads from its tables the ids of the messages that Pub/Sub may redeliver.",
            file=str(path),
        )
    return text


def _read_pid(file: IO[str]) -> str:
    file.seek(0)
    return file.read().strip() or "unknown"
