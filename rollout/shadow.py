"""Shadows of pipelines as processes of their agent: started or found again, looked at, ended without a trace."""

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
    """One shadow: its process, which may be another agent's child, and what it reports."""

    def __init__(self, folder: ShadowFolder, runs: Child | FoundProcess | None) -> None:
        self._folder = folder
        self._runs = runs

    @property
    def is_running(self) -> bool:
        """Whether its process has not ended."""
        return self._runs is not None and self._runs.is_running

    def look(self, acknowledged_until: float | None = None) -> ShadowReport:
        """Return the newest report, and keep the shadow from ending as one that nobody wants.

        It is told up to which time of publication its stream has acknowledged everything, where that is known. A
        process that has ended has FAILED; the report's error says how, with the last lines of its log.
        """
        self._folder.want(acknowledged_until)
        is_running = self.is_running
        # After that: what it wrote last is read once it has ended.
        report = self._folder.read()
        if not is_running and report.state is not ShadowState.FAILED:
            name = _name_of(self._folder)
            ended = ProcessEndedError(f"{name} has ended.", name=name)
            report.fail(ended if self._runs is None else self._runs.ended_error())
        return report

    def kill(self) -> None:
        """Send SIGKILL to the process, and wait for nothing."""
        if self._runs is not None:
            self._runs.kill(seconds=0.0)

    def end(self) -> None:
        """End the process and remove its folder: nothing of the shadow is left, unless the kernel holds it."""
        if self._runs is not None:
            self._runs.kill()
        shutil.rmtree(self._folder.path, ignore_errors=True)


class Shadows:
    """The shadows of the streams of one home; ``environment`` is that of their processes."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._home: Path = read_settings(self._environment).home
        self._releases = Releases(self._home)

    def start(
        self, wanted: StreamRecord, shadow_id: str, *, hours: float = 1.0, may_differ: Collection[str] = ()
    ) -> ShadowRun:
        """Start the shadow of a pipeline's stream, or find it again where it runs.

        ``wanted`` is the stream's record with the release and the options that it is to have. One that has ended
        starts from the beginning.

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
        """End every shadow of this home but those whose ids are to ``keep``, also those of a killed agent."""
        for folder in ShadowFolder.all_of(self._home):
            if folder.shadow_id not in keep:
                ShadowRun(folder, find_instance(_name_of(folder), folder.shadow_id)).end()


def _name_of(folder: ShadowFolder) -> str:
    return f"shadow {folder.shadow_id}"
