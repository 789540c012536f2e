"""Who may run: one stream a home by a file lock, one stream a project by a lease kept beside the archive."""

import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Final

import structlog

from model.errors import CheckpointCorruptError, LeaseHeldError, LeaseLostError, RefeedError
from warehouse.leases import LeaseStore

LEASE_SECONDS: Final = 30

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lease, and until when (Unix seconds) unless it is renewed."""

    stream: str
    host: str
    pid: int
    epoch: int
    expires_at: float


@contextmanager
def lock_home(folder: Path) -> Iterator[str]:
    """Hold the home's stream folder for this process and yield the stream's id, the same at every start.

    The lock goes with the process, however it ends.

    Raises:
        LeaseHeldError: another process has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            raise LeaseHeldError(
                f"Another stream runs on {folder} (process {_read_pid(file)}): stop it first, or start "
                "this one with another --home.",
                folder=str(folder),
            ) from exc
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield _stream_id(folder / "stream-id")


def refuse_held(store: LeaseStore, name: str, stream: str) -> None:
    """Raise when another home's stream holds the lease ``name``; :func:`hold_lease` asks again.

    Raises:
        LeaseHeldError: it does.
    """
    found = store.read_lease(name)
    if found is not None:
        holder = Holder(**json.loads(found))
        left_seconds = holder.expires_at - time.time()
        if holder.stream != stream and left_seconds > 0:
            raise LeaseHeldError(
                f"A stream on {holder.host} (process {holder.pid}) holds {name}: stop it, or wait "
                f"{left_seconds:.0f} s for its lease to run out if it is dead.",
                lease=name,
            )


@contextmanager
def hold_lease(store: LeaseStore, name: str, stream: str) -> Iterator[int]:
    """Hold the lease ``name`` and yield its epoch; a thread renews it until the block ends.

    Whoever had it before under the same ``stream`` id is dead, because the home's lock says so: its lease is
    taken over at once. Another home's is taken over when it has run out, which is a matter of seconds and of
    clocks; that its commits fail from then on is not: the epoch sees to it.

    Raises:
        LeaseHeldError: another home's stream has it.
    """
    refuse_held(store, name, stream)
    epoch = store.take_lease(name)
    over = threading.Event()

    def write(expires_at: float) -> None:
        holder = Holder(stream, socket.gethostname(), os.getpid(), epoch, expires_at)
        store.write_lease(name, epoch, json.dumps(asdict(holder)).encode())

    def renew() -> None:
        while not over.wait(LEASE_SECONDS / 3):
            try:
                write(time.time() + LEASE_SECONDS)
            except LeaseLostError:
                # The next commit ends the stream.
                _log.error("lease_lost", lease=name)
                return
            except RefeedError as exc:
                # A lease that runs out is taken by another stream at worst; the epoch keeps the two apart.
                _log.warning("lease_not_renewed", lease=name, code=exc.code, error=exc.message)

    write(time.time() + LEASE_SECONDS)
    renewer = threading.Thread(target=renew, name="lease", daemon=True)
    renewer.start()
    try:
        yield epoch
    finally:
        over.set()
        renewer.join()
        # Whoever took it over needs nothing given back.
        with suppress(LeaseLostError):
            write(0.0)


def _stream_id(path: Path) -> str:
    if not path.exists():
        temporary = path.with_suffix(".tmp")
        temporary.write_text(uuid.uuid4().hex)
        temporary.rename(path)
    text = path.read_text()
    if len(text) != len(uuid.uuid4().hex):
        raise CheckpointCorruptError(
            f"{path} is damaged. Delete it and the folder {path.parent}: no message is lost by that; messages "
            "that were archived but not acknowledged may be archived twice.",
            file=str(path),
        )
    return text


def _read_pid(file: IO[str]) -> str:
    file.seek(0)
    return file.read().strip() or "unknown"
