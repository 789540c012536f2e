"""``refeed pipeline``: the streams that make rows of messages."""

from typing import Annotated

import typer

from cli.invocation import HomeGroup, command_settings
from cli.parameters import parse_pairs
from cli.services import InstanceOption, NameOption, configure_logging

app = typer.Typer(
    cls=HomeGroup, no_args_is_help=True, help="Turn messages into rows, following the schemas in the registry."
)


@app.command("run")
def run(
    group: Annotated[str, typer.Option(help="The group of sources, as sources.yaml names it.")] = "default",
    mapping: Annotated[
        list[str] | None,
        typer.Option(metavar="OLD=NEW", help="A source's old name and its name in the registry; may be repeated."),
    ] = None,
    name: NameOption = None,
    instance: InstanceOption = None,
) -> None:
    """Run the stream of one group of sources until Ctrl-C or SIGTERM, which drains it.

    The registry is followed meanwhile: a new source or a new schema needs no restart.
    """
    from app.streams import run_pipeline

    settings = command_settings()
    configure_logging()
    renamed = parse_pairs(mapping, "--mapping") or {}
    raise typer.Exit(run_pipeline(settings, group, mapping=renamed, name=name, instance_id=instance))
