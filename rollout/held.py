"""A stream that an agent holds, and the process that it keeps for it."""

from dataclasses import dataclass, field

from rollout.process import StreamProcess
from streams.control import BatchPace


@dataclass(slots=True)
class HeldStream:
    """A stream that an agent holds; ``start_at`` is when it is to be started while it has no process."""

    process: StreamProcess | None = None
    start_at: float = 0.0
    started_at: float = 0.0
    deaths: int = 0
    kill_at: float | None = None
    # The version of the record that the pace was made of.
    version: int = 0
    pace: BatchPace = field(default_factory=BatchPace)

    @property
    def running(self) -> StreamProcess | None:
        """Its process where one runs."""
        return self.process if self.process is not None and self.process.is_running else None
