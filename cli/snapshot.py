"""Snapshots of streams as commands show and delete them; and ``refeed snapshot`` and ``restore``."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

import typer

from cli.api import open_api, poll
from cli.change import end_if_held
from cli.completion import name_argument
from cli.jobs import job_kind, next_of
from cli.moments import render_minute
from cli.objects import ObjectKind, complete_id, follow_states, stream_name
from cli.options import JsonOption, WatchOption, YesOption, key_option
from cli.terminal import ExitCode, confirm, err, list_table, print_found, render_fault
from model.errors import InputError
from model.naming import counted
from model.stream_snapshot import DISCARD_EFFECT

if TYPE_CHECKING:
    from client.api import RefeedApi

_WAIT_SECONDS: Final = 600.0

IdArgument = Annotated[
    str,
    name_argument(
        "snapshot",
        "The snapshot's id, the beginning of the id, or 'latest' for the stream's newest completed snapshot.",
        "ID",
    ),
]
StreamArgument = Annotated[str, name_argument("stream")]


def snapshot(
    name: StreamArgument,
    *,
    with_source: Annotated[
        bool,
        typer.Option(
            "--with-source",
            help="Also make a Pub/Sub snapshot of each of the stream's subscriptions. Pub/Sub keeps Pub/Sub "
            "snapshots for at most seven days.",
        ),
    ] = False,
    idempotency_key: Annotated[str | None, key_option("make only one snapshot")] = None,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a snapshot of a stream's state between two commits. --with-source adds Pub/Sub snapshots.

    'refeed restore NAME ID' returns the stream to the snapshot.
    """
    name = stream_name(name)
    with open_api() as api:
        key = idempotency_key or str(uuid4())
        made = api.create_snapshot(name, with_source=with_source, idempotency_key=key)
        if watch:
            made = _follow(api, made)
    print_found(made, _lines, as_json=as_json)
    _exit_failed(made)


def restore(
    name: StreamArgument,
    snapshot_id: IdArgument,
    *,
    discard_staged: Annotated[
        bool,
        typer.Option(
            "--discard-staged",
            help="Delete the rows that the stream staged since the snapshot, and stage their messages again.",
        ),
    ] = False,
    yes: YesOption = False,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Drain a stream, return the stream and its subscriptions to a snapshot, and start the stream again.

    Pub/Sub delivers the messages since the snapshot again. The stream does not write a message twice. With
    --discard-staged, a pipeline deletes the rows that it staged since the snapshot, and stages their messages
    again. A restore does not change the stream's release or options.
    """
    name = stream_name(name)
    with open_api() as api:
        snapshot_id = _find_latest(api, name) if snapshot_id == "latest" else whole_id(api, snapshot_id)
        found = api.read_snapshot(snapshot_id)
        # One that nobody can go back to is refused without a question.
        if not yes and found["taken_at"] is not None and found["stream"] == name:
            its = counted(len(found["subscriptions"]), "subscription")
            err.print(f"The stream {name} and its {its} return to {found['taken_at']}.")
            if discard_staged:
                err.print(DISCARD_EFFECT)
            delete = "Delete the rows?" if discard_staged else "Continue?"
            confirm(f"The stream is drained first, and started again afterwards. {delete}")
        asked = api.roll_back_stream(
            name, snapshot_id, discard_staged=discard_staged, idempotency_key=str(uuid4())
        )
        end_if_held(asked, waits=watch, as_json=as_json)
        RESTORE.finish(api, asked, watch=watch, as_json=as_json)


def _find_latest(api: "RefeedApi", stream: str) -> str:
    found = api.list_snapshots(stream=stream)
    completed = next((each for each in found if each["state"] == "COMPLETED"), None)
    if completed is None:
        # A stream that does not exist is told as such.
        api.read_stream(stream)
        raise InputError(f"The stream {stream} has no completed snapshot. To make one: refeed snapshot {stream}")
    return str(completed["id"])


def delete_snapshots(snapshots: Sequence[str], *, yes: bool, as_json: bool) -> None:
    """Delete snapshots, with their files and their Pub/Sub snapshots; without ``yes`` it asks."""
    with open_api() as api:
        snapshots = [whole_id(api, each) for each in snapshots]
        if not yes:
            # A mistyped id is refused without a question.
            for snapshot_id in snapshots:
                found = api.read_snapshot(snapshot_id)
                err.print(f"After this, {found['stream']} can't return to {snapshot_id} of {found['created_at']}.")
            confirm("Continue?")
        for snapshot_id in snapshots:
            print_found(api.delete_snapshot(snapshot_id), _lines, as_json=as_json)


def _follow(api: "RefeedApi", found: dict[str, Any]) -> dict[str, Any]:
    return poll(found, lambda: api.read_snapshot(found["id"]), _has_ended, seconds=_WAIT_SECONDS)


def _has_ended(found: Mapping[str, Any]) -> bool:
    return found["state"] not in {"PENDING", "RUNNING"}


def _exit_failed(found: dict[str, Any]) -> None:
    error = found["error"]
    if error is not None:
        err.print(render_fault(error))
        raise typer.Exit(ExitCode.FAILED)


def _rollback_lines(asked: Mapping[str, Any]) -> Iterator[str]:
    yield f"{asked['id']}: {asked['stream']} returns to {asked['snapshot']}, {asked['state']}"
    if asked["state"] == "SUCCEEDED" and asked["discard_staged"] and not asked["discarded_rows"]:
        yield "discarded: no rows"
    for table, rows in asked["discarded_rows"].items():
        yield f"discarded: {counted(rows, 'row')} of {table}"
    for sentence in asked["not_reverted"]:
        yield f"stays: {sentence}"
    if asked["error"] is not None:
        yield f"  {render_fault(asked['error'])}"


def _follow_restore(api: "RefeedApi", asked: dict[str, Any]) -> dict[str, Any]:
    """Return the restore once it has ended; its stream starts only after that, so its state is printed."""
    found = follow_states(asked, lambda: api.jobs.read(asked["id"]), {"SUCCEEDED", "FAILED"})
    if found["state"] == "SUCCEEDED":
        stream = api.read_stream(found["stream"])
        if stream["state"] != "RUNNING":
            err.print(f"{stream['name']} is back at the snapshot, and does not run yet: it is {stream['state']}.")
    return found


def _held(found: Mapping[str, Any]) -> str:
    return counted(len(found["subscriptions"]), "subscription") if found["with_source"] else "state alone"


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{found['id']} of {found['stream']}: {found['state']}"
    for label, key in (
        ("release", "release"),
        ("bytes", "size_bytes"),
        ("seconds paused", "seconds_paused"),
        ("source expires", "expire_time"),
    ):
        if found[key] is not None:
            yield f"  {label}: {found[key]}"
    for source in found["subscriptions"]:
        yield f"  {source['subscription']}: {source['snapshot']}"


def _fetch(api: "RefeedApi", wanted: Mapping[str, Any]) -> dict[str, Any]:
    found = api.list_snapshots(stream=wanted.get("stream"))
    return {"snapshots": [each for each in found if each["id"].startswith(wanted.get("id_prefix", ""))]}


def whole_id(api: "RefeedApi", text: str) -> str:
    """Return the id of the snapshot that is written as its id, the beginning of it, or snapshot/ID."""
    return complete_id(api, SNAPSHOT, text.removeprefix("snapshot/"))


SNAPSHOT: Final = ObjectKind(
    name="snapshot",
    plural="snapshots",
    prefix="sn",
    fetch=_fetch,
    filters=("stream", "id_prefix"),
    table=list_table(
        "snapshots",
        {
            **{name: name for name in ("id", "stream", "state", "reason")},
            "made": lambda it: render_minute(it["created_at"]),
            "holds": _held,
            "source expires": lambda it: "" if it["expire_time"] is None else render_minute(it["expire_time"]),
        },
    ),
    read=lambda api, snapshot_id: api.read_snapshot(snapshot_id),
    lines=_lines,
    next=next_of(COMPLETED="refeed restore {stream} {id}", FAILED="refeed snapshot {stream}"),
    follow=_follow,
    succeeded=lambda found: found["state"] == "COMPLETED",
)
RESTORE: Final = job_kind(
    "restore",
    "rs",
    filters=("stream",),
    table=list_table(
        "restores",
        {
            **{name: name for name in ("id", "stream", "state", "snapshot")},
            "by": "created_by",
            "created": "created_at",
        },
    ),
    lines=_rollback_lines,
    next=next_of(SUCCEEDED="refeed describe stream/{stream}", FAILED="refeed logs stream/{stream}"),
    follow=_follow_restore,
)
