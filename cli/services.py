"""``refeed pubsub``, ``refeed api``: one long-running process each, and how such a process logs."""

import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.invocation import command_settings
from cli.processes import check_port_free

if TYPE_CHECKING:
    from model.settings import Settings

# What an agent passes to the streams that it starts.
NameOption = Annotated[str | None, typer.Option("--name", hidden=True, help="Name of the stream and its folder.")]
InstanceOption = Annotated[
    str | None,
    typer.Option(
        "--instance",
        hidden=True,
        help="The run's id. The stream reads its commands from the control file of this run.",
    ),
]


def pubsub(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8085,
    data_dir: Annotated[
        Path | None, typer.Option(help="The folder in which the server stores messages. Default: <home>/pubsub.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. The server has no authentication.")
    ] = "127.0.0.1",
    health_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="A port for health checks. On this port, the server answers GET / with Ok."
        ),
    ] = None,
    fsync: Annotated[
        bool,
        typer.Option(
            "--fsync", help="Confirm a publish call only after the messages are on the disk. This is slower."
        ),
    ] = False,
) -> None:
    """Run the local Pub/Sub server until Ctrl-C. Clients need its address in PUBSUB_EMULATOR_HOST."""
    from local.server import PubSubServer, serve

    folder = data_dir or service_settings().home / "pubsub"
    serve(PubSubServer(folder, host, port, fsync=fsync, health_port=health_port))


def api(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8080,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. For an address other than loopback, the API must have a key or an issuer."
        ),
    ] = "127.0.0.1",
    interrupt: Annotated[
        bool,
        typer.Option(
            "--interrupt-at-exit",
            help="Interrupt running backfills when the API ends. By default the backfills continue.",
        ),
    ] = False,
    is_open: Annotated[
        bool,
        typer.Option(
            "--open",
            help="If there is no key and no issuer, answer every program on this machine without authentication.",
        ),
    ] = False,
) -> None:
    """Run the HTTP API until Ctrl-C. The API needs a key, an issuer of tokens, or --open."""
    from api.server import check_admission, serve
    from app.deployment import Deployment
    from app.service import create_app

    settings = service_settings()
    for warning in unknown_settings():
        logging.getLogger(__name__).warning(warning)
    with Deployment(settings, interrupt_at_exit=interrupt) as deployment:
        held = settings.approve_streams
        check_admission(host, has_callers=deployment.has_callers, is_open=is_open, held=held)
        check_port_free(port, "--port")
        # Opened here, so that what is missing is printed like every other error and not as a server's traceback.
        deployment.open()
        app = create_app(settings, deployment=deployment)
        serve(app, host=host, port=port, head_seconds=settings.body_timeout_seconds)


def report(name: Annotated[str, typer.Argument(help="Name of the stream.")]) -> None:
    """Report a stream of this home to the job store until the standard input ends.

    A stream that no agent runs starts this command beside itself.
    """
    from app.deployment import Deployment

    # A service manager may stop both processes at the same time: the drain of the stream is still to be reported.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    with Deployment(service_settings()) as deployment:
        reports = deployment.stream_reports
        if reports is not None:
            reports.follow([name])
            sys.stdin.buffer.read()
            reports.stop()


def unknown_settings() -> list[str]:
    """Return a warning for each variable of this process that only looks like a setting."""
    from model.unknown_settings import describe_unknown

    return [f"{sentence} The variable has no effect." for sentence in describe_unknown(os.environ).values()]


def service_settings(*, log_level: str = "INFO") -> "Settings":
    """Return the settings of a process whose work is watched by its log, which goes to stderr from now on.

    ``log_level`` is the least level of a line where REFEED_LOG_LEVEL names none.

    Raises:
        SettingsError: one or more variables are wrong; the message names them all.
    """
    settings = command_settings()
    configure_logging(log_level)
    return settings


def configure_logging(log_level: str = "INFO") -> None:
    """Send log lines to stderr, as JSON or as text for a person at a terminal.

    REFEED_LOG_LEVEL names the least level, ``log_level`` where it is not set.
    """
    import structlog

    level = logging.getLevelNamesMapping().get(os.environ.get("REFEED_LOG_LEVEL", log_level).upper(), logging.INFO)
    is_terminal = sys.stderr.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    last: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if is_terminal
        # Where an error came from without its variables' values: tokens, queries and messages are among them.
        else [
            structlog.processors.ExceptionRenderer(
                structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
            ),
            structlog.processors.JSONRenderer(),
        ]
    )
    # Our lines and the libraries' take the same way: the standard library's, which drops a line that can't be
    # written. A disk that is full of logs must not end a stream.
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    logging.raiseExceptions = False
    handler = _LineHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.INFO))


class _LineHandler(logging.Handler):
    """Writes each line to stderr by itself.

    A line that a full disk refused must not wait in a buffer: Python would try it again at the end, and turn the
    exit code of a stream that drained into 120.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, or drop it."""
        try:
            os.write(sys.stderr.fileno(), f"{self.format(record)}\n".encode(errors="backslashreplace"))
        except OSError:
            self.handleError(record)
