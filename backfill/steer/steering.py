"""Writes a job's state to the control of its attempt: run, pause or stop, and how fast."""

from collections.abc import Callable, Mapping
from typing import Final

from jobs.folder import Control, JobFolder, Order
from jobs.store import Job, JobStore
from model.errors import JobChangedError, JobStateError, RefeedError
from model.job import JobState

_ORDERS: Final[Mapping[JobState, Order]] = {JobState.RUNNING: Order.RUN, JobState.PAUSED: Order.PAUSE}
# Others that change a job at the same moment: its supervisor, another caller.
_TRIES: Final = 5


class Steering:
    """Steers attempts through the control in their folder, which tasks look at before each request."""

    def __init__(self, store: JobStore, folder_of: Callable[[str], JobFolder], *, max_running: int) -> None:
        self._store = store
        self._folder_of = folder_of
        self._max_running = max_running

    def steer(self, job: Job) -> None:
        """Write the order that the job's state means to the control of its attempt, if it ever had one.

        Of two callers at the same moment the one that writes last may have read first, so it looks again.
        """
        for _ in range(_TRIES):
            if job.epoch == 0 or job.state is JobState.PENDING:
                return
            self._write(job, _ORDERS.get(job.state, Order.STOP), job.options.get("canary_messages"))
            latest = self._store.get(job.id)
            if (latest.epoch, latest.state, latest.options) == (job.epoch, job.state, job.options):
                return
            job = latest

    def resume(self, job: Job, *, actor: str, why: str, expected_version: int | None) -> Job:
        """Let a PAUSED job go on without its canary: with the driver that waits, else with another one.

        While ``max_running`` others run it is PENDING and waits for its turn like any other; its driver leaves.

        Raises:
            JobStateError: it is not PAUSED any more.
            JobChangedError: it is not at ``expected_version``.
        """
        for _ in range(_TRIES):
            if expected_version not in (None, job.version):
                raise JobChangedError(f"{job.id} is at version {job.version}.", version=job.version)
            if job.state is not JobState.PAUSED:
                raise JobStateError(f"{job.id} is {job.state}, not paused.", state=job.state.value)
            try:
                return self._resume(job, actor, why)
            except JobChangedError:
                # Its driver may have let go of Spark in this moment, or another job have taken the last place.
                job = self._store.get(job.id)
        raise JobChangedError(f"{job.id} changes too often. Try again.", version=job.version)

    def _resume(self, job: Job, actor: str, why: str) -> Job:
        has_driver = job.driver is not None and self._folder_of(job.id).read_outcome(job.epoch) is None
        if has_driver and self._store.has_place(job.kind, self._max_running):
            return self._go_on(job, actor, why)
        if has_driver:
            why += f"; it waits until fewer backfills run than REFEED_MAX_RUNNING ({self._max_running})"
        pending = self._store.move(
            job.id,
            JobState.PENDING,
            actor=actor,
            why=why,
            expected_version=job.version,
            options={"canary_messages": None},
        )
        if has_driver:
            # The next launch fences this one too; until then it would hold on to Spark for nothing.
            self._write(job, Order.STOP, None)
        return pending

    def _go_on(self, job: Job, actor: str, why: str) -> Job:
        # Before the store says RUNNING: RUN takes the driver's own pause back, which is looked at then.
        self._write(job, Order.RUN, None)
        try:
            return self._store.move(
                job.id,
                JobState.RUNNING,
                actor=actor,
                why=why,
                expected_version=job.version,
                options={"canary_messages": None},
                max_running=self._max_running,
            )
        except RefeedError:
            self.steer(self._store.get(job.id))
            raise

    def _write(self, job: Job, order: Order, canary_messages: int | None) -> None:
        rate = job.options.get("rate_limit_messages_per_second")
        self._folder_of(job.id).write_control(Control(job.epoch, order, rate, canary_messages))
