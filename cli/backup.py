"""``refeed backup``: the stream, and the snapshots that can take its subscriptions back to a moment."""

import re
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.invocation import HomeGroup, command_settings, open_deployment
from cli.leaving import run_stream
from cli.options import JsonArrayOption, YesOption
from cli.services import InstanceOption, NameOption, service_settings
from cli.terminal import confirm, err, out, print_found, render_table
from model.errors import InputError, SnapshotNotFoundError, StreamStateError, SubscriptionNotFoundError
from model.message import BACKUP_SNAPSHOT_PREFIX, backup_snapshot_id, backup_subscription_id
from model.stream_options import BackupStreamOptions, StreamKind

if TYPE_CHECKING:
    from app.deployment import Deployment
    from connectors.pubsub.client import PubSub, SnapshotInfo

app = typer.Typer(
    cls=HomeGroup,
    help="Run the backup stream without an agent, or create and restore snapshots of its subscriptions.",
    invoke_without_command=True,
)

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,39}")

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Up to 40 lower-case letters, digits and -.", show_default=False)
]


@app.callback()
def backup(context: typer.Context, name: NameOption = None, instance: InstanceOption = None) -> None:
    """Run the backup stream until Ctrl-C or SIGTERM, which drains it; or do what the command says."""
    if context.invoked_subcommand is not None:
        return
    from app.streams import run_backup

    settings = service_settings()
    run_stream(lambda: run_backup(settings, name=name, instance_id=instance))


@app.command("snapshot")
def snapshot(name: NameArgument, as_json: JsonArrayOption = False) -> None:
    """Make a Pub/Sub snapshot of every backup subscription, if the backup runs without an agent.

    Pub/Sub keeps these snapshots for at most seven days. After a restore, Pub/Sub delivers all later messages
    again. Restore a snapshot if the archive was lost or damaged. If an agent runs the backup, use 'refeed
    snapshot'.
    """
    _check_name(name)
    with open_deployment() as deployment:
        _refuse_managed(deployment, "snapshot {} --with-source")
        made = [
            deployment.pubsub.create_snapshot(backup_snapshot_id(subscription.topic, name), subscription.id)
            for subscription in deployment.pubsub.list_subscriptions()
            if subscription.id == backup_subscription_id(subscription.topic) and not subscription.detached
        ]
    if not made:
        raise SubscriptionNotFoundError(
            "No topic is attached, so there is no backup subscription. Run 'refeed attach' first."
        )
    _print_snapshots(made, as_json=as_json)


@app.command("snapshots")
def snapshots(as_json: JsonArrayOption = False) -> None:
    """List the snapshots of backup subscriptions."""
    with open_deployment() as deployment:
        found = [s for s in deployment.pubsub.list_snapshots() if s.id.startswith(BACKUP_SNAPSHOT_PREFIX)]
    _print_snapshots(found, as_json=as_json)


@app.command("restore")
def restore(
    name: NameArgument,
    yes: YesOption = False,
    as_json: JsonArrayOption = False,
) -> None:
    """Restore a snapshot of the backup subscriptions. Pub/Sub then delivers all later messages again.

    Stop the backup, and run this command on the backup's machine. Then start the backup again. The backup archives
    only messages that are not in the archive. If an agent runs the backup, use 'refeed restore'.
    """
    from model.stream import BACKUP_STREAM
    from model.stream_snapshot import oldest_in_snapshot
    from streams.folder import StreamFolder
    from streams.snapshot import forget_ids

    _check_name(name)
    with open_deployment() as deployment:
        _refuse_managed(deployment, "restore {} SNAPSHOT")
        found = _find(deployment.pubsub, name)
        if not yes:
            err.print(f"{len(found)} backup subscriptions return to the snapshot {name}.")
            confirm("Pub/Sub delivers all messages since the snapshot again. Continue?")
        state = StreamFolder.of(command_settings().home, BACKUP_STREAM).state
        with deployment.stream_fence.hold(state, BackupStreamOptions()):
            forget_ids(state, min(oldest_in_snapshot(each.expires_at) for each in found))
            for each in found:
                deployment.pubsub.seek_to_snapshot(backup_subscription_id(each.topic), each.id)
    _print_snapshots(found, as_json=as_json)


@app.command("forget")
def forget(name: NameArgument) -> None:
    """Delete a snapshot of the backup subscriptions."""
    _check_name(name)
    with open_deployment() as deployment:
        found = _find(deployment.pubsub, name)
        for each in found:
            deployment.pubsub.delete_snapshot(each.id)
    out.print(f"{len(found)} snapshots deleted")


def _find(pubsub: "PubSub", name: str) -> "list[SnapshotInfo]":
    found = [s for s in pubsub.list_snapshots() if s.id.startswith(f"{BACKUP_SNAPSHOT_PREFIX}{name}.")]
    if not found:
        raise SnapshotNotFoundError(
            f"No backup subscription has a snapshot with the name {name}. 'refeed backup snapshots' lists all.",
            name=name,
        )
    return found


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} is not a valid name for a snapshot. Use up to 40 lower-case letters, digits and -."
        )


def _refuse_managed(deployment: "Deployment", instead: str) -> None:
    """Raise when an agent runs the backup: ``instead`` is the command for it, by its name.

    Raises:
        StreamStateError: one does.
    """
    for record in deployment.store.list_streams():
        if record.kind is StreamKind.BACKUP and record.is_living:
            command = f"refeed {instead.format(record.name)}"
            raise StreamStateError(
                f"An agent runs the stream {record.name}. Use '{command}' instead.", stream=record.name
            )


def _print_snapshots(found: "list[SnapshotInfo]", *, as_json: bool) -> None:
    rows = [
        {
            "name": s.id.removeprefix(BACKUP_SNAPSHOT_PREFIX).partition(".")[0],
            "topic": s.topic,
            "expires_at": s.expires_at.isoformat(),
        }
        for s in found
    ]
    names = ("name", "topic", "expires at")
    print_found(rows, lambda _: render_table(names, [tuple(row.values()) for row in rows]), as_json=as_json)
