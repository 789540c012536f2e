"""A stream's state: its files, its copy taken between two commits, and the way from a copy to the state."""

import hashlib
import json
import os
import re
import secrets
import shutil
import tarfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from model.disk import check_room, sync
from model.errors import (
    RefeedError,
    SnapshotCorruptError,
    SnapshotFormatError,
    SnapshotRefusedError,
    StorageFullError,
)
from model.moment import render_moment
from streams.journal import EntryState
from streams.journal_mark import ask_to_learn

# Counts up when an older release could not put the state back. A newer one reads every older format.
STATE_FORMAT: Final = 1

_MANIFEST: Final = "snapshot.json"
_STATE: Final = "state.tar"
_JOURNAL: Final = "journal"
PLAN_FILE: Final = "plan.json"
_STREAM_ID: Final = "stream-id"
# In the journal's folder: the restore that put the journal there.
_RESTORE_ID: Final = "restore-id"
_ENTRY: Final = re.compile(rf"\d{{15}}\.({'|'.join(EntryState)})\.arrow")
# Folders beside the journal: links to a state, a state on its way back, and the journal that it replaces.
_CAPTURED: Final = "captured"
_UNFINISHED: Final = "restored.unfinished"
_RESTORED: Final = "restored"
_REPLACED: Final = "replaced"
_CHUNK_BYTES: Final = 8 * 1024 * 1024


class SnapshotFolder(Protocol):
    """The folder of one snapshot, on a disk or in a bucket."""

    @property
    def path(self) -> Path | None:
        """Where the folder lies on this machine's disk, None in a bucket."""
        ...

    def making(self) -> AbstractContextManager["SnapshotFolder"]:
        """Give a folder to fill that becomes this one when the block ends without an error."""
        ...

    def own_name(self, name: str) -> str:
        """Return a name, made of ``name``, that no other maker of this folder uses."""
        ...

    def writer(self, name: str) -> AbstractContextManager[Any]:
        """Give the target that a large file is written to: a path, or an open file."""
        ...

    def complete(self, name: str, content: bytes) -> None:
        """Write the last file, by which others know that the folder is whole."""
        ...

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        ...

    def reader(self, name: str) -> IO[bytes]:
        """Open a file to read ranges of it."""
        ...


@dataclass(frozen=True, slots=True)
class StateManifest:
    """The content of a snapshot; ``facts`` are given by its maker, such as the release and the schemas' versions.

    ``first_publish_time`` and ``last_publish_time`` are the range of the journal's ids, None without ids.
    """

    format_version: int
    stream: str
    stream_id: str
    taken_at: datetime
    archive: str
    size_bytes: int
    sha256: str
    last_attempt: int
    known_messages: int
    first_publish_time: datetime | None
    last_publish_time: datetime | None
    facts: Mapping[str, Any]

    def render(self) -> bytes:
        """Return the content of the manifest's file, with a checksum over all of it."""
        body = asdict(self) | {name: render_moment(getattr(self, name)) for name in _TIMES}
        return json.dumps({"checksum": _checksum(body), **body}, indent=1).encode()

    @classmethod
    def parse(cls, content: bytes, where: str) -> Self:
        """Parse the ``content`` of the manifest's file, whose place is ``where``.

        Raises:
            SnapshotFormatError: a newer release wrote it.
            SnapshotCorruptError: the content is damaged.
        """
        try:
            body = json.loads(content)
            checksum = body.pop("checksum")
            _check_format(body["format_version"], where)
            is_whole = checksum == _checksum(body)
            times = {name: None if body[name] is None else datetime.fromisoformat(body[name]) for name in _TIMES}
            manifest = cls(**body | times)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise SnapshotCorruptError(f"{where} is damaged: {exc}", path=where) from exc
        if not is_whole:
            raise SnapshotCorruptError(f"{where} is damaged: its checksum differs.", path=where)
        return manifest


_TIMES: Final = ("taken_at", "first_publish_time", "last_publish_time")


@dataclass(frozen=True, slots=True)
class CapturedState:
    """Hard links to the files of a state, so that the stream can continue while they are copied."""

    folder: Path
    stream: str
    stream_id: str
    taken_at: datetime

    def discard(self) -> None:
        """Remove the links."""
        shutil.rmtree(self.folder, ignore_errors=True)


def capture_state(folder: Path) -> CapturedState:
    """Link to the files of the state in a stream's ``folder``; call this between two commits of the stream.

    It takes milliseconds. A journal's files never change in place, so that the links keep their content while the
    stream continues.

    Raises:
        SnapshotRefusedError: no stream has run here yet, or an attempt is pending.
        StorageFullError: the disk is full.
    """
    for left in folder.glob(f"{_CAPTURED}*"):
        shutil.rmtree(left, ignore_errors=True)
    # A unique name, so that a replaced maker removes only its own links.
    captured = folder / f"{_CAPTURED}-{secrets.token_hex(4)}"
    entries = _entries(folder)
    for path in entries:
        attempt, state, _ = path.name.split(".")
        if state == EntryState.PENDING:
            raise SnapshotRefusedError(
                f"The outcome of the commit {int(attempt)} is not known yet. At its next start, the stream "
                f"finds out whether the commit succeeded.",
                file=str(path),
            )
    try:
        stream_id = (folder / _STREAM_ID).read_text()
    except FileNotFoundError as exc:
        raise SnapshotRefusedError(f"No stream has run in {folder}, so there is no state yet.") from exc
    try:
        (captured / _JOURNAL).mkdir(parents=True)
        for path in entries:
            _link(path, captured / _JOURNAL / path.name)
        if (folder / PLAN_FILE).exists():
            _link(folder / PLAN_FILE, captured / PLAN_FILE)
    except OSError as exc:
        shutil.rmtree(captured, ignore_errors=True)
        raise StorageFullError(f"The state in {folder} can't be linked to: {exc}") from exc
    return CapturedState(captured, folder.name, stream_id, datetime.now(UTC))


def store_state(captured: CapturedState, files: SnapshotFolder, facts: Mapping[str, Any]) -> StateManifest:
    """Copy a captured state durably to ``files``: the folder is complete when this returns, and absent otherwise.

    In a bucket an error may leave a file without a manifest, which nothing reads; it is removed with the
    snapshot's folder.

    Raises:
        OSError: the storage does not answer, or is full.
        SnapshotCorruptError: an entry of the journal can't be read.
    """
    entries = sorted((captured.folder / _JOURNAL).iterdir())
    messages, first, last = _read_spans(entries)
    with files.making() as made:
        name = made.own_name(_STATE)
        with made.writer(name) as target:
            size, sha256 = _write_archive(captured.folder, target)
        manifest = StateManifest(
            format_version=STATE_FORMAT,
            stream=captured.stream,
            stream_id=captured.stream_id,
            taken_at=captured.taken_at,
            archive=name,
            size_bytes=size,
            sha256=sha256,
            last_attempt=max((int(path.name.split(".")[0]) for path in entries), default=0),
            known_messages=messages,
            first_publish_time=first,
            last_publish_time=last,
            facts=facts,
        )
        made.complete(_MANIFEST, manifest.render())
        if made.path is not None:
            for path in (made.path / name, made.path / _MANIFEST, made.path):
                sync(path)
    if files.path is not None:
        # The parent folders may be as new as the snapshot: sync them too, because of power cuts.
        for folder in files.path.parents[:3]:
            sync(folder)
    return manifest


def read_manifest(files: SnapshotFolder) -> StateManifest:
    """Return the manifest of the snapshot in ``files``.

    Raises:
        SnapshotCorruptError: the snapshot is not complete.
        SnapshotFormatError: a newer release made it.
    """
    try:
        content = files.read(_MANIFEST)
    except FileNotFoundError as exc:
        raise SnapshotCorruptError(
            f"{files} has no {_MANIFEST}, so the snapshot is not complete.", path=str(files)
        ) from exc
    return StateManifest.parse(content, f"{files}/{_MANIFEST}")


def restore_state(
    files: SnapshotFolder,
    folder: Path,
    *,
    min_free_bytes: int = 0,
    learn_since: datetime | None = None,
    restore: str | None = None,
) -> StateManifest:
    """Make the snapshot in ``files`` the state in a stream's ``folder``; the caller holds the folder's lock.

    The journal is marked, so that the stream learns at its next start, from its own tables, the id of every
    message that may be redelivered: those published since ``learn_since``, and those that Pub/Sub has still to
    deliver. The id ``restore`` identifies the state for :func:`holds_restore`.

    A damaged, incomplete or newer snapshot is refused before anything changes. After a crash the state is the old
    one or, after :func:`finish_restore`, the new one. The stream's id is not restored: two homes with the same id
    would each treat the other's lease as their own.

    Raises:
        SnapshotCorruptError: the snapshot is damaged or incomplete.
        SnapshotFormatError: a newer release made it.
        StorageFullError: the disk is full; nothing has changed.
    """
    manifest = read_manifest(files)
    folder.mkdir(parents=True, exist_ok=True)
    if check_room(folder, min_free_bytes) < 2 * manifest.size_bytes:
        raise StorageFullError(f"The disk of {folder} has no room for {2 * manifest.size_bytes} bytes.")
    unfinished = folder / _UNFINISHED
    for leftover in (unfinished, folder / _RESTORED):
        shutil.rmtree(leftover, ignore_errors=True)
    (unfinished / _JOURNAL).mkdir(parents=True)
    archive = unfinished / _STATE
    try:
        _fetch_archive(files, manifest, archive)
        _unpack(archive, unfinished, str(files))
        archive.unlink()
        if restore is not None:
            (unfinished / _JOURNAL / _RESTORE_ID).write_text(restore)
        # Moved in the same step as the journal: without the mark an old journal could count as complete.
        ask_to_learn(unfinished / _JOURNAL, learn_since or datetime.now(UTC))
        for path in (
            *(unfinished / _JOURNAL).iterdir(),
            unfinished / PLAN_FILE,
            unfinished / _JOURNAL,
            unfinished,
        ):
            if path.exists():
                sync(path)
        unfinished.rename(folder / _RESTORED)
        sync(folder)
    except RefeedError:
        raise
    except OSError as exc:
        raise StorageFullError(f"The snapshot {files} can't be put back to {folder}: {exc}") from exc
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    finish_restore(folder)
    return manifest


def holds_restore(folder: Path, restore: str) -> bool:
    """Whether :func:`restore_state` put the state in a stream's ``folder`` in place with the id ``restore``."""
    path = folder / _JOURNAL / _RESTORE_ID
    return path.exists() and path.read_text() == restore


def forget_ids(folder: Path, since: datetime) -> None:
    """Let the stream with this ``folder`` forget all ids at its next start, except the ids in its tables.

    Before it pulls, the stream learns the ids of all rows published since ``since``; messages whose rows were
    deleted are new to it. A pending attempt is settled by the tables. The caller holds the folder's lock.

    Raises:
        StorageFullError: the disk is full; nothing has changed.
    """
    ask_to_learn(folder / _JOURNAL, since)
    for path in _entries(folder):
        path.unlink()


def finish_restore(folder: Path) -> bool:
    """Move a restored state to its place, also after a crash; return whether there was one.

    A stream calls this under the folder's lock before it opens its journal.
    """
    shutil.rmtree(folder / _UNFINISHED, ignore_errors=True)
    restored = folder / _RESTORED
    if not restored.exists():
        return False
    replaced = restored / _REPLACED
    replaced.mkdir(exist_ok=True)
    # Steps that were done before a crash are skipped. The journal moves last and ends the restore.
    if (restored / _JOURNAL).exists():
        if (restored / PLAN_FILE).exists():
            (restored / PLAN_FILE).rename(folder / PLAN_FILE)
        if (folder / _JOURNAL).exists():
            (folder / _JOURNAL).rename(replaced / _JOURNAL)
        (restored / _JOURNAL).rename(folder / _JOURNAL)
        sync(folder)
        sync(restored)
    shutil.rmtree(restored)
    return True


def _entries(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / _JOURNAL).glob("*.arrow") if _ENTRY.fullmatch(path.name))


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        # Some file systems have no hard links.
        shutil.copy2(source, target)


def _read_spans(entries: list[Path]) -> tuple[int, datetime | None, datetime | None]:
    """Return the number of ids in ``entries``, and their first and last publish_time."""
    messages = 0
    ends: list[datetime] = []
    for path in entries:
        try:
            with pa.memory_map(str(path)) as source:
                times = pa.ipc.open_file(source).read_all().column("publish_time")
        except (OSError, KeyError, pa.ArrowException) as exc:
            raise SnapshotCorruptError(f"The journal file {path.name} can't be read: {exc}") from exc
        if len(times):
            span = pc.min_max(times)
            ends += [span["min"].as_py(), span["max"].as_py()]
            messages += len(times)
    return messages, min(ends, default=None), max(ends, default=None)


class _Hashing:
    """Counts and hashes the bytes that are written to ``target``."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self.size_bytes = 0
        self.digest = hashlib.sha256()

    def write(self, content: bytes) -> int:
        self._target.write(content)
        self.digest.update(content)
        self.size_bytes += len(content)
        return len(content)


def _write_archive(folder: Path, target: Any) -> tuple[int, str]:
    """Write the files of ``folder`` as one tar to ``target``; return its size and its SHA-256."""
    if isinstance(target, str):
        with Path(target).open("wb") as file:
            return _write_archive(folder, file)
    hashing = _Hashing(target)
    with tarfile.open(fileobj=hashing, mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            tar.add(path, arcname=str(path.relative_to(folder)), recursive=False)
    return hashing.size_bytes, hashing.digest.hexdigest()


def _fetch_archive(files: SnapshotFolder, manifest: StateManifest, target: Path) -> None:
    digest = hashlib.sha256()
    size = 0
    try:
        source = files.reader(manifest.archive)
    except FileNotFoundError as exc:
        raise SnapshotCorruptError(
            f"The file {files}/{manifest.archive} does not exist.", path=str(files)
        ) from exc
    with source, target.open("wb") as file:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            file.write(chunk)
    if size != manifest.size_bytes or digest.hexdigest() != manifest.sha256:
        raise SnapshotCorruptError(
            f"{files}/{manifest.archive} is damaged: its checksum differs, or it has {size} bytes "
            f"instead of {manifest.size_bytes}.",
            path=str(files),
        )


def _unpack(archive: Path, folder: Path, where: str) -> None:
    try:
        with tarfile.open(archive, mode="r:") as tar:
            for member in tar:
                path = Path(member.name)
                is_entry = path.parent == Path(_JOURNAL) and _ENTRY.fullmatch(path.name)
                if not member.isfile() or not (is_entry or member.name == PLAN_FILE):
                    raise SnapshotCorruptError(f"{where} has {member.name}, which is not a state file.")
                # TarFile.extract has no safe form in Python 3.11 before 3.11.4, which Debian 12 has.
                content = tar.extractfile(member)
                assert content is not None, "a file has content"
                with content, (folder / path).open("wb") as file:
                    shutil.copyfileobj(content, file, _CHUNK_BYTES)
                os.utime(folder / path, (member.mtime, member.mtime))
    except tarfile.TarError as exc:
        raise SnapshotCorruptError(f"{where} is damaged: {exc}", path=where) from exc


def _check_format(version: int, where: str) -> None:
    if version > STATE_FORMAT:
        raise SnapshotFormatError(
            f"{where} has the state format {version}, but this release reads only formats up to "
            f"{STATE_FORMAT}. Restore the snapshot with the release that made it.",
            format_version=version,
            newest_read=STATE_FORMAT,
        )


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
