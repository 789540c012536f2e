"""Starts the processes of streams, each with the code of its release, its options, its pace and its log."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from model.settings import Settings, read_settings
from model.stream_options import PipelineStreamOptions, StreamKind
from model.stream_record import StreamRecord
from rollout.process import INSTANCE_OPTION, StreamProcess
from rollout.releases import Releases
from rollout.shadow import Shadows
from rollout.stream_logs import StreamLogs
from streams.control import BatchPace, Order
from streams.folder import StreamFolder


@dataclass(frozen=True, slots=True)
class PreparedStart:
    """A start whose release has been found: only the process is left to start."""

    folder: StreamFolder
    command: Sequence[str]
    pace: BatchPace
    environment: Mapping[str, str]
    log: Path

    def start(self, order: Order = "run") -> StreamProcess:
        """Start the process with ``order`` as its first order."""
        return StreamProcess.start(
            self.folder, self.command, self.pace, environment=self.environment, log=self.log, order=order
        )


class StreamStarter:
    """Starts the streams of one home; ``environment`` is the environment of their processes.

    ``command`` makes the command line of a record's instance instead of the usual one.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        command: Callable[[StreamRecord, str], Sequence[str]] | None = None,
    ) -> None:
        self._environment = dict(environment)
        self.settings = read_settings(self._environment)
        self._releases = Releases(self.settings.home)
        self.logs = StreamLogs(self.settings.home)
        self._command = command

    def prepare(self, record: StreamRecord, instance_id: str, *, is_standby: bool = False) -> PreparedStart:
        """Return how to start the instance, with the release and the options in ``record``.

        A standby has its own log, because the old process still writes the stream's log.

        Raises:
            ReleaseNotFoundError, EnvironmentFailedError: the release can't be started in this home.
        """
        environment = {**self._environment, **record.parsed_options().environment()}
        # The agent reports for the stream, so that a stream of an older release needs not read a newer store.
        environment.pop("REFEED_JOB_STORE", None)
        started = self._releases.start(record.release, environment)
        own = started.command(*stream_arguments(record, instance_id))
        return PreparedStart(
            self.folder(record.name, instance_id),
            own if self._command is None else self._command(record, instance_id),
            self.pace(record),
            started.variables,
            self.logs.of_standby(record.name, instance_id) if is_standby else self.logs.of(record.name),
        )

    @cached_property
    def shadows(self) -> Shadows:
        """The shadows of this home's streams."""
        return Shadows(self._environment)

    def folder(self, name: str, instance_id: str | None = None) -> StreamFolder:
        """Return the folder of a stream in this home."""
        return StreamFolder.of(self.settings.home, name, instance_id)

    def pace(self, record: StreamRecord) -> BatchPace:
        """Return the pace in the record's options, with the deployment's settings for options that are not set."""
        environment = {**self._environment, **record.parsed_options().environment()}
        return _pace_of(record.kind, read_settings(environment))


def stream_arguments(record: StreamRecord, instance_id: str) -> list[str]:
    """Return the arguments of ``refeed`` that run one instance of the stream, in any release."""
    options = record.parsed_options()
    kind = [record.kind.value] if record.kind is StreamKind.BACKUP else [record.kind.value, "run"]
    if isinstance(options, PipelineStreamOptions):
        mapping = (options.mapping or {}).items()
        # Releases that have no option --mapping run only streams without a mapping.
        kind += ["--group", options.group, *(f"--mapping={old}={new}" for old, new in mapping)]
    return [*kind, "--name", record.name, INSTANCE_OPTION, instance_id]


def _pace_of(kind: StreamKind, settings: Settings) -> BatchPace:
    if kind is StreamKind.PIPELINE:
        return BatchPace(settings.pipeline_batch_seconds, settings.pipeline_batch_bytes)
    if kind is StreamKind.KINESIS:
        return BatchPace(settings.kinesis.batch_seconds, settings.kinesis.batch_bytes)
    return BatchPace(settings.backup_batch_seconds, settings.backup_batch_bytes)
