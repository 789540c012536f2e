"""``refeed up``: everything embedded in one terminal, watched until Ctrl-C."""

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

import typer

from cli.collector import read_settings_of
from cli.invocation import command_settings, make_home
from cli.processes import check_port_free, is_listening
from cli.running import RunningUp, record_of
from cli.services import unknown_settings
from cli.terminal import err, out
from model.errors import LeaseHeldError, ProcessEndedError, StoreUnavailableError
from model.process import Process
from model.stream import BACKUP_STREAM

if TYPE_CHECKING:
    from app.deployment import Deployment
    from cli.stack import Stack
    from rollout.child import Child, Children
    from rollout.process import StreamProcess

_ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LOOK_SECONDS: Final = 0.5
_POLL_SECONDS: Final = 0.05
_END_SECONDS: Final = 10.0
# A child that dies more often than this has a reason that a restart does not cure.
_MAX_RESTARTS: Final = 3
_RESTART_WINDOW_SECONDS: Final = 60.0
# As many as the registry has groups.
_PLACES: Final = 10_000


def up(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the API and its /docs.")] = 8080,
    pubsub_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the Pub/Sub server.")] = 8085,
    collector_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Run a collector for REFEED_COLLECTOR_TOPICS on this port. Default: no collector.",
        ),
    ] = None,
) -> None:
    """Run the Pub/Sub server, the backup stream, the API and the pipeline on 127.0.0.1 until Ctrl-C drains them.

    A drained stream commits its current messages, and then ends. If you close the terminal, the command also
    drains the streams. To prevent this, start the command with 'nohup'. The command starts a pipeline stream for
    each group of sources in the registry (REFEED_REGISTRY). The API merges staging tables into reporting tables
    every night.

    The command restarts a process that dies. If a pipeline stream dies again and again, the command restarts the
    stream every minute. If another process dies again and again, the command prints the last lines of its log
    and ends. The command does not restart a stream that you drained or cancelled.
    """
    from app.deployment import Deployment
    from cli.stack import Stack
    from rollout.child import Children

    settings = command_settings()
    make_home(settings.home)
    for number in _ENDING:
        # nohup has it go on when its terminal is closed.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    with _hold_home(settings.home) as record:
        check_port_free(port, "--port")
        check_port_free(pubsub_port, "--pubsub-port")
        if collector_port is not None:
            check_port_free(collector_port, "--collector-port")
            # A fault in its settings would end it four times before anybody saw the reason.
            read_settings_of(settings)
        stack = Stack(
            settings.home,
            pubsub_port=pubsub_port,
            api_port=port,
            collector_port=collector_port,
            environment=os.environ,
        )
        # Before anything is waited for: a second one names this one's ports.
        _write_record(record, stack, ())
        # Left in reverse order: the streams drain while Pub/Sub still takes acknowledgements, then the children
        # end, the last one started first, and at last the Spark server that an API may have left.
        with (
            closing(stack),
            Deployment(stack.settings) as deployment,
            Children(lambda: _note(record, stack, children)) as children,
            _Streams(stack, deployment, lambda: _note(record, stack, [*children, *streams])) as streams,
        ):
            try:
                _run(stack, children, streams, record)
            except KeyboardInterrupt:
                # One Ctrl-C is enough; another one must not cut the draining short.
                for number in _ENDING:
                    signal.signal(number, signal.SIG_IGN)
                err.print("draining ...")
    err.print("all stopped")


class _Streams:
    """The streams that ``up`` wants, and the agent that keeps them; leaving the block drains all of them."""

    def __init__(self, stack: "Stack", deployment: "Deployment", on_change: Callable[[], None]) -> None:
        from cli.streams import WantedStreams
        from rollout.agent import Agent

        self._agent: Agent = Agent(
            deployment.store,
            environment=stack.environment,
            places=_PLACES,
            say=err.print,
            snapshots=deployment.snapshot_work,
            updates=deployment.update_work,
            reports=deployment.stream_reports,
        )
        self._wanted = WantedStreams(
            deployment.streams,
            stack.settings.registry,
            poll_seconds=stack.settings.registry_poll_seconds,
            say=err.print,
        )
        self._on_change = on_change
        self._pids: set[int] = set()
        self._deaths: list[float] = []
        self._has_run = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._agent.stop()

    def __iter__(self) -> Iterator["StreamProcess"]:
        """Yield the processes that run."""
        return iter(self._agent)

    def look(self) -> None:
        """Keep every stream in step.

        Raises:
            ProcessEndedError: the backup died before it had ever run here, or for the fourth time in a minute.
        """
        try:
            self._wanted.look()
            died = self._agent.look()
        except StoreUnavailableError as exc:
            # What runs goes on, and Ctrl-C still ends it.
            err.print(exc.message)
            return
        pids = {process.pid for process in self}
        if pids - self._pids:
            self._on_change()
        self._pids = pids
        for ended in died:
            if ended.details["name"] == BACKUP_STREAM:
                if not self._has_run:
                    raise ended
                _count_death(ended, self._deaths)

    def is_backing_up(self) -> bool:
        """Keep every stream in step, and return whether the backup runs, or is to end."""
        self.look()
        found = [process for process in self if process.name == BACKUP_STREAM]
        is_running = any(process.status().get("state") == "running" for process in found)
        self._has_run = is_running or not self._wanted.is_running(BACKUP_STREAM)
        return self._has_run


def _run(stack: "Stack", children: "Children", streams: _Streams, record: Path) -> None:
    """Start all, say where they are and restart what dies, until a signal.

    Raises:
        ProcessEndedError: a child died for the fourth time in a minute.
    """
    for warning in unknown_settings():
        err.print(f"warning: {warning}")
    err.print(f"starting, home {stack.home}")
    stack.start(children, is_backing_up=streams.is_backing_up, say=err.print)
    _print_addresses(stack)
    restarts: dict[str, list[float]] = {}
    while True:
        time.sleep(_LOOK_SECONDS)
        for child in children:
            if not child.is_running:
                _restart(child, restarts.setdefault(child.name, []))
                _note(record, stack, [*children, *streams])
        streams.look()


def _restart(child: "Child", restarted_at: list[float]) -> None:
    ended = child.ended_error()
    _count_death(ended, restarted_at)
    err.print(f"{ended.message}\nstarting {child.name} again")
    # What it started and left behind would hold its locks.
    child.kill()
    child.start()


def _count_death(ended: ProcessEndedError, died_at: list[float]) -> None:
    """Note that a process has died.

    Raises:
        ProcessEndedError: it died for the fourth time within a minute.
    """
    name, now = ended.details["name"], time.monotonic()
    recent = [at for at in died_at if now - at < _RESTART_WINDOW_SECONDS]
    if len(recent) == _MAX_RESTARTS:
        often = f"{name} ended {_MAX_RESTARTS + 1} times within a minute; everything is stopped."
        raise ProcessEndedError(f"{often} {ended.message}", name=name)
    died_at[:] = [*recent, now]


def _note(record: Path, stack: "Stack", children: "Iterable[Child | StreamProcess]") -> None:
    """Write the record again; a disk that is full ends nothing of what runs."""
    try:
        _write_record(record, stack, children)
    except OSError as exc:
        err.print(f"{record} can't be written: {exc.strerror}")


def _write_record(record: Path, stack: "Stack", children: "Iterable[Child | StreamProcess]") -> None:
    """Write where everything is, for other commands and for the ``up`` after one that was killed."""
    own = Process.of(os.getpid())
    assert own is not None, "it runs"
    pids = {child.name: child.pid for child in children}
    RunningUp.of(stack.api_url, stack.emulator_host, stack.settings, up=own, pids=pids).write(record)


@contextmanager
def _hold_home(home: Path) -> Iterator[Path]:
    """Hold the home's lock, end what an earlier ``up`` that was killed left running, and give run/up.json.

    Raises:
        LeaseHeldError: another ``refeed up`` runs on this home.
    """
    record = record_of(home)
    record.parent.mkdir(parents=True, exist_ok=True)
    with record.with_suffix(".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise _held(home, RunningUp.read(record)) from exc
        _end_leftovers(record)
        # It stays afterwards: commands name the address where the API was.
        yield record


def _held(home: Path, first: RunningUp | None) -> LeaseHeldError:
    """Return the error that says which ``refeed up`` runs on the home already."""
    if first is None or not first.up.is_alive:
        message = f"Another 'refeed up' runs on {home}; stop it, or choose another --home."
        return LeaseHeldError(message, home=str(home))
    pid = first.up.pid
    message = (
        f"Another 'refeed up' (process {pid}) runs on {home}, with its API at {first.api_url} and Pub/Sub at "
        f"{first.pubsub_emulator_host}; use it, stop it with 'kill {pid}', or choose another --home."
    )
    return LeaseHeldError(message, home=str(home), pid=pid, api_url=first.api_url)


def _end_leftovers(record: Path) -> None:
    """End what an earlier ``up`` noted and left running, and wait until its ports and locks are free.

    Raises:
        ProcessEndedError: something of it does not end.
    """
    noted = RunningUp.read(record)
    if noted is None:
        return
    addresses = [noted.api_url.removeprefix("http://"), noted.pubsub_emulator_host]
    left = dict(noted.left())
    for name, process in left.items():
        err.print(f"ending {name} (process {process.pid}) of an earlier 'refeed up' that was killed")
        process.signal_group(signal.SIGKILL)
    deadline = time.monotonic() + _END_SECONDS
    # A process counts as dead while its last threads still hold its sockets, so the ports are asked as well.
    while left and time.monotonic() < deadline:
        if not any(process.is_alive for process in left.values()) and not any(map(is_listening, addresses)):
            return
        time.sleep(_POLL_SECONDS)
    still = [name for name, process in left.items() if process.is_alive]
    if still:
        raise ProcessEndedError(f"These processes of an earlier 'refeed up' do not end: {', '.join(still)}.")


def _print_addresses(stack: "Stack") -> None:
    out.print(f"API      {stack.api_url}/docs")
    out.print(f"console  {stack.api_url}/console")
    if stack.collector_address is not None:
        topics = ", ".join(stack.settings.collector_topics)
        out.print(f"events   http://{stack.collector_address}/TOPIC, topics {topics}")
    out.print(f"Pub/Sub  {stack.emulator_host}, project {stack.settings.project}")
    out.print(f"registry {stack.settings.registry}")
    out.print(f"logs     {stack.home / 'logs'}\n")
    out.print("Ctrl-C here drains the streams and stops everything.\n")
    out.print("Commands with this home use these addresses. Publishers and other homes need these two lines:")
    out.print(f"export PUBSUB_EMULATOR_HOST={stack.emulator_host}")
    out.print(f"export REFEED_HOME={stack.home} REFEED_API_URL={stack.api_url}\n")
