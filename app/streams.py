"""The processes of streams: one function each, over one deployment."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from app.deployment import Deployment
from model.settings import Settings
from model.stream import BACKUP_STREAM
from streams.folder import StreamFolder
from streams.run import failing_in_status

if TYPE_CHECKING:
    from warehouse.port import Warehouse

# A process that may still have to start reports for five seconds at most.
_LAST_REPORT_SECONDS: Final = 15.0
# One that can't open the store says so each time.
_RESTART_SECONDS: Final = 60.0


def run_backup(settings: Settings, *, name: str | None = None, instance_id: str | None = None) -> int:
    """Run the backup stream until a signal or an order ends it; return the exit code.

    ``name`` is the stream's where it is not the usual one, and ``instance_id`` names this start for an agent.

    Raises:
        LeaseHeldError, LeaseLostError, CheckpointCorruptError: as :func:`backup.job.run_backup`.
    """
    from backup.job import run_backup as run

    return _run(run, settings, name or BACKUP_STREAM, instance_id)


def run_kinesis(settings: Settings, *, name: str | None = None, instance_id: str | None = None) -> int:
    """Run the stream of one Kinesis stream until a signal or an order ends it; return the exit code.

    ``name`` is the stream's where it is not the usual one, and ``instance_id`` names this start for an agent.

    Raises:
        LeaseHeldError, LeaseLostError, CheckpointCorruptError: as :func:`collector.kinesis.run_kinesis`.
    """
    from collector.kinesis import run_kinesis as run
    from collector.kinesis import usual_name

    return _run(run, settings, name or usual_name(settings.kinesis.stream or ""), instance_id)


def run_pipeline(
    settings: Settings,
    group: str,
    *,
    mapping: Mapping[str, str] | None = None,
    name: str | None = None,
    instance_id: str | None = None,
) -> int:
    """Run the stream of one group of sources until a signal or an order ends it; return the exit code.

    ``mapping`` leads from the old names of sources to those that the registry has now. ``name`` is the stream's
    where it is not the usual one, and ``instance_id`` names this start for an agent.

    Raises:
        LeaseHeldError, LeaseLostError, CheckpointCorruptError: as :func:`pipeline.job.run_pipeline`.
    """
    from pipeline.job import group_home
    from pipeline.job import run_pipeline as run

    def run_group(settings: Settings, warehouse: "Warehouse", **given: Any) -> int:
        return run(settings, group, mapping=mapping or {}, warehouse=warehouse, **given)

    return _run(run_group, settings, name or group_home(settings, group).name, instance_id)


def run_shadow(
    settings: Settings,
    stream: str,
    shadow_id: str,
    *,
    mapping: Mapping[str, str],
    may_differ: Sequence[str],
    hours: float,
) -> int:
    """Run the shadow of a pipeline's stream until nobody looks at it any more; return the exit code.

    It reads the warehouse, the registry and the stream's plan, and writes its report alone.
    """
    from pipeline.shadow import ShadowOptions
    from pipeline.shadow import run_shadow as run
    from pipeline.shadow_report import ShadowFolder
    from streams.folder import StreamFolder
    from streams.snapshot import PLAN_FILE

    with Deployment(settings) as deployment:
        warehouse = deployment.warehouse
        return run(
            settings,
            warehouse,
            ShadowFolder.of(settings.home, stream, shadow_id),
            plan_file=StreamFolder.of(settings.home, stream).state / PLAN_FILE,
            mapping=mapping,
            options=ShadowOptions.of(warehouse, hours=hours, may_differ=may_differ),
        )


def _run(run: Callable[..., int], settings: Settings, name: str, instance_id: str | None) -> int:
    """Run a stream over its deployment; return the exit code."""
    with _started(settings, name, instance_id) as deployment:
        return run(
            settings,
            deployment.warehouse,
            open_pubsub=lambda: deployment.pubsub,
            name=name,
            instance_id=instance_id,
        )


@contextmanager
def _started(settings: Settings, name: str, instance_id: str | None) -> Iterator[Deployment]:
    """Yield the deployment of a stream, whose warehouse keeps it apart from other writers."""
    with _watched(settings, name, instance_id), Deployment(settings) as deployment:
        deployment.warehouse.check_store()
        yield deployment


@contextmanager
def _watched(settings: Settings, name: str, instance_id: str | None) -> Iterator[None]:
    """Have an agent's stream say in its status why it fails, and report one that no agent runs.

    The latter has a terminal to say why it failed.
    """
    if instance_id is not None:
        with failing_in_status(StreamFolder.of(settings.home, name, instance_id)):
            yield
        return
    with _reported(settings, name) if settings.has_own_store else nullcontext():
        yield


@contextmanager
def _reported(settings: Settings, name: str) -> Iterator[None]:
    """Report the stream from a process beside this one, so that this one never opens the job store.

    That process reports until its standard input ends: with the block, or with this process, however it ends. One
    that ends before, because it was killed or the store does not answer yet, is followed by another.
    """
    reporter = _Reporter(settings, name)
    reporter.start()
    try:
        yield
    finally:
        reporter.end()


class _Reporter(threading.Thread):
    """Keeps a process that reports a stream."""

    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__(name="reporter", daemon=True)
        self._command = [sys.executable, "-m", "cli.main", "report", name]
        self._environment = {**os.environ, "REFEED_HOME": str(settings.home), "PYTHONSAFEPATH": "1"}
        self._ends = threading.Event()
        self._lock = threading.Lock()
        self._process = self._begin()

    def run(self) -> None:
        """Start the process again whenever it has ended, until :meth:`end`."""
        while not self._ends.is_set():
            self._process.wait()
            self._ends.wait(_RESTART_SECONDS)
            with self._lock:
                if not self._ends.is_set():
                    self._begin_again()

    def end(self) -> None:
        """Have the stream reported for the last time, and end the process."""
        with self._lock:
            self._ends.set()
        if self._process.poll() is not None:
            self._begin_again()
        try:
            self._process.communicate(timeout=_LAST_REPORT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.join()

    def _begin_again(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process = self._begin()

    def _begin(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(  # noqa: S603 - the command is ours
            self._command,
            env=self._environment,
            stdin=subprocess.PIPE,
            # Ctrl-C is for the stream alone.
            start_new_session=True,
        )
