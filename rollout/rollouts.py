"""Rollouts of streams: the updates that manifests and schedules describe."""

from collections.abc import Callable
from typing import Any, Final

import structlog

from jobs.store import Idempotency, JobStore
from model.errors import RequestInvalidError, RolloutRefusedError
from model.principal import ROLLOUTS_APPLY, Principal
from model.rollout_record import NewRollout, RolloutSide
from model.stream_options import StreamKind, extend_mapping
from model.stream_record import StreamRecord, Wanted
from model.stream_update import (
    ShadowRequest,
    StreamUpdate,
    UpdateManifest,
    UpdateRequest,
    UpdateStrategy,
    WhenInconclusive,
)
from rollout.manifests.manifest import digest_of
from rollout.manifests.rollout import RolloutSideWanted, RolloutWanted
from rollout.service import any_release, require_topic

# The code of a rollout to the release and options that run already.
NOTHING_TO_ROLL_OUT: Final = "nothing_to_roll_out"
_LOG: Final = structlog.get_logger()


class RolloutService:
    """Turns rollouts into updates of their streams.

    ``check_release`` raises for a release that no agent has.
    """

    def __init__(self, store: JobStore, *, check_release: Callable[[str | None], None] = any_release) -> None:
        self._store = store
        self._check_release = check_release

    def prepare(
        self, wanted: RolloutWanted, name: str, principal: Principal | None, *, pointer: str = ""
    ) -> NewRollout:
        """Return the rollout that the manifest ``name`` describes, after a check that it can begin now.

        ``principal`` begins the rollout; None is a plan. ``pointer`` is the rollout's place in its document.

        Raises:
            StreamNotFoundError: no stream was ever launched under this name. RequestInvalidError: options are
            invalid for this kind of stream; ``details["errors"]`` has all of them. ReleaseNotFoundError: no agent
            has the release. RolloutRefusedError: the stream can't be updated in this way. ForbiddenError: the
            stream would publish to a topic that ``principal`` may not publish to.
        """
        record = self._store.get_stream(wanted.stream)
        before, after = _resolve(wanted, record, pointer)
        _check_strategy(wanted, name, record.kind, before, after)
        self._check_release(wanted.to.release)
        update = _update_request(wanted, before, after)
        if principal is not None:
            require_topic(principal, record.kind, update.options)
        return NewRollout(wanted.stream, before, update)

    def begin(self, wanted: RolloutWanted, name: str, key: str, *, principal: Principal) -> StreamUpdate:
        """Begin a rollout of the schedule ``name``; a repeated key returns the rollout of the first call.

        Raises:
            RequestInvalidError: the stream already runs like this; the code is ``nothing_to_roll_out``.
            RefeedError: as :meth:`prepare`, or another update of the stream has not ended.
        """
        principal.require(ROLLOUTS_APPLY)
        manifest = UpdateManifest(name, digest_of(key))
        for each in self._store.list_updates(manifest=name):
            if each.manifest == manifest and each.reverses is None:
                return each
        rollout = self.prepare(wanted, name, principal)
        record = self._store.get_stream(wanted.stream)
        is_running = record.is_living and record.wanted is Wanted.RUNNING
        if is_running and _side_of(record) == wanted.to.resolve(record.kind):
            message = (
                f"{record.name} already runs with this release and these options: there is nothing to roll out."
            )
            raise RequestInvalidError.of(NOTHING_TO_ROLL_OUT, message, "/to")
        made = self._store.create_update(
            rollout.stream,
            rollout.update,
            actor=principal.name,
            why=f"the rollout {name}",
            idempotency=Idempotency(key, manifest.digest),
            manifest=manifest,
            from_side=rollout.from_side,
        )
        _LOG.info("rollout_begun", update=made.id, stream=made.stream, by=principal.name)
        return made


def _update_request(wanted: RolloutWanted, before: RolloutSide, after: RolloutSide) -> UpdateRequest:
    """Return the update that changes the stream from the side ``before`` to the side ``after``.

    A restart sets every option that differs; any other update maps the names of sources to their new names.
    """
    is_restart, validation = wanted.strategy == "restart", wanted.validate_
    names = {*before.options, *after.options} - (set() if is_restart else {"mapping"})
    options = {name: after.options.get(name) for name in sorted(names)}
    return UpdateRequest(
        after.release,
        {name: value for name, value in options.items() if before.options.get(name) != value},
        {} if is_restart else _renamed(before, after),
        validate_seconds=validation.seconds,
        min_messages=validation.min_messages,
        shadow=ShadowRequest(may_differ=tuple(validation.may_differ)) if wanted.strategy == "rolling" else None,
        is_halting=wanted.on_failure == "halt",
        bounds=validation.thresholds,
        when_inconclusive=WhenInconclusive(validation.when_inconclusive),
        strategy=UpdateStrategy.RESTART if is_restart else UpdateStrategy.HAND_OVER,
    )


def _renamed(before: RolloutSide, after: RolloutSide) -> dict[str, str]:
    known = before.options.get("mapping") or {}
    return {old: new for old, new in (after.options.get("mapping") or {}).items() if known.get(old) != new}


def _side_of(record: StreamRecord) -> RolloutSide:
    return RolloutSide(record.release, record.options)


def _resolve(wanted: RolloutWanted, record: StreamRecord, pointer: str) -> tuple[RolloutSide, RolloutSide]:
    """Return both sides with their options; without ``from``, the first side is the running stream.

    Raises:
        RequestInvalidError: options or variables are invalid for this kind of stream; the error names all of them.
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
        raise RequestInvalidError.of_all(errors)
    return sides


def _check_strategy(
    wanted: RolloutWanted, name: str, kind: StreamKind, before: RolloutSide, after: RolloutSide
) -> None:
    """Check that the strategy can change a stream from one side to the other.

    Raises:
        RolloutRefusedError: the strategy can't.
    """
    if wanted.from_ is not None and before == after:
        raise RolloutRefusedError(f"{name}: from and to have the same release and the same options.")
    if wanted.strategy != "restart" and not kind.has_standby:
        raise RolloutRefusedError(
            f"{name}: a {kind} stream can't be updated while it runs. Use the strategy restart."
        )
    if wanted.strategy == "rolling" and kind is not StreamKind.PIPELINE:
        raise RolloutRefusedError(
            f"{name}: only a pipeline can use the strategy rolling. Use update or restart for a {kind} stream."
        )
    extended = extend_mapping(before.options.get("mapping"), _renamed(before, after))
    if wanted.strategy != "restart" and extended != (after.options.get("mapping") or {}):
        raise RolloutRefusedError(
            f"{name}: an update can add entries to the option `mapping`, but it can't remove any. "
            "Use the strategy restart."
        )
