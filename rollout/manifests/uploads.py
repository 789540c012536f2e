"""Watches the folder or bucket that manifests are uploaded to, and applies what is there."""

import os
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

import structlog

from connectors.pubsub.object_events import ObjectEvents
from jobs.files import Files
from jobs.lease_owner import LeaseOwner
from jobs.loop import BackgroundLoop
from jobs.store import JobStore
from model import failpoint
from model.approval import ApprovalRequest, ApprovalState
from model.errors import (
    FolderUnavailableError,
    LeaseLostError,
    ManifestChangedError,
    ManifestNotFoundError,
    RefeedError,
    StoreError,
)
from model.file_version import FileVersion
from model.manifest_record import ManifestRecord
from model.manifest_upload import ManifestUpload
from model.principal import SCHEDULES_APPLY, Principal
from rollout.approvals import ApprovalService
from rollout.manifests.manifest import MAX_BYTES
from rollout.manifests.removals import KIND, REMOVE
from rollout.manifests.service import NIGHTLY_MERGE, ManifestService

_SUFFIXES: Final = (".yaml", ".yml")
_FILE: Final = re.compile(r"[a-z][a-z0-9\-]{0,62}\.yaml")
_TICK_SECONDS: Final = 1.0
_LEASE_SECONDS: Final = 30.0
# A full listing finds what events missed, and what was refused is tried again.
FULL_SECONDS: Final = 300.0
# A file that is written in place has parts of its content for a while, and such a part may be a manifest too.
SETTLE_SECONDS: Final = 2.0
# Editors write a file by removing it and making it again.
GONE_SECONDS: Final = 10.0
# Removals that come within this time count as one: a person removes a folder's files one by one too.
TOGETHER_SECONDS: Final = 300.0
_WAITING_SECONDS: Final = 5.0
_RETRY_TICKS: Final = 5
_STOP_SECONDS: Final = 5.0
_LOG: Final = structlog.get_logger()


class UploadWatcher:
    """Applies the manifests of a folder or bucket, ``<name>.yaml`` each, and removes those whose file was removed.

    A listing has what is there now; number and order of the events do not matter. One replica
    does it at a time, under a lease in the store that every change is checked against. A file with a fault leaves
    the manifest that was applied before. A listing that fails, or that is empty, removes nothing.

    The trap: who can write there can do what ``principal`` may, so its scopes are a setting.
    """

    def __init__(
        self,
        store: JobStore,
        service: ManifestService,
        files: Files,
        principal: Principal,
        *,
        approvals: ApprovalService,
        hints: ObjectEvents | None = None,
        steady: Callable[[], float] = time.monotonic,
        tick_seconds: float = _TICK_SECONDS,
    ) -> None:
        self._store = store
        self._service = service
        self._files = files
        self._principal = principal
        self._approvals = approvals
        self._hints = hints
        self._steady = steady
        self._tick_seconds = tick_seconds
        self._holder = str(LeaseOwner.current())
        self._held_until = 0.0
        self._is_holder = False
        self._look_at = self._full_at = 0.0
        # By file: the version that was seen last, and since when.
        self._seen: dict[str, tuple[FileVersion, float]] = {}
        # What was there at the last look that left nothing to do, None before it.
        self._done: Mapping[str, FileVersion] | None = None
        # Why events can't be read; a listing finds what they would show.
        self._deaf: str | None = None
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
        """Wait for a tick, or until an event shows that something may have changed."""
        if self._hints is None or not self._is_holder:
            self._stop_hearing()
            self.loop.wait(self._tick_seconds)
            return
        try:
            if self._hints.wait(self._tick_seconds):
                self._look_at = 0.0
        except RefeedError as exc:
            self._note_deaf(
                "The bucket's notifications can't be read, so the bucket is listed only every five "
                f"minutes: {exc.message}"
            )
            self.loop.wait(_RETRY_TICKS * self._tick_seconds)
        else:
            self._note_deaf(None)

    def _take_turn(self) -> None:
        try:
            self.tick()
        finally:
            self.hear()

    def _note_deaf(self, why: str | None) -> None:
        if why != self._deaf:
            self._deaf = why
            _LOG.warning("events of uploads", source=self.source, problem=why)
            # The next look notes it, and finds what events missed.
            self._done, self._look_at = None, 0.0

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
            self._done, self._look_at, self._full_at = None, 0.0, 0.0
            self._store.set_grant(self.source, self._principal, holder=self._holder)
            _LOG.info("watching uploads", source=self.source)
        return self._is_holder

    def _look(self) -> None:
        now = self._steady()
        is_full = now >= self._full_at
        # Should this look fail: the event that led to it does not come again.
        self._look_at = now + _WAITING_SECONDS
        try:
            # A name on a disk may be any bytes, and the store keeps texts.
            versions = {
                os.fsencode(file).decode(errors="backslashreplace"): version
                for file, version in self._files.versions().items()
            }
        except OSError as exc:
            self._note_problem(
                f"The folder or bucket can't be read, so nothing is changed: {exc}", again_seconds=_WAITING_SECONDS
            )
            return
        settled = self._settle(versions, now)
        # A folder is listed each second; a bucket when it may have changed.
        look_at = now + (_TICK_SECONDS if self._files.path is not None else FULL_SECONDS)
        if not is_full and settled == self._done and len(settled) == len(versions):
            self._look_at = look_at
            return
        records = {each.name: each for each in self._store.list_manifests() if each.source == self.source}
        if not versions and records:
            self._note_problem(
                f"The folder or bucket is empty, so nothing is removed: its {len(records)} manifests "
                "stay. To remove the last manifests, first put another file into the folder or bucket, such as "
                "README.",
                again_seconds=_WAITING_SECONDS,
            )
            return
        self._store.set_source_problem(self.source, self._deaf, holder=self._holder)
        known = {each.file: each for each in self._store.list_uploads(self.source)}
        is_done = True
        for file, version in settled.items():
            if file.endswith(_SUFFIXES) and _is_due(known.get(file), version, records, is_full=is_full):
                is_done &= self._apply(file, version)
        is_done &= self._remove_gone(known, versions, records)
        if is_full:
            self._full_at = now + FULL_SECONDS
        self._done = settled if is_done else None
        self._look_at = look_at if is_done else min(look_at, now + _WAITING_SECONDS)

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
            except (LeaseLostError, StoreError):
                raise
            except ManifestChangedError:
                return False
            except FolderUnavailableError:
                # A bucket that does not answer is no fault of the file.
                raise
            except RefeedError as exc:
                fault = exc.message
            except OSError as exc:
                fault = f"The file can't be read: {exc.strerror}."
            failpoint.hit("upload.applied")
        self._store.note_upload(self.source, file, version.generation, fault, holder=self._holder)
        failpoint.hit("upload.noted")
        return True

    def _remove_gone(
        self,
        known: Mapping[str, ManifestUpload],
        versions: Mapping[str, FileVersion],
        records: Mapping[str, ManifestRecord],
    ) -> bool:
        """Remove the manifests whose files have gone for good, and return whether none is left to decide about."""
        absent = [each for file, each in known.items() if file not in versions]
        if not absent:
            return True
        now = self._store.now()
        gone = [
            each
            for each in absent
            # A file of another name, such as one.yml, never was the manifest.
            if each.removed_at is None and _FILE.fullmatch(each.file) and _name_of(each.file) in records
        ]
        lately = [each for each in absent if each.removed_at is not None and not _is_past(each.removed_at, now)]
        for each in absent:
            if each in gone or each in lately:
                continue
            if each.removed_at is None and each.applied_generation is not None:
                # A replica died after it had removed the manifest.
                self._note_removed(each)
            else:
                self._store.forget_upload(self.source, each.file, holder=self._holder)
        is_done = True
        for each in gone:
            if each.gone_at is None:
                self._store.note_gone(self.source, each.file, holder=self._holder)
                is_done = False
            elif now - each.gone_at < timedelta(seconds=GONE_SECONDS):
                is_done = False
            else:
                together = sum(_is_together(each.gone_at, other.gone_at) for other in gone) + len(lately)
                is_done &= self._remove(each, records[_name_of(each.file)], together)
        return is_done and not lately

    def _remove(self, upload: ManifestUpload, record: ManifestRecord, together: int) -> bool:
        why = upload.waits or _why_wait(record, together)
        try:
            if why is not None:
                self._ask(upload, record, why)
                return False
            self._service.remove(record.name, principal=self._principal, source=self.source, holder=self._holder)
        except ManifestChangedError:
            return False
        except ManifestNotFoundError:
            pass
        except (LeaseLostError, StoreError):
            raise
        except RefeedError as exc:
            _LOG.warning("a manifest can't be removed; trying again", manifest=record.name, problem=exc.message)
            return False
        failpoint.hit("upload.removed")
        self._note_removed(upload)
        return True

    def _note_removed(self, upload: ManifestUpload) -> None:
        self._store.note_removed(self.source, upload.file, "the file has gone", holder=self._holder)

    def _ask(self, upload: ManifestUpload, record: ManifestRecord, why: str) -> None:
        """Request a person's approval; again after one that has expired."""
        found = upload.approval_id
        if found is not None:
            waiting = self._approvals.get(found, principal=self._principal)
            if waiting.state is not ApprovalState.EXPIRED:
                return
        asked = ApprovalRequest(
            KIND,
            record.name,
            REMOVE,
            {"file": upload.file},
            f"Remove {record.name}. {why}",
            record.version,
            SCHEDULES_APPLY,
            requester=self._principal,
        )
        made = self._approvals.ask(asked)
        self._store.note_gone(self.source, upload.file, waits=why, approval_id=made.id, holder=self._holder)

    def _note_problem(self, problem: str, *, again_seconds: float) -> None:
        self._store.set_source_problem(self.source, problem, holder=self._holder)
        self._done = None
        self._look_at = self._steady() + again_seconds


def _is_due(
    upload: ManifestUpload | None,
    version: FileVersion,
    records: Mapping[str, ManifestRecord],
    *,
    is_full: bool,
) -> bool:
    if upload is None or upload.generation != version.generation or upload.gone_at is not None:
        return True
    # What it depends on, such as whose the name is, may have changed.
    return is_full and (upload.fault is not None or _name_of(upload.file) not in records)


def _why_wait(record: ManifestRecord, together: int) -> str | None:
    """Return why a removal needs a person, None where it does not."""
    job = record.document.get("job") or {}
    if record.name == NIGHTLY_MERGE or job.get("kind") == "merge":
        return f"The file of {record.name} was deleted. A person must approve the removal of a merge's schedule."
    if together > 1:
        return f"{together} files were deleted at once. A person must approve the removal of their manifests."
    return None


def _is_together(gone_at: datetime, other: datetime | None) -> bool:
    return other is None or abs(gone_at - other) < timedelta(seconds=TOGETHER_SECONDS)


def _is_past(moment: datetime, now: datetime) -> bool:
    return now - moment >= timedelta(seconds=TOGETHER_SECONDS)


def _name_of(file: str) -> str:
    return file.rpartition(".")[0]


def _is_dead(holder: str) -> bool:
    owner = LeaseOwner.parse(holder)
    return owner is not None and owner.is_dead
