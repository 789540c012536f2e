"""Lets callers request, cancel and revert updates of streams."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Final

import structlog

from jobs.inbox_items import FAILURE_DAYS, InboxItem
from jobs.store import Idempotency, JobStore
from jobs.versions import Versions, check_version
from model.errors import RequestInvalidError, StreamStateError, fault_at
from model.principal import READ, ROLLOUTS_APPLY, STREAMS_OPERATE, Principal
from model.stream_options import StreamKind, option_errors
from model.stream_record import StreamRecord
from model.stream_update import (
    UNWANTED,
    StreamUpdate,
    UpdateFault,
    UpdateRequest,
    UpdateState,
)
from rollout.service import any_release, require_topic
from rollout.shadow_work import show_update

_LOG: Final = structlog.get_logger()
_FAILURES: Final = frozenset({UpdateState.FAILED, UpdateState.ROLLED_BACK})
# A refused update of a manifest is listed too, because no caller waits for its answer.
_FAILURES_OF_MANIFESTS: Final = _FAILURES | {UpdateState.REFUSED}


class UpdateService:
    """Writes requests for updates into the job store; the agent that holds the stream carries them out.

    Every call returns within milliseconds, before the agent has done anything. ``check_release`` raises for a
    release that no agent has.

    Raises:
        ForbiddenError: any call whose ``principal`` lacks the scope.
    """

    def __init__(self, store: JobStore, *, check_release: Callable[[str | None], None] = any_release) -> None:
        self._store = store
        self._check_release = check_release

    def create(
        self,
        stream: str,
        request: UpdateRequest,
        *,
        principal: Principal,
        idempotency_key: str | None = None,
        versions: Versions = None,
        why: str | None = None,
    ) -> StreamUpdate:
        """Request an update of a living stream to another release, to other options, or to both.

        The check is the update's first step, and may refuse it.

        Raises:
            StreamNotFoundError: no stream was ever launched under this name.
            ReleaseNotFoundError: no agent has the release.
            RequestInvalidError: an option or a bound is invalid; ``details["errors"]`` has all faults.
            StreamStateError: the stream has ended or is to end, or is being restored to a snapshot.
            UpdateInProgressError: another update of the stream has not ended.
            IdempotencyKeyReusedError: the key came before with another request.
            StreamChangedError: the stream is at none of ``versions``.
        """
        principal.require(STREAMS_OPERATE)
        record = self._store.get_stream(stream)
        if errors := _errors_of(record, request):
            raise RequestInvalidError.of_all(errors)
        require_topic(principal, record.kind, request.options)
        made = self._store.create_update(
            stream,
            request,
            actor=principal.name,
            why=why,
            guard=lambda: self._check_release(request.release),
            idempotency=Idempotency.of(idempotency_key, [stream, request.to_json()]),
            versions=versions,
        )
        _LOG.info("update_asked", stream=stream, update=made.id, release=request.release, by=principal.name)
        return made

    def list_inbox(self, *, principal: Principal) -> list[InboxItem]:
        """Return the updates that failed in the last seven days, only the newest update of each stream.

        An update that a person reverted is left out. A refused update is listed only if a manifest requested it.
        """
        principal.require(READ)
        since = self._store.now() - timedelta(days=FAILURE_DAYS)
        newest: dict[str, StreamUpdate] = {}
        for each in self._store.list_updates(ended_since=since):
            newest.setdefault(each.stream, each)
        items = map(_inbox_item, newest.values())
        return [item for item in items if item is not None]

    def cancel(self, update_id: str, *, principal: Principal, versions: Versions = None) -> StreamUpdate:
        """Stop an update that has not ended: it goes back, or without a way back the new release stays.

        Raises:
            UpdateNotFoundError: there is no such update.
            StreamStateError: the update has ended, or goes back already.
            JobChangedError: the update is at none of ``versions``.
        """
        found = self._get(update_id, principal, versions)
        if found.state.is_ended:
            message = f"{found.id} is {found.state}: it has ended."
            raise StreamStateError(message, update=found.id, state=found.state.value)
        return self._take_back(found, principal, versions, may_stay=True)

    def revert(self, update_id: str, *, principal: Principal, versions: Versions = None) -> StreamUpdate:
        """Revert an update and return it; for an ended update, return a new update that goes back.

        Before the hand-over the update ends, and the old process was never stopped. In the hand-over the agent
        ends the new process, or hands the stream back if the new process owns it. An update back to a release and
        options that were STABLE has no comparison and no watch. Renamed sources keep their new names.

        Raises:
            UpdateNotFoundError: there is no such update.
            StreamStateError: the update goes back already or has no way back, or the stream has changed since.
            RefeedError: as :meth:`create`.
            JobChangedError: the update is at none of ``versions``.
        """
        found = self._get(update_id, principal, versions)
        if found.state.is_ended:
            return self._reverse(found, principal)
        return self._take_back(found, principal, versions, may_stay=False)

    def _get(self, update_id: str, principal: Principal, versions: Versions) -> StreamUpdate:
        """Return the update, if the principal may steer it and it is at one of the versions."""
        principal.require_any(STREAMS_OPERATE, ROLLOUTS_APPLY)
        found = self._store.get_update(update_id)
        principal.require(STREAMS_OPERATE if found.manifest is None else ROLLOUTS_APPLY)
        # Read again after the update: one that has ended meanwhile has another version.
        check_version(self._store.get(update_id), versions)
        return found

    def _take_back(
        self, found: StreamUpdate, principal: Principal, versions: Versions, *, may_stay: bool
    ) -> StreamUpdate:
        if found.unwanted_by is not None:
            # The update is being reverted already, after its present step.
            return show_update(found, principal)
        fault = UpdateFault(UNWANTED, f"{principal.name} took the update back while it was {found.state}.")
        decided = self._store.take_update_back(
            found.id, fault, actor=principal.name, may_stay=may_stay, versions=versions
        )
        _LOG.info("update_unwanted", stream=found.stream, update=found.id, by=principal.name)
        return show_update(decided, principal)

    def _reverse(self, found: StreamUpdate, principal: Principal) -> StreamUpdate:
        """Request an update back to the release and options before an ended update, whose own must still run."""
        record = self._store.get_stream(found.stream)
        if (record.release, dict(record.options)) != (found.request.release, found.to_options):
            raise StreamStateError(
                f"{found.id} is {found.state} and can't be reverted: {found.stream} does not run with its release "
                f"and options. 'refeed get updates --stream {found.stream}' lists the stream's updates.",
                update=found.id,
            )
        self._check_release(found.from_release)
        is_trusted = was_stable(self._store, found)
        request = replace(
            found.request,
            release=found.from_release,
            options={name: found.from_options.get(name) for name in found.request.options},
            mapping={},
            reason=f"It reverts {found.id}.",
            shadow=None if is_trusted else found.request.shadow,
            is_trusted=is_trusted,
        )
        require_topic(principal, record.kind, request.options)
        made = self._store.create_update(
            found.stream,
            request,
            actor=principal.name,
            versions={record.version},
            manifest=found.manifest,
            reverses=found.id,
        )
        _LOG.info("update_reversed", stream=found.stream, update=found.id, made=made.id, by=principal.name)
        return made


def was_stable(store: JobStore, update: StreamUpdate) -> bool:
    """Whether the release and options before an update came from a launch, or from an update that was STABLE."""
    before = (update.from_release, update.from_options)
    for each in store.list_updates(update.stream):
        if each.created_at < update.created_at and (each.request.release, each.to_options) == before:
            return each.state is UpdateState.STABLE and each.error is None
    return True


def _inbox_item(update: StreamUpdate) -> InboxItem | None:
    """Return the inbox item of the newest update of a stream, or None if no person has to act."""
    failures = _FAILURES if update.manifest is None else _FAILURES_OF_MANIFESTS
    if update.state not in failures or (update.error is not None and update.error.code == UNWANTED):
        return None
    why = "" if update.error is None else f" {update.error}"
    by, message = update.created_by, f"The update {update.id} of {update.stream} is {update.state}.{why}"
    return InboxItem("failure", "update", update.id, update.state, None, by, update.finished_at, message)


def _errors_of(record: StreamRecord, request: UpdateRequest) -> list[dict[str, str]]:
    errors = option_errors(record.kind, request.options)
    if request.mapping and record.kind is not StreamKind.PIPELINE:
        message = f"A {record.kind} stream has no sources that a mapping could rename."
        errors.append(fault_at("/mapping", "field_unknown", message))
    if request.shadow is not None and record.kind is not StreamKind.PIPELINE:
        message = f"Only a pipeline can have a shadow comparison. A {record.kind} stream makes no table rows."
        errors.append(fault_at("/shadow", "field_unknown", message))
    if request.shadow is not None and request.is_restart:
        message = "A restart has no shadow comparison. Use the strategy hand_over."
        errors.append(fault_at("/shadow", "field_unknown", message))
    return errors
