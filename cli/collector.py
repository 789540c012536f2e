"""``refeed collector``: events come in over HTTP and go to Pub/Sub."""

from pathlib import Path
from typing import Annotated

import typer

from cli.invocation import command_settings
from cli.processes import check_port_free
from cli.services import configure_logging


def collector(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8090,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but loopback needs keys, or public topics.")
    ] = "127.0.0.1",
    topics: Annotated[
        str | None,
        typer.Option(
            help="Topics that events may be sent to: names and patterns with *, with commas between them."
        ),
    ] = None,
    settings_file: Annotated[
        Path | None, typer.Option("--settings", help="YAML file: keys, public topics, formats, limits.")
    ] = None,
) -> None:
    """Take events with POST /TOPIC until Ctrl-C; each is answered once Pub/Sub has it."""
    from collector.server import serve
    from collector.settings import read_collector_settings

    settings = command_settings()
    configure_logging()
    named = settings.collector_topics
    if topics is not None:
        named = tuple(each.strip() for each in topics.split(",") if each.strip())
    found = read_collector_settings(
        named,
        settings_file or settings.collector_settings,
        body_timeout_seconds=settings.body_timeout_seconds,
    )
    check_port_free(port, "--port")
    serve(settings, found, host=host, port=port)
