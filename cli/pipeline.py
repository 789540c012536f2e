"""``refeed pipeline``: the streams that make rows of messages."""

from typing import Annotated

import typer

from cli.invocation import HomeGroup
from cli.leaving import run_stream
from cli.parameters import parse_pairs
from cli.services import InstanceOption, NameOption, service_settings

app = typer.Typer(
    cls=HomeGroup, no_args_is_help=True, help="Turn messages into table rows. The registry has the schemas."
)


@app.command("run")
def run(
    group: Annotated[
        str, typer.Option(help="A group of sources in sources.yaml. The stream reads the sources of this group.")
    ] = "default",
    mapping: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OLD=NEW",
            help="The old and the new name of a source that was renamed in the registry. May be repeated.",
        ),
    ] = None,
    name: NameOption = None,
    instance: InstanceOption = None,
) -> None:
    """Run the pipeline of one group of sources. Ctrl-C or SIGTERM drains the stream.

    The stream uses new sources and schemas in the registry without a restart.
    """
    from app.streams import run_pipeline

    settings = service_settings()
    renamed = parse_pairs(mapping, "--mapping") or {}
    run_stream(lambda: run_pipeline(settings, group, mapping=renamed, name=name, instance_id=instance))


@app.command("shadow", hidden=True)
def shadow(
    name: Annotated[str, typer.Option(help="The stream to compare with.")],
    instance: Annotated[
        str,
        typer.Option(help="The id of the shadow comparison. The report is written to the folder with this id."),
    ],
    mapping: Annotated[list[str] | None, typer.Option(metavar="OLD=NEW", help="As in 'pipeline run'.")] = None,
    may_differ: Annotated[list[str] | None, typer.Option(help="A column whose values may differ.")] = None,
    hours: Annotated[float, typer.Option(min=0, help="How many hours of the archive to compare first.")] = 1.0,
) -> None:
    """Compare the rows that this release makes of archived messages with those that the running release staged."""
    from app.streams import run_shadow

    settings = service_settings()
    renamed = parse_pairs(mapping, "--mapping") or {}
    differs = may_differ or ()
    run_stream(lambda: run_shadow(settings, name, instance, mapping=renamed, may_differ=differs, hours=hours))
