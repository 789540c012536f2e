"""``refeed collector``: events come in over HTTP and go to Pub/Sub."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.processes import check_port_free
from cli.services import service_settings

if TYPE_CHECKING:
    from collector.settings import CollectorSettings
    from model.settings import Settings


def collector(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8090,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. For an address other than loopback, the collector must have keys "
            "or public topics."
        ),
    ] = "127.0.0.1",
    topics: Annotated[
        str | None,
        typer.Option(
            help="Topics to which callers may send events: names and patterns with *, separated by commas."
        ),
    ] = None,
    settings_file: Annotated[
        Path | None, typer.Option("--settings", help="YAML file with keys, public topics, formats and limits.")
    ] = None,
    allow_unread: Annotated[
        bool | None,
        typer.Option(
            "--allow-unread/--refuse-unread",
            help="Whether to accept events for topics that have no subscription. Nobody receives these events.",
        ),
    ] = None,
) -> None:
    """Accept events over HTTP (POST /TOPIC), and publish them to Pub/Sub. Ctrl-C ends the collector."""
    from collector.server import serve

    settings = service_settings()
    named = settings.collector_topics
    if topics is not None:
        named = tuple(each.strip() for each in topics.split(",") if each.strip())
    found = read_settings_of(settings, named, settings_file, allow_unread=allow_unread)
    check_port_free(port, "--port")
    serve(settings, found, host=host, port=port)


def read_settings_of(
    settings: "Settings",
    topics: Sequence[str] | None = None,
    path: Path | None = None,
    *,
    allow_unread: bool | None = None,
) -> "CollectorSettings":
    """Return the collector's settings: those of the variables unless topics or a file are given.

    Raises:
        SettingsError: something in them is wrong; all faults are named.
    """
    from collector.settings import read_collector_settings

    return read_collector_settings(
        settings.collector_topics if topics is None else topics,
        path or settings.collector_settings,
        body_timeout_seconds=settings.body_timeout_seconds,
        allow_unread=settings.collector_allow_unread if allow_unread is None else allow_unread,
    )
