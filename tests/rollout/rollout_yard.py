"""A stream whose agent is the test, which brings its rollouts from step to step by a clock that it moves."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jobs.store import JobStore
from model.errors import ReleaseNotFoundError
from model.principal import SCOPES, Principal
from model.rollout_record import RolloutSide
from model.stream_options import StreamKind
from model.stream_record import StreamState
from model.stream_update import StreamUpdate, UpdateFault, UpdateState
from rollout.manifests.service import ManifestService
from rollout.rollouts import RolloutService
from rollout.updates import UpdateService
from tests.worlds.update_jobs import advance_update

ANN = Principal("ann", frozenset(SCOPES))
AGENT = "agent-1"
OLD, NEW = RolloutSide("1.2", {"slots": 2}), RolloutSide("1.3", {"slots": 2, "batch_seconds": 3.0})
TEXT = """\
kind: Rollout
name: faster
stream: backup
from: {release: "1.2", options: {slots: 2}}
to: {release: "1.3", options: {slots: 2}, environment: {REFEED_BACKUP_BATCH_SECONDS: 3}}
strategy: restart
validate: {seconds: 60, min_messages: 10}
"""
UPDATE = TEXT.replace("restart", "update")
HALT = "on_failure: halt\n"
SLOW = UpdateFault("update_failed", "The oldest message has waited for 1,000 s.")
# The states of an update by a restart, up to each step.
TO_WATCH = (UpdateState.MEASURING, UpdateState.STOPPING, UpdateState.RESTARTING, UpdateState.WATCHING)


class Killed(BaseException):
    """What kill -9 is to the lines that follow."""


class Yard:
    """A store whose clock the test moves, and a stream whose agent the test is."""

    def __init__(self, path: Path) -> None:
        self.now = datetime(2026, 3, 2, 12, tzinfo=UTC)
        self.store = JobStore(path)
        self.store._database.now = lambda _: self.now  # type: ignore[method-assign]
        self.rollouts = RolloutService(self.store, check_release=self._check_release)
        self.manifests = ManifestService(self.store, rollouts=self.rollouts)
        self.updates = UpdateService(self.store, check_release=self._check_release)
        self.store.launch_stream("backup", StreamKind.BACKUP, actor="ann", release="1.2", options={"slots": 2})
        self.store.take_streams(AGENT, limit=1, lease_seconds=7200)
        self.store.report_stream("backup", AGENT, StreamState.RUNNING, instance_id="in_1")

    @staticmethod
    def _check_release(name: str | None) -> None:
        if name not in {None, "1.2", "1.3"}:
            raise ReleaseNotFoundError(f"No agent has a release {name}.")

    def drain(self) -> None:
        self.store.report_stream("backup", AGENT, StreamState.DRAINED)

    def apply(self, text: str = TEXT) -> StreamUpdate:
        self.manifests.apply("faster", text.encode(), principal=ANN)
        return self.rollout

    @property
    def rollout(self) -> StreamUpdate:
        return self.store.list_updates()[0]

    def advance(self, *states: UpdateState, **given: Any) -> StreamUpdate:
        """Have the agent bring the newest rollout through states of its update."""
        for state in states:
            memory = dict(given)
            if state in {UpdateState.HANDING_OVER, UpdateState.RESTARTING, UpdateState.RESTARTING_BACK}:
                memory |= {"outgoing_id": "in_1"}
            if state is UpdateState.RESTARTING:
                memory |= {"handed_over_at": self.now}
            advance_update(self.store, self.rollout, state, **memory)
        return self.rollout

    def restart(self, text: str = TEXT) -> StreamUpdate:
        self.apply(text)
        return self.advance(*TO_WATCH)

    def make_stable(self, text: str = TEXT) -> StreamUpdate:
        self.restart(text)
        return self.advance(UpdateState.STABLE)

    def go_back(self, fault: UpdateFault = SLOW) -> StreamUpdate:
        back = (UpdateState.STOPPING_BACK, UpdateState.RESTARTING_BACK, UpdateState.ROLLED_BACK)
        return self.advance(*back, error=fault)

    def side(self) -> RolloutSide:
        record = self.store.get_stream("backup")
        return RolloutSide(record.release, record.options)

    def pass_time(self, **given: float) -> None:
        self.now += timedelta(**given)

    def state(self) -> UpdateState:
        return self.rollout.state


@pytest.fixture
def yard(tmp_path):
    made = Yard(tmp_path / "jobs.db")
    yield made
    made.store.close()
