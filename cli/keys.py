"""``refeed key``: make, list and end the API's keys, in the job store itself."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.histories import terminal_actor
from cli.invocation import HomeGroup, open_deployment
from cli.options import JsonOption
from cli.terminal import err, out, print_found, print_json, render_table
from model.moment import render_moment
from model.principal import ADMIN, SCOPES

if TYPE_CHECKING:
    from jobs.store import ApiKey

app = typer.Typer(
    cls=HomeGroup,
    help="Create, list and revoke the API's keys. The commands use the job store, not the API.",
    no_args_is_help=True,
)

_DAYS = 365
_TIMES = ("created_at", "expires_at", "revoked_at", "last_used_at")


_SCOPE_HELP = (
    f"A scope: {', '.join(SCOPES)}. The scopes of backfills can be written without 'backfills.'. May be repeated."
)


@app.command("create")
def create(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The owner's name. Histories and the audit log show it.")
    ],
    *,
    scope: Annotated[list[str], typer.Option(help=_SCOPE_HELP, show_default=False)],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            help="A topic to which the key may publish and whose messages it may read, or a prefix with *, such "
            "as orders*. May be repeated. Default: all topics."
        ),
    ] = None,
    days: Annotated[
        int, typer.Option(min=0, max=36_500, help="The number of days until the key expires. 0 means never.")
    ] = _DAYS,
    as_json: JsonOption = False,
) -> None:
    """Create a key and print it. Refeed stores only a digest, so nobody can print the key again.

    After the first key, the API refuses all calls without a key. Commands send the key in REFEED_API_KEY. Only a
    key with the scope backfills.admin may do everything.
    """
    scopes = [text if text in SCOPES else f"backfills.{text}" for text in scope]
    from jobs.keys import check_key

    now = datetime.now(UTC)
    expires_at = None if days == 0 else now + timedelta(days=days)
    # Before anything is said of a key that can't be created.
    check_key(name, scopes, topic, expires_at, now)
    with open_deployment() as deployment:
        if deployment.keyring.is_empty():
            err.print("This is the first key. After it is created, the API refuses calls without a key.")
            if ADMIN not in scopes:
                err.print(
                    f"It does not have the scope {ADMIN}, so nobody can do what needs other scopes until you "
                    "create another key."
                )
        actor = terminal_actor()
        key, token = deployment.keyring.create(name, scopes, topics=topic, expires_at=expires_at, actor=actor)
        deployment.store.append_audit(actor, "createKey", key.id, "done", f"{key.name}: {', '.join(key.scopes)}")
    if as_json:
        print_json({**_to_json(key), "key": token})
        return
    ends = "never expires" if expires_at is None else f"expires {expires_at:%Y-%m-%d}"
    err.print(f"{key.id}, {ends}. Store the key now. It can't be shown again:")
    out.print(token)
    err.print("Commands send this key if REFEED_API_KEY is set to it.")


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List all keys, including revoked keys, without their secrets."""
    with open_deployment() as deployment:
        keys = deployment.keyring.list_keys()
    rows = [
        [
            key.id,
            key.name,
            f"rf_{key.prefix}",
            _state(key),
            " ".join(key.scopes),
            " ".join(key.topics) if key.topics is not None else "every",
            _day(key.expires_at) or "never",
            _minute(key.last_used_at) or "never",
        ]
        for key in keys
    ]
    names = ["id", "name", "prefix", "state", "scopes", "topics", "expires", "last used"]
    print_found([_to_json(key) for key in keys], lambda _: render_table(names, rows), as_json=as_json)


@app.command("revoke")
def revoke(
    key_id: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="The key's id (ky_...), its prefix (rf_...), or its name if only one active key has it.",
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Revoke a key. The next call with the key is refused."""
    with open_deployment() as deployment:
        key = deployment.keyring.revoke(key_id, actor=(actor := terminal_actor()))
        deployment.store.append_audit(actor, "revokeKey", key.id, "done", key.name)
    print_found(_to_json(key), lambda _: [f"{key.id} ({key.name}) is revoked"], as_json=as_json)


def _state(key: "ApiKey") -> str:
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is not None and key.expires_at <= datetime.now(UTC):
        return "expired"
    return "active"


def _to_json(key: "ApiKey") -> dict[str, Any]:
    times = {name: render_moment(getattr(key, name)) for name in _TIMES}
    names = {"id": key.id, "name": key.name, "prefix": f"rf_{key.prefix}", "state": _state(key)}
    return {**names, "scopes": key.scopes, "topics": key.topics, **times}


def _day(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d}"


def _minute(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M}"
