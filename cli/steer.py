"""``refeed pause``, ``cancel``, ``retry``, ``revert``, ``approve``, ``set``, and what else steers objects."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from backfill.plan.request import CHANGEABLE, BackfillRequest
from cli.api import open_api
from cli.change import end_if_held
from cli.flags import flag_of, read_given, takes_fields
from cli.jobs import reread_lines
from cli.kinds import KINDS
from cli.objects import ObjectKind
from cli.options import JsonOption, ObjectArgument, WatchOption, YesOption
from cli.stream import CHANGEABLE as STREAM_FLAGS
from cli.stream import StreamFlags
from cli.terminal import confirm, err
from cli.update import UPDATE
from model.errors import InputError, RefeedError
from model.job import JobState
from model.naming import counted
from model.stream_update import UNWANTED, UpdateState

if TYPE_CHECKING:
    from client.api import RefeedApi

# Actions that change nothing of an object that they were done to already.
_REPEATED: Final = frozenset({"pause", "resume", "cancel"})
_RATE: Final = "rate_limit_messages_per_second"
_BACKFILL_FLAGS: Final = tuple(dict.fromkeys((_RATE, *CHANGEABLE)))


def pause(name: ObjectArgument, as_json: JsonOption = False) -> None:
    """Pause a backfill or a schedule until 'refeed resume'.

    A paused backfill can still publish some messages, and the command prints how many. A paused schedule starts no
    jobs, and running jobs continue.
    """
    _act("pause", name, as_json=as_json)


def resume(name: ObjectArgument, watch: WatchOption = False, as_json: JsonOption = False) -> None:
    """Resume a paused backfill or a paused schedule. A backfill may also have paused after its canary.

    Runs of a schedule that were due during the pause are skipped.
    """
    _act("resume", name, watch=watch, as_json=as_json)


def cancel(name: ObjectArgument, watch: WatchOption = False, as_json: JsonOption = False) -> None:
    """Cancel a job, or end a stream at once. Finished work of the job stays.

    Messages that a backfill published stay published. Sources that a merge has merged stay merged. An update that
    has changed its stream is rolled back. Pub/Sub delivers a stream's uncommitted messages again.
    """
    _act("cancel", name, watch=watch, as_json=as_json)


def retry(
    name: ObjectArgument,
    *,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="all|failed|missing",
            help="For a backfill. 'all': all messages that are not published yet, including dead letters. "
            "'failed': only dead letters. 'missing': only messages that are not in the target's staging table.",
            show_default="all",
        ),
    ] = None,
    code: Annotated[
        str | None,
        typer.Option(
            help="With '--only failed': send only the dead letters that have this code.", show_default=False
        ),
    ] = None,
    row: Annotated[
        list[int] | None,
        typer.Option(min=0, help="With '--only failed': send only the dead letter of row N. May be repeated."),
    ] = None,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Continue a failed or cancelled job where it stopped. Finished work is not repeated."""
    given = {"only": only, "code": code, "rows": row}
    body = {field: value for field, value in given.items() if value is not None}
    _act("retry", name, body or None, watch=watch, as_json=as_json)


def rerun(
    name: ObjectArgument, yes: YesOption = False, watch: WatchOption = False, as_json: JsonOption = False
) -> None:
    """Run a backfill, a merge or a compaction that has ended again, as a new job with the same request.

    A backfill runs its query again, and publishes the messages that it selects now. To publish only messages that
    are not published yet, use 'refeed retry'.

    A merge does not read rows again that are merged. To read a day again, use 'refeed merge create --date DAY'.
    """
    with open_api() as api:
        kind, object_id = KINDS.find(api, name, "rerun")
        assert kind.read is not None
        ended = kind.read(api, object_id)
        if not JobState(ended["state"]).is_final:
            raise InputError(f"{object_id} is {ended['state']}. 'refeed rerun' works on jobs that have ended.")
        if kind.name == "backfill" and not yes:
            confirm(f"Run the query of {object_id} again, and publish its messages to {ended['topic']}?")
        if kind.name == "merge":
            for line in reread_lines(ended):
                err.print(line)
        kind.finish(api, kind.acts["rerun"](api, object_id, ended), watch=watch, as_json=as_json)


def revert(
    name: ObjectArgument, yes: YesOption = False, watch: WatchOption = False, as_json: JsonOption = False
) -> None:
    """Reverse a job: delete the rows of a backfill, or undo an update. stream/NAME means its newest update.

    The rows of a backfill are deleted from the target's staging table, and the command asks before it deletes
    them. If a merge has already read the rows, the command fails. An update that has not ended is rolled back. If
    the update has ended, a new update returns the stream to its earlier release and options. If the newest update
    of stream/NAME is itself a revert, the command refuses, and names the id that takes the revert back. A revert
    that changed nothing does not count. With --watch, the command waits for the end of the update, and exits with
    0 only if it is ROLLED_BACK, or if the new update is STABLE.
    """
    with open_api() as api:
        kind, object_id = KINDS.find(api, name, "revert")
        if kind.name == "stream":
            updates = api.list_stream_jobs(object_id, "update")
            if not updates:
                raise InputError(f"{object_id} has no update that could be reverted.")
            newest, stream = updates[0], api.read_stream(object_id)
            while newest["reverses"] is not None and _changed_nothing(newest, stream):
                newest = api.jobs.read(newest["reverses"])
            kind, object_id = UPDATE, newest["id"]
            if (reverted := newest["reverses"]) is not None:
                raise InputError(
                    f"The newest update of {name} is itself a revert: {object_id} reverts {reverted}. "
                    f"To take the revert back, name it: refeed revert {object_id}"
                )
        if kind.name == "backfill" and not yes:
            _confirm_revert(api.jobs.read(object_id))
        found = kind.acts["revert"](api, object_id, None)
        # What is taken back has ended well once it is; a change that is new has once it is stable.
        ends_as = UpdateState.ROLLED_BACK if found.get("id") == object_id else UpdateState.STABLE
        if kind.name == "update":
            kind = replace(kind, succeeded=lambda found: found["state"] == ends_as)
        # The rows of a backfill are deleted before the API answers.
        kind.finish(api, found, watch=watch and kind.name == "update", as_json=as_json)


def _changed_nothing(update: Mapping[str, Any], stream: Mapping[str, Any]) -> bool:
    """Whether an update has ended, and the stream runs as it did before, maybe after a way back that failed."""
    before = (update["from_release"], update["from_options"])
    return UpdateState(update["state"]).is_ended and (stream["release"], stream["options"]) == before


def _confirm_revert(backfill: Mapping[str, Any]) -> None:
    # The API refuses one that has not ended.
    if JobState(backfill["state"]).is_final:
        landed = (backfill.get("verification") or {}).get("landed")
        rows = "rows" if landed is None else counted(landed, "row")
        confirm(f"Delete the {rows} of {backfill['id']} from the staging table of {backfill['topic']}?")


def approve(name: ObjectArgument, watch: WatchOption = False, as_json: JsonOption = False) -> None:
    """Approve a large backfill, or a change that another person requested.

    The person who requested a change or a backfill can't approve it. You need the scope of the change.
    """
    _act("approve", name, watch=watch, as_json=as_json)


def reject(
    name: ObjectArgument,
    *,
    reason: Annotated[
        str | None, typer.Option(help="The reason. The person who requested the change sees it.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Reject a change. The person who requested a change can also withdraw it with this command."""
    _act("reject", name, {"reason": reason}, as_json=as_json)


@takes_fields(
    BackfillRequest,
    _BACKFILL_FLAGS,
    help_texts={
        _RATE: "For a backfill: the maximum number of messages to publish in a second. 0 removes the limit.",
        "description": "For a backfill: the new description.",
    },
)
@takes_fields(StreamFlags, STREAM_FLAGS)
def set_(name: ObjectArgument, *, as_json: JsonOption = False, **given: Any) -> None:
    """Change a backfill's rate limit, description or labels, or the batch limits of a running stream.

    A running backfill uses a new rate limit within one second. A stream uses new limits from its next batch on.
    """
    with open_api() as api:
        kind, object_id = KINDS.find(api, name, "set")
        of_stream = kind.name == "stream"
        declaration, flags, others = (
            (StreamFlags, STREAM_FLAGS, _BACKFILL_FLAGS)
            if of_stream
            else (BackfillRequest, _BACKFILL_FLAGS, STREAM_FLAGS)
        )
        foreign = [field for field in others if given[field] is not None]
        changes = read_given(declaration, {field: given[field] for field in flags})
        if foreign or not changes:
            *first, last = (flag_of(declaration, field) for field in flags)
            raise InputError(f"Of a {kind.name} you can change {', '.join(first)} and {last}.")
        if changes.get(_RATE) == 0:
            changes[_RATE] = None
        found = (
            api.change_stream(object_id, {"options": changes})
            if of_stream
            else api.jobs.change(object_id, changes)
        )
    kind.show(found, as_json=as_json)


def _act(
    verb: str, name: str, body: Mapping[str, Any] | None = None, *, watch: bool = False, as_json: bool
) -> None:
    with open_api() as api:
        kind, object_id = KINDS.find(api, name, verb)
        if verb == "retry" and body and kind.name != "backfill":
            raise InputError(f"--only, --code and --row work only with a backfill. {name} is a {kind.name}.")
        before = _read_version(api, kind, object_id) if verb in _REPEATED else None
        found = kind.acts[verb](api, object_id, body)
        if before is not None and before == found.get("etag"):
            err.print(f"Nothing changed: {object_id} is {found.get('state', f'{verb}d')} already.")
        if kind.name != "change":
            end_if_held(found, waits=watch, as_json=as_json)
        if verb == "cancel" and kind.name != "stream":
            kind = replace(kind, succeeded=_is_cancelled)
        kind.finish(api, found, watch=watch, as_json=as_json)


def _read_version(api: "RefeedApi", kind: ObjectKind, object_id: str) -> str | None:
    """Return the object's version, None if it has none, or can't be read: then the action says why."""
    with suppress(RefeedError):
        return None if kind.read is None else kind.read(api, object_id).get("etag")
    return None


def _is_cancelled(found: Mapping[str, Any]) -> bool:
    """Whether a job ended as its cancel wanted; an update with no way back has FAILED then."""
    wanted = {JobState.CANCELLED, UpdateState.ROLLED_BACK}
    return found["state"] in wanted or (found.get("error") or {}).get("code") == UNWANTED
