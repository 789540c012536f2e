"""``refeed backup``: the stream, and the snapshots that can take its subscriptions back to a moment."""

import re
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.invocation import HomeGroup, command_settings
from cli.services import InstanceOption, NameOption, configure_logging
from cli.terminal import err, out, print_json, print_table
from model.errors import InputError, SnapshotNotFoundError, SubscriptionNotFoundError
from model.message import (
    BACKUP_SNAPSHOT_PREFIX,
    backup_snapshot_id,
    backup_subscription_id,
)

if TYPE_CHECKING:
    from connectors.pubsub.client import PubSub, SnapshotInfo

app = typer.Typer(
    cls=HomeGroup,
    help="Run the backup stream; create and restore snapshots of its subscriptions.",
    invoke_without_command=True,
)

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,39}")

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Up to 40 lower-case letters, digits and -.", show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON array.")]


@app.callback()
def backup(context: typer.Context, name: NameOption = None, instance: InstanceOption = None) -> None:
    """Run the backup stream until Ctrl-C or SIGTERM, which drains it; or do what the command says."""
    if context.invoked_subcommand is not None:
        return
    from app.streams import run_backup

    settings = command_settings()
    configure_logging()
    raise typer.Exit(run_backup(settings, name=name, instance_id=instance))


@app.command("snapshot")
def snapshot(name: NameArgument, as_json: JsonOption = False) -> None:
    """Save the acknowledgement state of every backup subscription, for up to seven days.

    A restore delivers again what came later: the way back when an archive was lost or damaged.
    """
    _check_name(name)
    with _pubsub() as pubsub:
        made = [
            pubsub.create_snapshot(backup_snapshot_id(subscription.topic, name), subscription.id)
            for subscription in pubsub.list_subscriptions()
            if subscription.id == backup_subscription_id(subscription.topic) and not subscription.detached
        ]
    if not made:
        raise SubscriptionNotFoundError("Nothing is attached: there is no subscription to make a snapshot of.")
    _print_snapshots(made, as_json=as_json)


@app.command("snapshots")
def snapshots(as_json: JsonOption = False) -> None:
    """List the snapshots of backup subscriptions."""
    with _pubsub() as pubsub:
        found = [s for s in pubsub.list_snapshots() if s.id.startswith(BACKUP_SNAPSHOT_PREFIX)]
    _print_snapshots(found, as_json=as_json)


@app.command("restore")
def restore(
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Deliver to the backup again all messages that were not acknowledged at the time of the snapshot.

    What the archive has of that is archived a second time, except for what the stream remembers
    (REFEED_KNOWN_IDS_SECONDS): restore into an empty archive, or one that lost what came after the snapshot, and
    before that stop the backup and move streams/backup/journal of its home away, so that it remembers nothing.
    """
    _check_name(name)
    with _pubsub() as pubsub:
        found = _find(pubsub, name)
        if not yes:
            err.print(f"{len(found)} backup subscriptions go back to {name}.", markup=False)
            typer.confirm("What the archive already has of it will be in it twice. Go on?", abort=True, err=True)
        for each in found:
            pubsub.seek_to_snapshot(backup_subscription_id(each.topic), each.id)
    _print_snapshots(found, as_json=as_json)


@app.command("forget")
def forget(name: NameArgument) -> None:
    """Delete a snapshot of the backup subscriptions."""
    _check_name(name)
    with _pubsub() as pubsub:
        found = _find(pubsub, name)
        for each in found:
            pubsub.delete_snapshot(each.id)
    out.print(f"{len(found)} snapshots deleted")


def _find(pubsub: "PubSub", name: str) -> "list[SnapshotInfo]":
    found = [s for s in pubsub.list_snapshots() if s.id.startswith(f"{BACKUP_SNAPSHOT_PREFIX}{name}.")]
    if not found:
        raise SnapshotNotFoundError(f"There is no snapshot {name} of any backup subscription.", name=name)
    return found


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InputError(f"{name!r} is no name of a snapshot: up to 40 lower-case letters, digits and -.")


def _pubsub() -> "PubSub":
    from app.deployment import Deployment

    settings = command_settings()
    return Deployment(settings).pubsub


def _print_snapshots(found: "list[SnapshotInfo]", *, as_json: bool) -> None:
    rows = [
        {
            "name": s.id.removeprefix(BACKUP_SNAPSHOT_PREFIX).partition(".")[0],
            "topic": s.topic,
            "expires_at": s.expires_at.isoformat(),
        }
        for s in found
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(("name", "topic", "expires at"), [tuple(row.values()) for row in rows])
