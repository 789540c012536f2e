"""What the service of the simulation works on: drivers, streams' processes and snapshots that end at once."""

import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jobs.folder import JobFolder, Outcome
from jobs.launcher import Launch
from jobs.steps import StepRun
from jobs.store import Idempotency, JobStore
from model.errors import ProcessEndedError, PubSubError
from model.job import JobState, new_job_id
from model.manifest_record import RunState, ScheduleRun
from model.principal import Principal
from model.process import Driver, Process
from model.stream_record import StreamRecord
from model.stream_snapshot import SnapshotPlace, SnapshotRecord
from rollout.manifests.scheduled_jobs import StartedJob
from rollout.starter import StreamStarter
from streams.control import BatchPace, StreamControl
from streams.folder import StreamFolder
from tests.worlds.launchers import IdleLauncher
from tests.worlds.snapshot_jobs import FACTS

SNAPSHOTS = "snapshot-of-"


class AtOnce:
    """A pool that does everything at once, in the thread of its caller."""

    def submit(self, do: Callable[..., Any], *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(do(*arguments))
        return done

    def shutdown(self, **_: Any) -> None:
        """There is nothing to wait for."""


class Drivers(IdleLauncher):
    """A launcher whose drivers have done everything before anybody looks; every tenth fails."""

    def __init__(self) -> None:
        self.launched = 0

    def launch(self, launch: Launch) -> Driver:
        self.launched += 1
        fails = self.launched % 10 == 0
        error = {"code": "driver_died", "message": "It died."} if fails else None
        state = JobState.FAILED if fails else JobState.SUCCEEDED
        folder = JobFolder(Path(json.loads(launch.argument)["folder"]))
        folder.write_outcome(Outcome(launch.attempt, state, error))
        return Process(1, 1, "another machine")


@dataclass
class Jobs:
    """What schedules start: a job of the store, or a snapshot; ``made`` has the ids by schedule and slot."""

    store: JobStore
    folder: Path
    made: dict[tuple[str, Any], set[str]] = field(default_factory=dict)

    def start(self, run: ScheduleRun, principal: Principal) -> StartedJob:
        key = Idempotency(f"{run.schedule} {run.slot}", "same")
        if run.schedule.startswith(SNAPSHOTS):
            stream = run.schedule.removeprefix(SNAPSHOTS)
            made = self.store.create_snapshot(stream, with_source=True, actor=principal.name, idempotency=key)
            started = StartedJob("snapshot", made.id)
        else:
            job_id = new_job_id("mg")
            JobFolder(self.folder / job_id).write_specification({})
            job = self.store.insert(job_id, "merge", {}, actor=principal.name, idempotency=key)
            started = StartedJob("merge", job.id)
        self.made.setdefault((run.schedule, run.slot), set()).add(started.id)
        return started

    def look(self, run: ScheduleRun) -> tuple[RunState, str | None]:
        assert run.job_id is not None
        if run.job_kind == "snapshot":
            return RunState.SUCCEEDED, None
        state = self.store.get(run.job_id).state
        return (RunState(state.value) if state.is_final else RunState.RUNNING), None


class Taker:
    """Makes and deletes snapshots in the records alone; every fourth fails."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self.taken = 0

    def is_here(self, _: SnapshotPlace | None) -> bool:
        return True

    def take(self, run: StepRun[Any], *_: Any) -> None:
        self.taken += 1
        run.note({"place": SnapshotPlace("here", f"/snapshots/{self.taken}")})
        if self.taken % 4 == 0:
            raise PubSubError("Pub/Sub refused it.")
        run.note({"made": {**FACTS, "taken_at": self._store.now()}})

    def remove(self, _: SnapshotRecord) -> None:
        """It has no files."""


class StreamProcess:
    """A stream that carries out its orders at once, until somebody ends it."""

    def __init__(self, folder: StreamFolder) -> None:
        self.folder = folder
        self.name, self.instance_id, self.pid = folder.name, folder.instance_id, 1
        self.is_running = True
        self.control = StreamControl(1, "run")

    def status(self) -> dict[str, Any]:
        return {"state": "running" if self.is_running else "failed", "control_number": self.control.number}

    def order(self, order: Any, *, timeout_seconds: float | None = None, pace: BatchPace | None = None) -> int:
        assert (order, pace is None, timeout_seconds) == ("run", False, None), "nobody ends it"
        return self.control.number

    def keep_pace(self, pace: BatchPace) -> None:
        self.order("run", pace=pace)

    def ended_error(self) -> ProcessEndedError:
        return ProcessEndedError(f"{self.name} ended with code 1.", name=self.name, exit_code=1)

    def kill(self) -> None:
        self.is_running = False


class Starter(StreamStarter):
    """Starts no processes."""

    def prepare(self, record: StreamRecord, instance_id: str, *, is_standby: bool = False) -> Any:
        assert not is_standby
        folder = self.folder(record.name, instance_id)
        return SimpleNamespace(folder=folder, start=lambda: StreamProcess(folder))


def stream_info(record: StreamRecord) -> Any:
    """Return what the console shows of a stream, as far as its figures are kept."""
    empty: Mapping[str, Any] = {}
    return SimpleNamespace(
        name=record.name,
        is_over=not record.is_living,
        state=record.state,
        rates=None,
        totals=empty,
        instance_id="in_1",
        started_at=None,
        over_seconds=1.0,
        lag_seconds=None,
        backlog_messages=None,
        batch_seconds=1.0,
    )
