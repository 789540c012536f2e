"""Rollouts as callers look at them, reverse and cancel them; applying a manifest begins one."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import structlog

from jobs.inbox_items import FAILURE_DAYS, InboxItem
from jobs.store import Idempotency, JobStore
from model.errors import (
    RequestInvalidError,
    RolloutInProgressError,
    RolloutRefusedError,
    RolloutStateError,
    StreamNotFoundError,
    StreamStateError,
)
from model.naming import did_you_mean
from model.principal import READ, ROLLOUTS_APPLY, STREAMS_READ, Principal
from model.rollout_record import NewRollout, Rollout, RolloutSide, RolloutState
from model.stream_options import StreamKind, extend_mapping
from model.stream_record import StreamRecord, Wanted
from model.stream_update import (
    UNWANTED,
    ShadowRequest,
    StreamUpdate,
    UpdateFault,
    UpdateRequest,
    UpdateState,
    UpdateStrategy,
    WhenInconclusive,
)
from rollout.manifests.manifest import digest_of
from rollout.manifests.rollout import KIND, RolloutManifest, RolloutSideWanted, RolloutWanted, read_rollout
from rollout.service import any_release
from rollout.shadow_work import show_update

# The code of a rollout to what runs already.
NOTHING_TO_ROLL_OUT: Final = "nothing_to_roll_out"
_BACK: Final = frozenset({RolloutState.ROLLING_BACK, RolloutState.STARTING_BACK})
_FAILURES: Final = frozenset(
    {RolloutState.ROLLED_BACK, RolloutState.HALTED, RolloutState.FAILED, RolloutState.REFUSED}
)
_LOG: Final = structlog.get_logger()


class RolloutService:
    """Makes rollouts of manifests, and writes down what people want of them; agents carry them out as updates.

    ``check_release`` raises for a release that no agent has.

    Raises:
        ForbiddenError: any call whose ``principal`` lacks the scope.
    """

    def __init__(self, store: JobStore, *, check_release: Callable[[str | None], None] = any_release) -> None:
        self._store = store
        self._check_release = check_release

    def prepare(self, spec: RolloutManifest, document: Any, digest: str) -> NewRollout:
        """Return the rollout that a manifest describes, if it could begin with the stream as it is now.

        Raises:
            StreamNotFoundError: there never was such a stream.
            RequestInvalidError: options are none of a stream of its kind; ``details["errors"]`` has all of them.
            ReleaseNotFoundError: no agent has the release.
            RolloutRefusedError: it asks for something that can't be.
        """
        before, after = self.check(spec, spec.name)
        return NewRollout(spec.name, digest, document, spec.stream, before, update_request(spec, before, after))

    def check(self, wanted: RolloutWanted, name: str, *, pointer: str = "") -> tuple[RolloutSide, RolloutSide]:
        """Return both sides of a rollout that could begin now; ``pointer`` is where it stands in its document.

        Raises:
            RefeedError: as :meth:`prepare`.
        """
        record = self._stream(wanted.stream)
        sides = _resolve(wanted, record, pointer)
        _check_strategy(wanted, name, record.kind, *sides)
        self._check_release(wanted.to.release)
        return sides

    def begin(self, wanted: RolloutWanted, name: str, key: str, *, principal: Principal) -> Rollout:
        """Begin a rollout of the schedule ``name``; the same key gives back the one that was begun first.

        Raises:
            RequestInvalidError: the stream runs as wanted already, with the code ``nothing_to_roll_out``.
            RefeedError: as :meth:`prepare`, or something else runs.
        """
        principal.require(ROLLOUTS_APPLY)
        digest = digest_of(key)
        for each in self._store.list_rollouts(manifest=name):
            if each.digest == digest and each.reverses is None:
                return each
        before, after = self.check(wanted, name)
        record = self._stream(wanted.stream)
        if record.is_living and record.wanted is Wanted.RUNNING and _side_of(record) == after:
            message = (
                f"{record.name} already runs with this release and these options: there is nothing to roll out."
            )
            fault = {"code": NOTHING_TO_ROLL_OUT, "message": message, "pointer": "/to"}
            raise RequestInvalidError(message, errors=[fault])
        request = wanted.model_dump(mode="json", by_alias=True)
        document = {"kind": KIND, "name": name, **request, "from": request["from"] or before.to_json()}
        update = update_request(wanted, before, after)
        new = NewRollout(name, digest, document, wanted.stream, before, update)
        made = self._store.create_rollout(new, actor=principal.name, idempotency=Idempotency(key, digest))
        _LOG.info("rollout_begun", rollout=made.id, stream=made.stream, by=principal.name)
        return made

    def get(self, rollout_id: str, *, principal: Principal) -> Rollout:
        """Return the rollout.

        Raises:
            RolloutNotFoundError: there is none.
        """
        principal.require_any(READ, STREAMS_READ, ROLLOUTS_APPLY)
        return _shown_to(self._store.get_rollout(rollout_id), principal)

    def list_rollouts(self, *, principal: Principal) -> list[Rollout]:
        """Return the rollouts, newest first, 1,000 at most."""
        principal.require_any(READ, STREAMS_READ, ROLLOUTS_APPLY)
        return [_shown_to(each, principal) for each in self._store.list_rollouts()]

    def find(self, manifest: str, *, principal: Principal) -> Rollout | None:
        """Return the newest rollout of a manifest, None where it has none."""
        found = self._store.list_rollouts(manifest=manifest, limit=1)
        return _shown_to(found[0], principal) if found else None

    def reverse(self, rollout_id: str, *, principal: Principal) -> Rollout:
        """Begin the same rollout with ``from`` and ``to`` exchanged; its manifest stays as it is.

        To a release that was STABLE before nothing is compared and nothing validated.

        Raises:
            RolloutNotFoundError: there is none.
            RolloutInProgressError: it has not ended, or another one of the stream has not.
            RolloutRefusedError: what it rolled out does not run.
            RefeedError: as applying its manifest.
        """
        principal.require(ROLLOUTS_APPLY)
        found = self._store.get_rollout(rollout_id)
        if not found.state.is_ended:
            message = f"{found.id} is {found.state}: 'refeed cancel {found.id}' rolls it back."
            raise RolloutInProgressError(message, rollout=found.id, state=found.state.value)
        document = {**found.document, "from": found.document["to"], "to": found.document["from"]}
        kind, wanted = self._store.get_stream(found.stream).kind, read_rollout(document)
        before, after = found.to_side, found.from_side
        _check_strategy(wanted, found.manifest, kind, before, after)
        self._check_release(after.release)
        update = update_request(wanted, before, after, is_trusted=was_stable(self._store, found.update))
        new = NewRollout(found.manifest, found.digest, document, found.stream, before, update, reverses=found.id)
        made = self._store.create_rollout(new, actor=principal.name)
        _LOG.info("rollout_reversed", rollout=found.id, by=principal.name, made=made.id)
        return made

    def cancel(self, rollout_id: str, *, principal: Principal) -> Rollout:
        """Have a rollout taken back; one that has changed nothing yet ends. Where it can't go back it stays.

        Raises:
            RolloutNotFoundError: there is none.
            RolloutStateError: it has ended, or goes back already.
        """
        principal.require(ROLLOUTS_APPLY)
        found = self._store.get_rollout(rollout_id)
        if found.state.is_ended or found.state in _BACK:
            what = "has ended" if found.state.is_ended else "goes back already"
            message = f"{found.id} is {found.state}: it {what}."
            raise RolloutStateError(message, rollout=found.id, state=found.state.value)
        if found.unwanted_by is not None:
            # Somebody has cancelled it already, and is heard at the end of the present step.
            return _shown_to(found, principal)
        fault = UpdateFault(UNWANTED, f"{principal.name} cancelled the rollout.")
        try:
            self._store.take_update_back(found.id, fault, actor=principal.name, may_stay=True)
        except StreamStateError as exc:
            raise RolloutStateError(exc.message, rollout=found.id, state=found.state.value) from exc
        _LOG.info("rollout_unwanted", rollout=found.id, state=found.state.value, by=principal.name)
        return _shown_to(self._store.get_rollout(found.id), principal)

    def list_inbox(self, *, principal: Principal) -> list[InboxItem]:
        """Return the rollouts of the last seven days that did not come through, one a stream at most.

        A later rollout of the stream makes up for one, and what somebody cancelled needs nobody.
        """
        principal.require(READ)
        since = self._store.now() - timedelta(days=FAILURE_DAYS)
        newest: dict[str, Rollout] = {}
        for each in self._store.list_rollouts():
            newest.setdefault(each.stream, each)
        return [
            _inbox_item(each)
            for each in newest.values()
            if each.state in _FAILURES
            and each.unwanted_by is None
            and each.finished_at is not None
            and each.finished_at >= since
        ]

    def _stream(self, name: str) -> StreamRecord:
        try:
            return self._store.get_stream(name)
        except StreamNotFoundError as exc:
            meant = did_you_mean(name, [each.name for each in self._store.list_streams()])
            raise StreamNotFoundError(f"{exc.message}{meant}", name=name) from exc


def was_stable(store: JobStore, update: StreamUpdate) -> bool:
    """Whether what ran before an update had come by a launch, or by a change that was proven STABLE."""
    side = RolloutSide(update.from_release, update.from_options)
    for each in store.list_updates(update.stream):
        if each.created_at < update.created_at and RolloutSide(each.request.release, each.to_options) == side:
            return each.state is UpdateState.STABLE and each.error is None
    return True


def _inbox_item(rollout: Rollout) -> InboxItem:
    why = "" if rollout.error is None else f" {rollout.error}"
    message = f"The rollout {rollout.manifest} of {rollout.stream} is {rollout.state}.{why}"
    by, at = rollout.created_by, rollout.finished_at
    return InboxItem("failure", "rollout", rollout.id, rollout.state, None, by, at, message)


def _shown_to(rollout: Rollout, principal: Principal) -> Rollout:
    """Return the rollout with the values of messages that the principal may read alone."""
    return replace(rollout, update=show_update(rollout.update, principal))


def update_request(
    wanted: RolloutWanted, before: RolloutSide, after: RolloutSide, *, is_trusted: bool = False
) -> UpdateRequest:
    """Return the update that brings the stream from one side of a rollout to the other.

    A release that is trusted is compared with nothing. A restart brings each option, and any other update leads
    from the names of sources to new ones.
    """
    is_restart, validation = wanted.strategy == "restart", wanted.validate_
    names = {*before.options, *after.options} - (set() if is_restart else {"mapping"})
    options = {name: after.options.get(name) for name in sorted(names)}
    has_shadow = wanted.strategy == "rolling" and not is_trusted
    return UpdateRequest(
        after.release,
        {name: value for name, value in options.items() if before.options.get(name) != value},
        {} if is_restart else _renamed(before, after),
        validate_seconds=validation.seconds,
        min_messages=validation.min_messages,
        shadow=ShadowRequest(may_differ=tuple(validation.may_differ)) if has_shadow else None,
        is_halting=wanted.on_failure == "halt",
        bounds=validation.thresholds,
        when_inconclusive=WhenInconclusive(validation.when_inconclusive),
        strategy=UpdateStrategy.RESTART if is_restart else UpdateStrategy.HAND_OVER,
        is_trusted=is_trusted,
    )


def _renamed(before: RolloutSide, after: RolloutSide) -> dict[str, str]:
    known = before.options.get("mapping") or {}
    return {old: new for old, new in (after.options.get("mapping") or {}).items() if known.get(old) != new}


def _side_of(record: StreamRecord) -> RolloutSide:
    return RolloutSide(record.release, record.options)


def _resolve(wanted: RolloutWanted, record: StreamRecord, pointer: str) -> tuple[RolloutSide, RolloutSide]:
    """Return both sides with their options; ``from`` is what runs where it is not given.

    Raises:
        RequestInvalidError: options or variables are none of the kind; all are named.
    """
    errors: list[dict[str, Any]] = []

    def resolve(name: str, side: RolloutSideWanted | None) -> RolloutSide:
        if side is None:
            return _side_of(record)
        try:
            return side.resolve(record.kind)
        except RequestInvalidError as exc:
            errors.extend(
                {**each, "pointer": f"{pointer}/{name}{each['pointer']}"} for each in exc.details["errors"]
            )
            return RolloutSide(None, {})

    sides = resolve("from", wanted.from_), resolve("to", wanted.to)
    if errors:
        raise RequestInvalidError(" ".join(error["message"] for error in errors), errors=errors)
    return sides


def _check_strategy(
    wanted: RolloutWanted, name: str, kind: StreamKind, before: RolloutSide, after: RolloutSide
) -> None:
    """Raise where the strategy can't bring a stream from one side to the other.

    Raises:
        RolloutRefusedError: it can't.
    """
    if wanted.from_ is not None and before == after:
        raise RolloutRefusedError(f"{name}: from and to have the same release and the same options.")
    if wanted.strategy != "restart" and not kind.has_standby:
        message = f"{name}: a {kind} stream can't be updated while it runs. Use the strategy restart."
        raise RolloutRefusedError(message)
    if wanted.strategy == "rolling" and kind is not StreamKind.PIPELINE:
        message = (
            f"{name}: only a pipeline can use the strategy rolling. Use update or restart for a {kind} stream."
        )
        raise RolloutRefusedError(message)
    if wanted.strategy != "restart":
        mapping = after.options.get("mapping") or {}
        if extend_mapping(before.options.get("mapping"), _renamed(before, after)) != mapping:
            raise RolloutRefusedError(
                f"{name}: an update can add entries to the option `mapping`, but it can't remove any. "
                "Use the strategy restart."
            )
