"""Watches the folder or bucket that manifests are uploaded to, and applies what is there."""

import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

import structlog

from connectors.pubsub.object_events import ObjectEvents
from jobs.files import Files
from jobs.lease_owner import LeaseOwner
from jobs.loop import BackgroundLoop
from jobs.store import JobStore
from model import failpoint
from model.errors import (
    FolderUnavailableError,
    LeaseLostError,
    ManifestChangedError,
    RefeedError,
    StoreError,
)
from model.file_version import FileVersion
from model.manifest_upload import ManifestUpload
from model.principal import Principal
from rollout.manifests.manifest import MAX_BYTES
from rollout.manifests.service import ManifestService

_SUFFIXES: Final = (".yaml", ".yml")
_FILE: Final = re.compile(r"[a-z][a-z0-9\-]{0,62}\.yaml")
_TICK_SECONDS: Final = 1.0
_LEASE_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 10.0
# What was refused is tried again: what it depends on, such as whose the name is, may have changed.
RETRY_SECONDS: Final = 300.0
# A file that is written in place has parts of its content for a while, and such a part may be a manifest too.
SETTLE_SECONDS: Final = 2.0
_WAITING_SECONDS: Final = 5.0
_RETRY_TICKS: Final = 5
_STOP_SECONDS: Final = 5.0
_LOG: Final = structlog.get_logger()


class UploadWatcher:
    """Applies the manifests of a folder or bucket, ``<name>.yaml`` each, and removes none.

    It lists what is there every ten seconds, and at once after an event of ``hints``. One replica does it at a
    time, under a lease in the store that every change is checked against. A file with a fault leaves the manifest
    that was applied before, and so does one that has gone, which is noted.

    The trap: who can write there can do what ``principal`` may, so its scopes are a setting.
    """

    def __init__(
        self,
        store: JobStore,
        service: ManifestService,
        files: Files,
        principal: Principal,
        *,
        hints: ObjectEvents | None = None,
        steady: Callable[[], float] = time.monotonic,
        tick_seconds: float = _TICK_SECONDS,
    ) -> None:
        self._store = store
        self._service = service
        self._files = files
        self._principal = principal
        self._hints = hints
        self._steady = steady
        self._tick_seconds = tick_seconds
        self._holder = str(LeaseOwner.current())
        self._held_until = 0.0
        self._is_holder = False
        self._look_at = self._retry_at = 0.0
        # By file: the version that was seen last, and since when.
        self._seen: dict[str, tuple[FileVersion, float]] = {}
        # Each turn ends with its own wait.
        self.loop = BackgroundLoop("uploads", self._take_turn, every_seconds=0.0)

    @property
    def source(self) -> str:
        """Who owns what is applied: the principal's name."""
        return self._principal.name

    def start(self) -> None:
        """Watch in the background until :meth:`stop`."""
        self.loop.start()

    def stop(self) -> None:
        """Watch no more, and let another replica do it; after this nothing is applied.

        A look that waits for a bucket is not waited for: without the lease it changes nothing.
        """
        self.loop.stop(_STOP_SECONDS)
        self._stop_hearing()
        if self._is_holder:
            try:
                self._store.release_source(self.source, self._holder)
            except RefeedError as exc:
                _LOG.warning("the lease of uploads was not released and will expire", problem=exc.message)

    def tick(self) -> None:
        """Hold the source, and look at it when that is due.

        Raises:
            StoreError: the store does not answer.
        """
        if not self._hold() or self._steady() < self._look_at:
            return
        try:
            self._look()
        except LeaseLostError as exc:
            _LOG.warning("another replica reads the uploads now", problem=exc.message)
            self._is_holder = False

    def hear(self) -> None:
        """Wait for a tick, or until an event shows that something may have changed.

        Raises:
            RefeedError: events can't be read; listings find what they would show.
        """
        if self._hints is None or not self._is_holder:
            self._stop_hearing()
            self.loop.wait(self._tick_seconds)
            return
        try:
            if self._hints.wait(self._tick_seconds):
                self._look_at = 0.0
        except RefeedError:
            self.loop.wait(_RETRY_TICKS * self._tick_seconds)
            raise

    def _take_turn(self) -> None:
        try:
            self.tick()
        finally:
            self.hear()

    def _stop_hearing(self) -> None:
        if self._hints is not None:
            self._hints.close()

    def _hold(self) -> bool:
        now = self._steady()
        if now < self._held_until:
            return self._is_holder
        was_holder = self._is_holder
        self._is_holder = self._store.hold_source(
            self.source, self._holder, lease_seconds=_LEASE_SECONDS, is_dead=_is_dead
        )
        self._held_until = now + (_LEASE_SECONDS / 3 if self._is_holder else _WAITING_SECONDS)
        if self._is_holder and not was_holder:
            # What another replica did meanwhile is not known here.
            self._look_at = self._retry_at = 0.0
            self._store.set_grant(self.source, self._principal, holder=self._holder)
            _LOG.info("watching uploads", source=self.source)
        return self._is_holder

    def _look(self) -> None:
        now = self._steady()
        self._look_at = now + LOOK_SECONDS
        try:
            # A name on a disk may be any bytes, and the store keeps texts.
            versions = {
                os.fsencode(file).decode(errors="backslashreplace"): version
                for file, version in self._files.versions().items()
            }
        except OSError as exc:
            problem = f"The folder or bucket can't be read, so nothing is changed: {exc}"
            self._store.set_source_problem(self.source, problem, holder=self._holder)
            return
        self._store.set_source_problem(self.source, None, holder=self._holder)
        manifests = {each.name for each in self._store.list_manifests() if each.source == self.source}
        known = {each.file: each for each in self._store.list_uploads(self.source)}
        settled = self._settle(versions, now)
        is_done, is_retry = len(settled) == len(versions), now >= self._retry_at
        for file, version in settled.items():
            if file.endswith(_SUFFIXES) and _is_due(known.get(file), version, manifests, is_retry=is_retry):
                is_done &= self._apply(file, version)
        # Found by the manifests: if a replica died before it noted a file, the file has no record.
        gone = {f"{name}.yaml" for name in manifests} - versions.keys()
        for file in gone - {file for file, upload in known.items() if upload.gone_at is not None}:
            self._store.note_gone(self.source, file, holder=self._holder)
        for file in known.keys() - versions.keys() - gone:
            self._store.forget_upload(self.source, file, holder=self._holder)
        if is_retry:
            self._retry_at = now + RETRY_SECONDS
        if not is_done:
            self._look_at = now + SETTLE_SECONDS

    def _settle(self, versions: Mapping[str, FileVersion], now: float) -> dict[str, FileVersion]:
        """Return the files that nobody is writing: in a bucket all, as an object appears whole."""
        if self._files.path is None:
            return dict(versions)
        before, self._seen = self._seen, {}
        for file, version in versions.items():
            last = before.get(file)
            self._seen[file] = last if last is not None and last[0] == version else (version, now)
        return {file: version for file, (version, since) in self._seen.items() if now - since >= SETTLE_SECONDS}

    def _apply(self, file: str, version: FileVersion) -> bool:
        """Apply a version of a file and note what became of it; return False when it has to be looked at again."""
        fault: str | None = None
        if not _FILE.fullmatch(file):
            fault = (
                "The file is not read, because its name does not have the form NAME.yaml with "
                "lower-case letters, digits and -."
            )
        elif version.size_bytes > MAX_BYTES:
            fault = f"The file is larger than {MAX_BYTES} bytes."
        else:
            try:
                content = self._files.read_version(file, version)
                if content is None:
                    return False
                self._service.apply(
                    _name_of(file),
                    content,
                    principal=self._principal,
                    source=self.source,
                    holder=self._holder,
                )
            except (FolderUnavailableError, LeaseLostError, StoreError):
                # None is a fault of the file.
                raise
            except ManifestChangedError:
                return False
            except RefeedError as exc:
                fault = exc.message
            except OSError as exc:
                fault = f"The file can't be read: {exc.strerror}."
            failpoint.hit("upload.applied")
        self._store.note_upload(self.source, file, version.generation, fault, holder=self._holder)
        failpoint.hit("upload.noted")
        return True


def _is_due(
    upload: ManifestUpload | None, version: FileVersion, manifests: Collection[str], *, is_retry: bool
) -> bool:
    if upload is None or upload.generation != version.generation or upload.gone_at is not None:
        return True
    return is_retry and (upload.fault is not None or _name_of(upload.file) not in manifests)


def _name_of(file: str) -> str:
    return file.rpartition(".")[0]


def _is_dead(holder: str) -> bool:
    owner = LeaseOwner.parse(holder)
    return owner is not None and owner.is_dead
