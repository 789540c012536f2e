"""Updates that have to agree in the shadow first: what a report decides, and who looks after its process."""

import time
from contextlib import closing
from dataclasses import replace
from typing import Any, cast

import pytest
from pydantic import TypeAdapter

from api.stream_jobs import UpdateJobs
from jobs.store import open_store
from model.principal import MESSAGES, STREAMS_OPERATE, STREAMS_READ, Principal
from model.stream_record import StreamRecord
from model.stream_update import ShadowRequest, StreamUpdate, UpdateState
from pipeline.shadow_report import ShadowExample, ShadowReport, ShadowState
from rollout.shadow import Shadows
from rollout.shadow_work import ShadowWork
from rollout.updates import UpdateService
from tests.rollout.update_yard import Yard, kill_at, look_until_killed

ANN = Principal("ann", frozenset({STREAMS_OPERATE, STREAMS_READ}))
REPORT = TypeAdapter(ShadowReport)
AGREES = ShadowReport(ShadowState.FOLLOWING, messages_read=30, messages_compared=30, rows_equal=30)
EXAMPLE = ShadowExample("staging.orders", "orders", "1", "total", "3.1", "3.2")
DIFFERS = replace(AGREES, rows_equal=29, rows_different=1, examples=[EXAMPLE])


class Run:
    """A shadow whose reports are scripted; the last one stays."""

    def __init__(self, shadows: "ScriptedShadows") -> None:
        self._shadows = shadows

    def look(self, acknowledged_until: float | None = None) -> ShadowReport:
        self._shadows.acknowledged_until = acknowledged_until
        reports = self._shadows.reports
        return reports.pop(0) if len(reports) > 1 else reports[0]

    def kill(self) -> None:
        pass

    def end(self) -> None:
        self._shadows.ended += 1


class ScriptedShadows:
    """Starts scripted shadows, and keeps what they were started with."""

    def __init__(self) -> None:
        self.reports = [ShadowReport(), replace(AGREES, state=ShadowState.CATCHING_UP), AGREES]
        self.started: list[tuple[str, str | None, float, Any]] = []
        self.ended = 0
        self.kept: set[str] = set()
        self.acknowledged_until: float | None = None

    def start(self, wanted: StreamRecord, shadow_id: str, *, hours: float, may_differ: Any) -> Run:
        self.started.append((shadow_id, wanted.release, hours, may_differ))
        return Run(self)

    def end_others(self, keep: set[str]) -> None:
        self.kept = keep


class ShadowYard:
    """A yard whose agents run scripted shadows."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        self.shadows = ScriptedShadows()
        self.prepare()

    def prepare(self) -> None:
        starter = self.yard.agent._starter
        vars(starter)["shadows"] = cast("Shadows", self.shadows)

    def update(self, **given: Any) -> StreamUpdate:
        return self.yard.update(shadow=ShadowRequest(2.0, ("total",)), **given)


@pytest.fixture
def shadowed(tmp_path):
    with closing(open_store(f"sqlite:///{tmp_path / 'jobs.db'}")) as store:
        yard = Yard(tmp_path / "home", store)
        yield ShadowYard(yard)
        for process in yard.started:
            process.kill()
        for work in yard.works:
            work.stop()


def test_a_shadow_that_agrees_leads_to_the_update_and_its_report_is_kept(shadowed):
    asked = shadowed.update()
    done = shadowed.yard.look_until_it_is(UpdateState.STABLE, UpdateState.FAILED)
    assert done.state is UpdateState.STABLE
    assert shadowed.shadows.started == [(f"sh_{asked.id}", "new", 2.0, ("total",))]
    assert done.request == asked.request
    figures = done.figures or {}
    assert REPORT.validate_python(figures["shadow"]) == AGREES
    assert figures.keys() == {"shadow", "before", "after"}
    assert (shadowed.shadows.ended, shadowed.shadows.kept) == (1, set())
    shadowed.yard.check_one_runs("new")


def test_a_shadow_that_differs_halts_with_the_rows_and_nothing_is_touched(shadowed):
    shadowed.shadows.reports = [replace(AGREES, state=ShadowState.CATCHING_UP), DIFFERS]
    shadowed.update()
    done = shadowed.yard.look_until_it_is(UpdateState.FAILED, UpdateState.STABLE)
    assert done.error.code == "shadow_differs"
    assert "30 messages: 1 rows differ and 0 rows are missing" in done.error.message
    assert "staging.orders.total" in done.error.message
    assert "3.2" not in done.error.message
    assert REPORT.validate_python((done.figures or {})["shadow"]).examples == [EXAMPLE]
    assert (done.instance_id, done.snapshot_id, done.handed_over_at) == (None, None, None)
    shadowed.yard.agent.look()
    assert shadowed.shadows.ended == 1
    assert shadowed.yard.check_one_runs("old").instance_id == shadowed.yard.first


def test_a_shadow_knows_what_the_running_release_has_acknowledged(shadowed):
    shadowed.yard.lag = 100.0
    shadowed.update()
    shadowed.yard.look_until_it_is(UpdateState.STABLE, UpdateState.FAILED)
    until = shadowed.shadows.acknowledged_until
    assert 100.0 <= time.time() - until < 160.0


def test_too_few_messages_in_the_shadow_prove_nothing(shadowed):
    shadowed.update(min_messages=31)
    done = shadowed.yard.look_until_it_is(UpdateState.FAILED, UpdateState.STABLE)
    assert done.error.code == "shadow_inconclusive"
    assert shadowed.yard.record().instance_id == shadowed.yard.first


def test_a_shadow_that_dies_is_started_three_times(shadowed):
    dead = replace(AGREES, state=ShadowState.FAILED, error={"code": "process_ended", "message": "It was killed."})
    shadowed.shadows.reports = [dead, dead, AGREES]
    shadowed.update()
    assert shadowed.yard.look_until_it_is(UpdateState.STABLE, UpdateState.FAILED).state is UpdateState.STABLE
    assert len(shadowed.shadows.started) == 3
    shadowed.shadows.reports = [dead]
    shadowed.update()
    done = shadowed.yard.look_until_it_is(UpdateState.STABLE, UpdateState.FAILED)
    assert done.error.code == "shadow_failed"
    assert "It was killed." in done.error.message
    assert len(shadowed.shadows.started) == 6


@pytest.mark.parametrize("place", ["update.shadow.entered", "shadow.looked"])
def test_the_next_agent_goes_on_with_the_shadow_of_a_killed_one(shadowed, monkeypatch, place):
    kill_at(monkeypatch, place)
    shadowed.update()
    look_until_killed(shadowed.yard)
    shadowed.yard.agent = shadowed.yard.make_agent()
    shadowed.prepare()
    assert shadowed.yard.look_until_it_is(UpdateState.STABLE, UpdateState.FAILED).state is UpdateState.STABLE
    # By the same id it finds the process, where there is one.
    assert len({started[0] for started in shadowed.shadows.started}) == 1


def test_the_shadow_of_an_agent_that_took_over_late_has_all_of_its_time_to_compare(shadowed):
    update = shadowed.update(validate_seconds=10, min_messages=31)
    now = update.changed_at.timestamp() + 100
    work = ShadowWork(lambda: now)
    shadowed.shadows.reports = [replace(AGREES, state=ShadowState.CATCHING_UP), AGREES]

    def look():
        return work.look(update, shadowed.yard.record(), cast("Shadows", shadowed.shadows))

    assert look().fault is None
    now += 20
    assert look().fault is None, "it has only begun to follow"
    now += 9
    assert look().fault is None
    now += 2
    fault = look().fault
    assert fault.code == "shadow_inconclusive"


def test_an_update_that_is_taken_back_in_the_shadow_ends_it(shadowed):
    shadowed.shadows.reports = [ShadowReport()]
    shadowed.update()
    shadowed.yard.look_until_it_is(UpdateState.SHADOWING)
    shadowed.yard.look_until(lambda: shadowed.shadows.started, "the shadow is started")
    assert shadowed.shadows.kept == {f"sh_{shadowed.yard.living().id}"}
    UpdateService(shadowed.yard.store).revert(shadowed.yard.living().id, principal=ANN)
    shadowed.yard.agent.look()
    assert (shadowed.shadows.ended, shadowed.shadows.kept) == (1, set())
    assert shadowed.yard.living().state is UpdateState.ROLLED_BACK
    assert shadowed.yard.record().instance_id == shadowed.yard.first


def test_values_are_shown_to_those_who_may_read_the_topic_s_messages(shadowed):
    shadowed.shadows.reports = [DIFFERS]
    shadowed.update()
    done = shadowed.yard.look_until_it_is(UpdateState.FAILED)
    updates = UpdateJobs(shadowed.yard.store, UpdateService(shadowed.yard.store))

    def shown(*scopes, topics=None):
        caller = Principal("ann", frozenset({STREAMS_READ, *scopes}), topics)
        examples = updates.get(done.id, principal=caller).to_json()["figures"]["shadow"]["examples"]
        assert [example["message_id"] for example in examples] == ["1"]
        return [(example["running"], example["new"]) for example in examples]

    assert shown() == [(None, None)]
    assert shown(MESSAGES) == [("3.1", "3.2")]
    assert shown(MESSAGES, topics=("members",)) == [(None, None)]
