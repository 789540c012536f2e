"""What an update must keep where something goes wrong that its steps do not expect."""

import os
import signal
from datetime import timedelta

import pytest

from jobs.store.tables import JOBS
from model.errors import RegistryError
from model.stream_record import StreamState
from model.stream_update import UpdateState
from rollout.handover import Pause
from rollout.stream_logs import StreamLogs
from rollout.updates import UpdateService
from streams.control import StreamControl
from streams.folder import StreamFolder
from streams.status import StatusFile
from tests.rollout import update_yard
from tests.rollout.update_yard import ANN, Starter, kill_at, look_until_killed, yard
from tests.waiting import wait_until

__all__ = ["yard"]
NO_SPACE = OSError(28, "No space left on device")


def let_pass(yard, seconds):
    """Let the present step of the update have begun earlier."""
    job = yard.store.get(yard.living().id)
    with yard.store._database.write() as connection:
        began = job.step_began_at - timedelta(seconds=seconds)
        connection.execute(JOBS.update().where(JOBS.c.id == job.id).values(step_began_at=began))


def status_of(yard, instance_id):
    return StatusFile.read(StreamFolder.of(yard.home, "backup", instance_id).status) or {}


def test_a_release_that_took_over_while_no_agent_ran_is_not_killed_by_the_bound(yard, monkeypatch):
    kill_at(monkeypatch, "update.ordered")
    yard.update()
    look_until_killed(yard)
    taken = yard.living().instance_id
    wait_until(lambda: status_of(yard, taken).get("state") == "running", "the new release has the stream")
    let_pass(yard, 4 * 3600)
    yard.agent = yard.make_agent()
    yard.look_until_it_is(UpdateState.STABLE)
    assert yard.check_one_runs("new").instance_id == taken


def test_an_outgoing_process_may_drain_also_where_the_hand_over_began_long_ago(yard, monkeypatch):
    kill_at(monkeypatch, "update.hand_over.entered")
    yard.update()
    look_until_killed(yard)
    (standby,) = [each for each in yard.instances() if each.instance_id != yard.first]
    os.kill(standby.pid, signal.SIGKILL)
    wait_until(lambda: not standby.is_running, "the standby is gone too")
    let_pass(yard, 60)
    yard.agent = yard.make_agent()
    yard.look_until(lambda: yard.living().state is not UpdateState.HANDING_OVER, "the hand-over ends")
    assert status_of(yard, yard.first)["state"] == "stopped", "it was killed before it could drain"


def test_a_release_that_crashes_with_words_that_no_database_takes_goes_back(yard, monkeypatch):
    broken = update_yard.STREAM.replace("It crashed.", "It crashed: \\ud800")
    monkeypatch.setattr(update_yard, "STREAM", broken)
    monkeypatch.setattr("rollout.agent.WAITS_SECONDS", (0.05, 0.05, 0.05, 0.05))
    yard.moods["new"] = "crash"
    yard.update(validate_seconds=20)
    ended = yard.look_until_it_is(UpdateState.ROLLED_BACK, UpdateState.STABLE)
    assert ended.state is UpdateState.ROLLED_BACK


def fail_starts(monkeypatch, fault):
    """Let the start of a release fail with what ``fault`` makes of it."""
    prepare = Starter.prepare

    def fail(self, record, instance_id, *, is_standby=False):
        if error := fault(record.release):
            raise error
        return prepare(self, record, instance_id, is_standby=is_standby)

    monkeypatch.setattr(Starter, "prepare", fail)


def test_a_way_back_that_fails_says_so(yard, monkeypatch):
    fail_starts(monkeypatch, lambda release: ValueError() if release == "old" else None)
    yard.moods["new"] = "bad"
    yard.update(validate_seconds=20)
    failed = yard.look_until_it_is(UpdateState.FAILED)
    assert "back_stand_by failed" in str(failed.error)


def test_a_take_back_that_failed_is_in_the_inbox(yard, monkeypatch):
    fail_starts(monkeypatch, lambda release: ValueError() if release == "old" else None)
    yard.update(validate_seconds=20)
    yard.look_until_it_is(UpdateState.WATCHING)
    service = UpdateService(yard.store)
    service.revert(yard.living().id, principal=ANN)
    failed = yard.look_until_it_is(UpdateState.FAILED)
    yard.check_one_runs("new")
    assert [item.id for item in service.list_inbox(principal=ANN)] == [failed.id]


@pytest.mark.parametrize(
    ("moods", "state"),
    [({}, UpdateState.STABLE), ({"new": "crash", "old": "gone"}, UpdateState.FAILED)],
    ids=["the update ends", "the stream is started again"],
)
def test_an_update_comes_to_its_end_where_an_old_log_can_t_be_removed(yard, monkeypatch, moods, state):
    def fail(*_, **__):
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(StreamLogs, "remove_standbys", fail)
    yard.moods |= moods
    yard.update(validate_seconds=20 if moods else 0.3)
    yard.look_until_it_is(state)


def test_only_standbys_count_as_attempts(yard):
    yard.checker.found = RegistryError("The registry can't be read.")
    yard.update()
    assert yard.look_until_it_is(UpdateState.REFUSED).attempts == 0


def test_orders_that_a_full_disk_did_not_take_are_given_again(yard, monkeypatch):
    faults, write = ["drain", "run"], StreamControl.write

    def fail_once(self, path):
        if self.order in faults:
            faults.remove(self.order)
            raise NO_SPACE
        write(self, path)

    monkeypatch.setattr(StreamControl, "write", fail_once)
    yard.update()
    yard.look_until_it_is(UpdateState.STABLE)
    assert (faults, status_of(yard, yard.first)["state"]) == ([], "stopped")


def test_a_hand_over_whose_orders_no_disk_takes_comes_to_an_end(yard, monkeypatch):
    def fail(_):
        raise NO_SPACE

    monkeypatch.setattr("rollout.update_steps.HandOver.look", fail)
    yard.update()
    yard.look_until_it_is(UpdateState.HANDING_OVER)
    let_pass(yard, 4 * 3600)
    yard.look_until(lambda: yard.living().state is not UpdateState.HANDING_OVER, "it ends")


def test_a_watch_that_began_too_often_says_so_in_sentences(yard):
    yard.update(validate_seconds=20)
    job = yard.look_until_it_is(UpdateState.WATCHING)
    with yard.store._database.write() as connection:
        connection.execute(JOBS.update().where(JOBS.c.id == job.id).values(attempt=10))
    yard.store.report_stream("backup", yard.agent.owner, StreamState.RUNNING, instance_id="in_elsewhere")
    kept = yard.look_until_it_is(UpdateState.STABLE)
    assert "as in_elsewhere. It was tried 10 times." in kept.error.message


def test_one_start_that_failed_after_a_long_outage_is_not_the_release_s_end(yard, monkeypatch):
    yard.update(validate_seconds=1)
    taken = yard.look_until_it_is(UpdateState.WATCHING).instance_id
    (process,) = [each for each in yard.instances() if each.instance_id == taken]
    yard.store.release_streams(yard.agent.owner)
    process.kill()
    let_pass(yard, 800)
    faults = [NO_SPACE]
    fail_starts(monkeypatch, lambda _: faults.pop() if faults else None)
    monkeypatch.setattr("rollout.agent.WAITS_SECONDS", (0.05, 0.05, 0.05, 0.05))
    yard.agent = yard.make_agent()
    ended = yard.look_until_it_is(UpdateState.STABLE, UpdateState.ROLLED_BACK)
    assert ended.state is UpdateState.STABLE, ended.error


def test_a_pause_is_unknown_until_both_have_committed_and_never_negative():
    assert [Pause(1.0, None).seconds, Pause(None, 1.0).seconds, Pause(1.0, 2.5).seconds] == [None, None, 1.5]
    # Two clocks of one machine may differ by a moment.
    assert Pause(2.0, 1.9999).seconds == 0
