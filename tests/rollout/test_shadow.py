"""Shadows as processes: found again after their agent's death, and gone without a trace when they end."""

import os
import sys
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from model.stream_options import StreamKind
from model.stream_record import StreamRecord, StreamState, Wanted
from pipeline.shadow_report import ShadowFolder, ShadowState
from rollout.child import Child
from rollout.process import INSTANCE_OPTION, find_instance
from rollout.shadow import ShadowRun, Shadows
from tests.waiting import wait_until

SLEEPER = "import time; time.sleep(60)"


@pytest.fixture
def environment(tmp_path):
    given = {key: value for key, value in os.environ.items() if not key.startswith(("REFEED_", "PUBSUB_"))}
    return {**given, "REFEED_HOME": str(tmp_path / "home")}


@pytest.fixture
def record():
    now = datetime.now(UTC)
    return StreamRecord(
        "pipeline", StreamKind.PIPELINE, None, {"group": "default"}, Wanted.RUNNING, 60.0, StreamState.RUNNING,
        1, 1, "in_1", "a", True, None, None, None, "ann", now, "ann", now, now,
    )  # fmt: skip


@pytest.fixture
def shadows(environment):
    found = Shadows(environment)
    yield found
    found.end_others(())


def test_a_shadow_that_can_not_go_on_says_why_and_leaves_nothing(shadows, record, tmp_path):
    run = shadows.start(record, "sh_1", may_differ=("orders.total",))
    wait_until(lambda: run.look().state is ShadowState.FAILED, seconds=60, why="it has no plan to compare with")
    error = run.look().error
    assert error["code"] == "checkpoint_corrupt"
    assert "plan.json" in error["message"]
    wait_until(lambda: not run.is_running, seconds=30, why="it ends by itself")
    run.end()
    assert list((tmp_path / "home" / "shadows").rglob("*.json")) == []
    assert find_instance("shadow sh_1", "sh_1") is None


def test_a_shadow_whose_process_has_ended_without_a_word_has_failed(shadows, record, tmp_path):
    folder = ShadowFolder.of(tmp_path / "home", "pipeline", "sh_1")
    folder.want()
    run = ShadowRun(folder, find_instance("shadow sh_1", "sh_1"))
    assert run.look().state is ShadowState.FAILED
    run.end()
    assert not folder.path.exists()


def test_shadows_of_a_killed_agent_are_found_again_and_those_that_nobody_wants_end(shadows, record, tmp_path):
    children = []
    for shadow_id in ("sh_1", "sh_2"):
        folder = ShadowFolder.of(tmp_path / "home", "pipeline", shadow_id)
        folder.want()
        command = [sys.executable, "-c", SLEEPER, INSTANCE_OPTION, shadow_id, "--hours", "1"]
        children.append(Child(shadow_id, command, environment=os.environ, log=folder.log).start())
    try:
        # A process has no command line for a moment after its exec.
        for shadow_id, child in zip(("sh_1", "sh_2"), children, strict=True):
            is_found = lambda i=shadow_id, c=child: getattr(find_instance(i, i), "pid", None) == c.pid  # noqa: E731
            wait_until(is_found, seconds=10, why="it is started")
        # Another agent's object: it never started them.
        again = shadows.start(record, "sh_1")
        assert getattr(again._runs, "pid", None) == children[0].pid
        assert again.look().state is ShadowState.STARTING
        shadows.end_others({"sh_1"})
        wait_until(lambda: not children[1].is_running, seconds=10, why="nobody wants it")
        assert children[0].is_running
        assert [folder.shadow_id for folder in ShadowFolder.all_of(tmp_path / "home")] == ["sh_1"]
        again.end()
        assert not children[0].is_running
        assert list(ShadowFolder.all_of(tmp_path / "home")) == []
    finally:
        for child in children:
            child.kill()


def test_a_renamed_source_goes_along_under_both_names(shadows, record, monkeypatch):
    commands = []

    def start(self):
        commands.append(self._command)
        return self

    monkeypatch.setattr(Child, "start", start)
    renamed = replace(record, options={"group": "default", "mapping": {"orders": "sales"}})
    shadows.start(renamed, "sh_1", hours=0.5, may_differ={"total"})
    (command,) = commands
    assert command[2:] == [
        *("cli.main", "pipeline", "shadow", "--name", "pipeline", "--instance", "sh_1", "--hours", "0.5"),
        *("--may-differ=total", "--mapping=orders=sales"),
    ]
