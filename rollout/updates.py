"""Updates of streams as callers request, read and decide them."""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

import structlog

from jobs.inbox_items import FAILURE_DAYS, InboxItem
from jobs.store import Idempotency, JobStore
from jobs.versions import Versions
from model.errors import RequestInvalidError, StreamStateError
from model.principal import READ, ROLLOUTS_APPLY, STREAMS_OPERATE, Principal
from model.stream_options import StreamKind, option_errors
from model.stream_record import StreamRecord
from model.stream_update import (
    MAX_SHADOW_HOURS,
    MAX_VALIDATE_SECONDS,
    UNWANTED,
    StreamUpdate,
    UpdateFault,
    UpdateRequest,
    UpdateState,
)
from rollout.rollouts import RolloutService, was_stable
from rollout.service import any_release
from rollout.shadow_work import show_update

_LOG: Final = structlog.get_logger()
_FAILURES: Final = frozenset({UpdateState.FAILED, UpdateState.ROLLED_BACK})


class UpdateService:
    """Writes down which updates people want; the agent that holds the stream carries them out.

    Every call answers from the store within milliseconds, before anything of it has happened. ``check_release``
    raises for a release that no agent has.

    Raises:
        ForbiddenError: any call whose ``principal`` lacks the scope.
    """

    def __init__(self, store: JobStore, *, check_release: Callable[[str | None], None] = any_release) -> None:
        self._store = store
        self._check_release = check_release
        self._rollouts = RolloutService(store, check_release=check_release)

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
        """Ask for a living stream to go on as another release, with other options, or both.

        The check is the update's first step, and may refuse it.

        Raises:
            StreamNotFoundError: there never was such a stream.
            ReleaseNotFoundError: no agent has the release.
            RequestInvalidError: an option or a bound is wrong; ``details["errors"]`` has all of it.
            StreamStateError: it has ended or is to end, or is being put back to a snapshot.
            UpdateInProgressError: another update of it has not ended.
            IdempotencyKeyReusedError: the key came before with another request.
            StreamChangedError: the stream is at none of ``versions``.
        """
        principal.require(STREAMS_OPERATE)
        record = self._store.get_stream(stream)
        if errors := _errors_of(record, request):
            raise RequestInvalidError(" ".join(error["message"] for error in errors), errors=errors)
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
        """Return the updates that failed in the last seven days.

        A later update of the stream makes up for a failed one, and what somebody rolled back needs nobody. Those
        that are rollouts are left out: they are in the inbox as such.
        """
        principal.require(READ)
        since = self._store.now() - timedelta(days=FAILURE_DAYS)
        newest: dict[str, StreamUpdate] = {}
        for each in self._store.list_updates(ended_since=since):
            newest.setdefault(each.stream, each)
        items = [_inbox_item(each) for each in newest.values() if each.manifest is None]
        return [item for item in items if item is not None]

    def revert(self, update_id: str, *, principal: Principal, versions: Versions = None) -> StreamUpdate:
        """Take back what an update does or did, and return it; of a STABLE one the update that goes back.

        Before its hand-over it ends with this, and the old release never stopped. In the hand-over the agent ends
        the new release, unless that has the stream: then it hands it back. To a release and options that were
        STABLE before nothing is compared and nothing validated. Renamed sources keep their new names. A rollout is
        cancelled, or reversed by another one; see :class:`rollout.rollouts.RolloutService`.

        Raises:
            UpdateNotFoundError: there is none.
            StreamStateError: it changed nothing, goes back already, has no way back, or something else runs since.
            RefeedError: as asking for an update.
            JobChangedError: it is at none of ``versions``.
        """
        principal.require_any(STREAMS_OPERATE, ROLLOUTS_APPLY)
        found = self._store.get_update(update_id)
        if found.manifest is not None:
            take_back = self._rollouts.reverse if found.state.is_ended else self._rollouts.cancel
            return take_back(update_id, principal=principal).update
        principal.require(STREAMS_OPERATE)
        if found.state is UpdateState.STABLE:
            return self._reverse(found, principal)
        fault = UpdateFault(UNWANTED, f"{principal.name} reverted the update while it was {found.state}.")
        decided = self._store.take_update_back(update_id, fault, actor=principal.name, versions=versions)
        _LOG.info("update_unwanted", stream=found.stream, update=found.id, by=principal.name)
        return show_update(decided, principal)

    def _reverse(self, found: StreamUpdate, principal: Principal) -> StreamUpdate:
        """Ask for an update to what ran before a STABLE one."""
        record = self._store.get_stream(found.stream)
        if (record.release, dict(record.options)) != (found.request.release, found.to_options):
            raise StreamStateError(
                f"{found.id} can't be reverted, because {found.stream} runs otherwise since then. "
                f"'refeed get updates --stream {found.stream}' lists the later updates.",
                update=found.id,
            )
        request = UpdateRequest(
            found.from_release,
            {name: found.from_options.get(name) for name in found.request.options},
            {},
            reason=f"It reverts {found.id}.",
            strategy=found.request.strategy,
            is_trusted=was_stable(self._store, found),
        )
        return self.create(found.stream, request, principal=principal)


def _inbox_item(update: StreamUpdate) -> InboxItem | None:
    """Return the inbox's item of the newest update of a stream; its id is the stream's name."""
    why = "" if update.error is None else f" {update.error}"
    by, message = update.created_by, f"The update {update.id} of {update.stream} is {update.state}.{why}"
    if update.state not in _FAILURES or (update.error is not None and update.error.code == UNWANTED):
        return None
    return InboxItem("failure", "update", update.stream, update.state, None, by, update.finished_at, message)


def _errors_of(record: StreamRecord, request: UpdateRequest) -> list[dict[str, str]]:
    errors = option_errors(record.kind, request.options)
    if not 0 <= request.validate_seconds <= MAX_VALIDATE_SECONDS:
        message = f"validate_seconds must be a number from 0 to {MAX_VALIDATE_SECONDS:.0f}."
        errors.append({"code": "out_of_range", "message": message, "pointer": "/validate_seconds"})
    if request.min_messages < 0:
        message = "min_messages must be a whole number that is not negative."
        errors.append({"code": "out_of_range", "message": message, "pointer": "/min_messages"})
    if request.mapping and record.kind is not StreamKind.PIPELINE:
        message = f"A {record.kind} stream has no sources that a mapping could rename."
        errors.append({"code": "field_unknown", "message": message, "pointer": "/mapping"})
    if request.shadow is not None and record.kind is not StreamKind.PIPELINE:
        message = f"Only a pipeline can have a shadow comparison. A {record.kind} stream makes no table rows."
        errors.append({"code": "field_unknown", "message": message, "pointer": "/shadow"})
    if request.shadow is not None and request.is_restart:
        message = "A restart has no shadow comparison. Use the strategy hand_over."
        errors.append({"code": "field_unknown", "message": message, "pointer": "/shadow"})
    if request.shadow is not None and not 0 <= request.shadow.hours <= MAX_SHADOW_HOURS:
        message = f"shadow.hours must be a number from 0 to {MAX_SHADOW_HOURS:.0f}."
        errors.append({"code": "out_of_range", "message": message, "pointer": "/shadow/hours"})
    return errors
