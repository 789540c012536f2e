"""Shadows of pipelines as processes of their agent: start them or find them again, watch them, and remove them."""

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from model.errors import ProcessEndedError
from model.settings import read_settings
from model.stream_options import PipelineStreamOptions
from model.stream_record import StreamRecord
from pipeline.shadow_report import ShadowFolder, ShadowReport, ShadowState
from rollout.child import Child, FoundProcess
from rollout.process import INSTANCE_OPTION, find_instance
from rollout.releases import Releases


class ShadowRun:
    """One shadow: its process, perhaps started by an earlier agent, and its report."""

    def __init__(self, folder: ShadowFolder, runs: Child | FoundProcess | None) -> None:
        self._folder = folder
        self._runs = runs

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._runs is not None and self._runs.is_running

    def look(self, acknowledged_until: float | None = None) -> ShadowReport:
        """Return the newest report, and renew the shadow's permission to run: without looks it ends by itself.

        ``acknowledged_until`` is passed on: up to this publish time the stream has acknowledged every message. A
        shadow whose process has ended is FAILED; the report's error has the last lines of its log.
        """
        self._folder.want(acknowledged_until)
        is_running = self.is_running
        # Read after the check, so that the last report of an ended process is read.
        report = self._folder.read()
        if not is_running and report.state is not ShadowState.FAILED:
            name = _name_of(self._folder)
            ended = ProcessEndedError(f"{name} has ended.", name=name)
            report.fail(ended if self._runs is None else self._runs.ended_error())
        return report

    def kill(self) -> None:
        """Send SIGKILL to the process, without waiting."""
        if self._runs is not None:
            self._runs.kill(seconds=0.0)

    def end(self) -> None:
        """End the process and remove its folder."""
        if self._runs is not None:
            self._runs.kill()
        shutil.rmtree(self._folder.path, ignore_errors=True)


class Shadows:
    """The shadows of the streams of one home; ``environment`` is the environment of their processes."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._home: Path = read_settings(self._environment).home
        self._releases = Releases(self._home)

    def start(
        self, wanted: StreamRecord, shadow_id: str, *, hours: float = 1.0, may_differ: Collection[str] = ()
    ) -> ShadowRun:
        """Start the shadow of a pipeline, or find it again if it runs.

        ``wanted`` is the stream's record with the new release and options. A shadow that has ended starts from the
        beginning.

        Raises:
            ReleaseNotFoundError, EnvironmentFailedError: the release can't be started in this home.
        """
        folder = ShadowFolder.of(self._home, wanted.name, shadow_id)
        folder.want()
        found = find_instance(_name_of(folder), shadow_id)
        if found is not None:
            return ShadowRun(folder, found)
        folder.forget()
        options = wanted.parsed_options()
        assert isinstance(options, PipelineStreamOptions), "a pipeline's"
        started = self._releases.start(wanted.release, {**self._environment, **options.environment()})
        command = started.command(
            *("pipeline", "shadow", "--name", wanted.name, INSTANCE_OPTION, shadow_id, "--hours", str(hours)),
            *(f"--may-differ={column}" for column in sorted(may_differ)),
            *(f"--mapping={old}={new}" for old, new in (options.mapping or {}).items()),
        )
        child = Child(_name_of(folder), command, environment=started.variables, log=folder.log)
        return ShadowRun(folder, child.start())

    def end_others(self, keep: Collection[str]) -> None:
        """End every shadow of this home, also of killed agents, except those with ids in ``keep``."""
        for folder in ShadowFolder.all_of(self._home):
            if folder.shadow_id not in keep:
                ShadowRun(folder, find_instance(_name_of(folder), folder.shadow_id)).end()


def _name_of(folder: ShadowFolder) -> str:
    return f"shadow {folder.shadow_id}"
