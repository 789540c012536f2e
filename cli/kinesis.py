"""``refeed kinesis``: the records of a Kinesis stream become messages of a topic."""

import os
from typing import Any, Final

import typer

from cli.flags import read_given, takes_fields
from cli.invocation import HomeGroup
from cli.leaving import run_stream
from cli.services import InstanceOption, NameOption, service_settings
from model.errors import InputError
from model.stream_options import KinesisStreamOptions, StreamKind, option_errors

app = typer.Typer(cls=HomeGroup, no_args_is_help=True, help="Publish the records of a Kinesis stream to a topic.")


_HELP: Final = {
    "slots": "The number of threads that read shards at the same time.",
    "batch_seconds": "The number of seconds after which a shard without new records is read again.",
    "batch_bytes": "Save the position in a shard after N published bytes, or after 1,000 messages.",
}


@app.command("run")
@takes_fields(KinesisStreamOptions, help_texts=_HELP)
def run(name: NameOption = None, instance: InstanceOption = None, **given: Any) -> None:
    """Publish the records of one Kinesis stream to a topic. Ctrl-C or SIGTERM drains the stream.

    Each option overrides a setting. For example, --stream overrides REFEED_KINESIS_STREAM. The command continues
    where its last run ended.
    """
    from app.streams import run_kinesis

    options = read_given(KinesisStreamOptions, given)
    if errors := option_errors(StreamKind.KINESIS, options):
        raise InputError(" ".join(error["message"] for error in errors))
    os.environ.update(KinesisStreamOptions(**options).environment())
    settings = service_settings()
    run_stream(lambda: run_kinesis(settings, name=name, instance_id=instance))
