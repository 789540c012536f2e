"""A stream as a record that agents keep: launched, changed, put back, updated and ended by the API's calls."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from jobs.store import JobStore
from model.stream_record import StreamRecord, StreamState, Wanted
from model.stream_snapshot import RestoreState, SnapshotRecord, SnapshotState
from model.stream_update import StreamUpdate
from rollout.process import StreamProcess
from streams.folder import StreamFolder
from tests.chaos.processes import StuckError
from tests.chaos.service import Service
from tests.chaos.yard import ChaosYard

_PATIENCE_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 0.2
_DRAIN_SECONDS: Final = 120.0
_TRIES: Final = 5
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "backup": {"name": "backup", "kind": "backup"},
    "pipeline": {"name": "pipeline", "kind": "pipeline", "options": {"group": "default"}},
}
_UPDATE: Final[dict[str, Any]] = {"validate_seconds": 2, "min_messages": 0}
_ENDED: Final = (StreamState.DRAINED, StreamState.CANCELLED)


class ManagedStream:
    """A stream that agents keep, steered by the API's calls; ``store`` says how it stands."""

    def __init__(self, name: str, yard: ChaosYard, service: Service) -> None:
        self.name = name
        self._yard = yard
        self._service = service

    def record(self) -> StreamRecord | None:
        """Return its record, None before it was launched for the first time."""
        with self.store() as store:
            return next((found for found in store.list_streams() if found.name == self.name), None)

    @contextmanager
    def store(self) -> Iterator[JobStore]:
        """Open the job store for as long as the block lasts."""
        with closing(JobStore(self._yard.home / "jobs.db")) as store:
            yield store

    def ensure(self) -> None:
        """Return once it runs; one that has ended is launched."""
        record = self.record()
        if record is None or record.wanted is not Wanted.RUNNING:
            self.call("post", "/streams", "is launched", json=_OPTIONS[self.name])
        # Its record says so for a moment longer than it does.
        self.wait(lambda: self._stands_at(StreamState.RUNNING) and self.process() is not None, "runs")

    def wait(self, is_true: Callable[[], bool], what: str, *, seconds: float = _PATIENCE_SECONDS) -> None:
        """Wait until ``is_true``, and keep the agents and the API running until then.

        Raises:
            StuckError: it did not come to that.
        """
        deadline = time.monotonic() + seconds
        while not is_true():
            for part in (*self._yard.agents, self._yard.api):
                part.start()
            if time.monotonic() > deadline or self._yard.over.wait(_POLL_SECONDS):
                raise StuckError(f"{self.name}: not within {seconds:.0f} s: {what}; {self.last_words()}")

    def end(self, verb: str, **body: Any) -> StreamRecord:
        """Have it drained or cancelled, and return its record when it has ended."""
        self.call("post", f"/streams/{self.name}:{verb}", f"takes {verb}", json=body)
        self.wait(lambda: self._stands_at(*_ENDED), f"has ended after {verb}")
        record = self.record()
        assert record is not None
        return record

    def stop(self) -> int:
        """Let it drain; 0 when it did so within its bound."""
        record = self.end("drain", timeout_seconds=_DRAIN_SECONDS)
        return int(record.state is not StreamState.DRAINED or record.error is not None)

    def change(self, **options: Any) -> None:
        """Give it another pace while it runs."""
        self.call("patch", f"/streams/{self.name}", "takes another pace", json={"options": options})

    def take_snapshot(self, meanwhile: Callable[[], object]) -> str:
        """Have a snapshot made with its source, do ``meanwhile``, and return its id once it is whole.

        One that fails because of something that was killed is made again, as a patient caller would.
        """
        for _ in range(_TRIES):
            made = self.call(
                "post", f"/streams/{self.name}:snapshot", "takes a snapshot", json={"with_source": True}
            )
            meanwhile()
            with self.store() as store:
                found = self._await_snapshot(store, made["id"])
            if found.state is SnapshotState.COMPLETED:
                return found.id
            self._service.say(f"{found.id} of {self.name} is {found.state}: {found.error}")
            self.ensure()
        raise StuckError(f"{self.name}: no snapshot in {_TRIES} tries; {self.last_words()}")

    def delete_snapshot(self, snapshot_id: str) -> None:
        self.call("delete", f"/snapshots/{snapshot_id}", "deletes a snapshot")

        def is_gone() -> bool:
            return snapshot_id not in {each.id for each in store.list_snapshots(stream=self.name)}

        with self.store() as store:
            self.wait(is_gone, "deletes a snapshot")

    def _await_snapshot(self, store: JobStore, snapshot_id: str) -> SnapshotRecord:
        self.wait(lambda: store.get_snapshot(snapshot_id).state is not SnapshotState.PENDING, "makes a snapshot")
        return store.get_snapshot(snapshot_id)

    def roll_back(self, snapshot_id: str, meanwhile: Callable[[], object]) -> None:
        """Have it put back to a snapshot, do ``meanwhile``, and return once it is."""
        self.call("post", f"/streams/{self.name}:rollback", "goes back", json={"snapshot": snapshot_id})
        meanwhile()
        with self.store() as store:
            self.wait(lambda: store.list_restores(self.name)[0].state is not RestoreState.RUNNING, "is put back")
            found = store.list_restores(self.name)[0]
        if found.state is not RestoreState.SUCCEEDED:
            raise StuckError(f"{self.name}: the rollback to {snapshot_id} is {found.state}: {found.error}")

    def update(self, meanwhile: Callable[[], object]) -> StreamUpdate:
        """Have it handed over to the same release, do ``meanwhile``, and return the update when it has ended."""
        self.call("post", f"/streams/{self.name}:update", "is updated", json=_UPDATE)
        meanwhile()
        with self.store() as store:
            self.wait(lambda: store.list_updates(self.name)[0].state.is_ended, "is updated")
            return store.list_updates(self.name)[0]

    def process(self) -> StreamProcess | None:
        """Return its process, whichever home it is in; None while it has none."""
        record = self.record()
        if record is None or record.home is None or record.instance_id is None:
            return None
        return StreamProcess.find(StreamFolder(Path(record.home.path), record.instance_id))

    def last_words(self) -> str:
        """Return how it stands and the last lines of its logs and of its agents'."""
        logs = [part.home / "logs" / f"{self.name}.log" for part in self._yard.agents]
        tails = [f"{log} ends:\n{log.read_text(errors='replace')[-2000:]}" for log in logs if log.exists()]
        return "\n".join([str(self.record()), *(part.last_words() for part in self._yard.agents), *tails])

    def _stands_at(self, *states: StreamState) -> bool:
        record = self.record()
        return record is not None and record.state in states

    def call(self, method: str, path: str, what: str, **body: Any) -> dict[str, Any]:
        """Return the answer to a call with the ``json`` or ``content``, which is made until it is answered.

        Raises:
            StuckError: nobody answered, or it was refused each time.
        """

        def call() -> dict[str, Any]:
            answer = self._yard.client.request(method, path, timeout=60, **body)
            # A conflict is a call that was taken and whose answer was lost.
            if answer.status_code != httpx.codes.CONFLICT:
                answer.raise_for_status()
            else:
                self._service.say(f"{method} {path}: {answer.text}")
            return answer.json()

        return self._service.keep_trying(call, httpx.HTTPError, f"{self.name} {what}")
