"""Changes of streams that a second person has to approve, as the settings require."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from jobs.versions import Versions
from model.change import ChangeRecord, ChangeRequest
from model.principal import STREAMS_OPERATE, Principal
from model.stream_update import UpdateRequest
from rollout.changes import Act, ChangeService
from rollout.service import StreamService
from rollout.snapshots import SnapshotService
from rollout.updates import UpdateService

KIND: Final = "stream"


class StreamChanges:
    """Holds changes of streams until a second person approves; ``held`` are the verbs that need an approval.

    Call :meth:`hold` before any of :data:`model.stream_record.APPROVABLE_ACTIONS` that a caller requests.
    """

    def __init__(self, changes: ChangeService, streams: StreamService, held: Collection[str]) -> None:
        self._changes = changes
        self._streams = streams
        self._held = frozenset(held)

    def hold(
        self,
        verb: str,
        name: str,
        body: Mapping[str, Any],
        *,
        principal: Principal,
        versions: Versions = None,
    ) -> ChangeRecord | None:
        """Return the change that now waits for a second person, or None if the verb needs no approval.

        ``body`` is the body of the request.

        Raises:
            StreamNotFoundError: no stream was ever launched under this name.
            StreamChangedError: the stream is at none of ``versions``.
            RefeedError: as the act raises it.
        """
        if verb not in self._held:
            return None
        record = self._streams.get_for_change(name, principal=principal, versions=versions)
        what = _DESCRIBE[verb](record.name, body)
        return self._changes.ask(
            ChangeRequest(
                KIND, record.name, verb, body, what, record.version, STREAMS_OPERATE, requester=principal
            )
        )


def stream_acts(
    streams: StreamService, snapshots: SnapshotService, updates: UpdateService
) -> dict[tuple[str, str], Act]:
    """Return the function for each change of a stream that can need an approval."""

    def drain(change: ChangeRecord) -> dict[str, Any]:
        asked = change.request
        record = streams.drain(asked.name, **_who(change), timeout_seconds=asked.body["timeout_seconds"])
        return {"stream": record.name}

    def cancel(change: ChangeRecord) -> dict[str, Any]:
        return {"stream": streams.cancel(change.request.name, **_who(change)).name}

    def rollback(change: ChangeRecord) -> dict[str, Any]:
        asked = change.request
        snapshot, discards = asked.body["snapshot"], asked.body["discard_staged"]
        made = snapshots.rollback(asked.name, snapshot, **_who(change), discard_staged=discards)
        return {"rollback": made.id}

    def update(change: ChangeRecord) -> dict[str, Any]:
        asked = change.request
        return {"update": updates.create(asked.name, UpdateRequest.from_json(asked.body), **_who(change)).id}

    return {
        (KIND, "drain"): drain,
        (KIND, "cancel"): cancel,
        (KIND, "rollback"): rollback,
        (KIND, "update"): update,
    }


def _who(change: ChangeRecord) -> dict[str, Any]:
    asked = change.request
    return {"principal": asked.requester, "versions": {asked.version}, "why": change.why}


def _say_drain(name: str, request: Mapping[str, Any]) -> str:
    seconds = request["timeout_seconds"]
    return (
        f"Drain {name}: the stream commits the messages that it has pulled, within {seconds:g} s, and then ends."
    )


def _say_cancel(name: str, _: Mapping[str, Any]) -> str:
    return f"Cancel {name}: the stream ends at once. Pub/Sub delivers its unacknowledged messages again."


def _say_rollback(name: str, request: Mapping[str, Any]) -> str:
    rows = "are deleted" if request["discard_staged"] else "stay"
    return f"Roll {name} back to {request['snapshot']}: rows that were staged after the snapshot {rows}."


def _say_update(name: str, request: Mapping[str, Any]) -> str:
    changes = [
        f"{key} {'as in the settings' if value is None else value}" for key, value in request["options"].items()
    ]
    changes += [f"{old} renamed to {new}" if new else f"{old} ended" for old, new in request["mapping"].items()]
    with_ = f", with {', '.join(changes)}" if changes else ""
    reason = f" The reason: {request['reason']}" if request["reason"] else ""
    return f"Update {name} to {request['release'] or 'the installed release'}{with_}.{reason}"


_DESCRIBE: Final = {"drain": _say_drain, "cancel": _say_cancel, "rollback": _say_rollback, "update": _say_update}
