import json
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from model.errors import CheckpointCorruptError, LeaseHeldError, LeaseLostError, StorageFullError
from streams.journal import Journal
from streams.lease import hold_lease, lock_home, refuse_held


class MemoryLeases:
    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.epoch = 0
        # Of the store's clock, beside this machine's.
        self.ahead_seconds = 0

    def read_lease(self, name: str) -> bytes | None:
        return self.content.get(name)

    def write_lease(self, name: str, epoch: int, content: bytes) -> None:
        if epoch < self.epoch:
            raise LeaseLostError(lease=name)
        self.content[name] = content

    def take_lease(self, name: str) -> int:
        self.epoch += 1
        return self.epoch

    def now(self) -> float:
        return time.time() + self.ahead_seconds


def test_a_second_stream_on_one_home_is_refused_and_told_who_has_it(tmp_path):
    script = (
        "import sys; from pathlib import Path; from streams.lease import lock_home\n"
        "with lock_home(Path(sys.argv[1])): print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(LeaseHeldError, match=f"process {other.pid}"), lock_home(tmp_path):
            pass
        other.kill()
    with lock_home(tmp_path) as stream:
        assert stream


def test_a_home_keeps_its_stream_id(tmp_path):
    with lock_home(tmp_path) as first:
        pass
    with lock_home(tmp_path) as second:
        assert second == first


def test_a_damaged_stream_id_is_named(tmp_path):
    (tmp_path / "stream-id").write_text("abc")
    with pytest.raises(CheckpointCorruptError, match="stream-id"), lock_home(tmp_path):
        pass


def test_another_homes_stream_is_refused_while_the_lease_runs():
    leases = MemoryLeases()
    with (
        hold_lease(leases, "backup-p", "home-1"),
        pytest.raises(LeaseHeldError, match="holds the lease backup-p"),
        hold_lease(leases, "backup-p", "home-2"),
    ):
        pass


@pytest.mark.parametrize("ahead_seconds", [-7200, 7200])
def test_a_lease_runs_out_by_the_clock_of_its_store_and_not_of_a_machine(ahead_seconds):
    leases = MemoryLeases()
    leases.ahead_seconds = ahead_seconds
    with hold_lease(leases, "backup-p", "home-1") as held:
        held.renew()
        content = leases.content["backup-p"]
    # A holder that was killed, and another machine with the right time.
    leases.content["backup-p"] = content
    with pytest.raises(LeaseHeldError, match=r"expires in (29|30) s"):
        refuse_held(leases, "backup-p", "home-2")
    leases.ahead_seconds += 31
    assert refuse_held(leases, "backup-p", "home-2").stream == "home-1"


def test_a_lease_that_can_t_be_given_back_runs_out_and_hides_no_error(monkeypatch):
    leases = MemoryLeases()

    def refuse(*_) -> None:
        raise StorageFullError

    with hold_lease(leases, "backup-p", "home-1"):
        monkeypatch.setattr(leases, "write_lease", refuse)
    monkeypatch.undo()

    def fail() -> None:
        with hold_lease(leases, "backup-p", "home-1"):
            monkeypatch.setattr(leases, "write_lease", refuse)
            raise CheckpointCorruptError

    with pytest.raises(CheckpointCorruptError):
        fail()
    with pytest.raises(LeaseHeldError):
        refuse_held(leases, "backup-p", "home-2")


def test_the_same_home_takes_its_own_lease_over_at_once_after_a_kill():
    leases = MemoryLeases()
    leases.write_lease(
        "backup-p",
        0,
        json.dumps(
            {"stream": "home-1", "host": "h", "pid": 1, "epoch": 1, "expires_at": time.time() + 30}
        ).encode(),
    )
    with hold_lease(leases, "backup-p", "home-1") as held:
        assert held.epoch == 1


def test_a_lease_that_a_later_refeed_wrote_is_read():
    leases = MemoryLeases()
    holder = {"stream": "home-1", "host": "h", "pid": 1, "epoch": 1, "expires_at": time.time() + 30, "more": 1}
    leases.write_lease("backup-p", 0, json.dumps(holder).encode())
    with pytest.raises(LeaseHeldError, match="process 1"):
        refuse_held(leases, "backup-p", "home-2")


def named(leases: MemoryLeases) -> str | None:
    return json.loads(leases.content["backup-p"])["journal"]


def test_the_lease_names_the_journal_of_its_holder_from_the_first_moment_on_and_after_its_end(tmp_path):
    leases = MemoryLeases()
    journal = Journal(tmp_path, keep_seconds=600)
    with hold_lease(leases, "backup-p", "home-1", journal):
        assert named(leases) == journal.mark.name
        assert journal.mark.is_heir
    assert named(leases) == journal.mark.name
    again = Journal(tmp_path, keep_seconds=600)
    with hold_lease(leases, "backup-p", "home-1", again):
        assert again.mark.is_heir
    assert named(leases) == again.mark.name != journal.mark.name


def test_a_start_that_died_between_its_journal_and_its_lease_finds_its_journal_again(tmp_path):
    leases = MemoryLeases()
    with hold_lease(leases, "backup-p", "home-1", Journal(tmp_path, keep_seconds=600)):
        pass
    Journal(tmp_path, keep_seconds=600).begin(knows_all=True)
    journal = Journal(tmp_path, keep_seconds=600)
    with hold_lease(leases, "backup-p", "home-1", journal):
        assert journal.mark.is_heir


def test_who_had_the_lease_between_the_look_and_the_taking_counts(tmp_path):
    leases = MemoryLeases()
    journal = Journal(tmp_path, keep_seconds=600)
    with hold_lease(leases, "backup-p", "home-1", journal):
        pass
    take = leases.take_lease

    def late(name: str) -> int:
        leases.take_lease = take
        with hold_lease(leases, name, "home-2", Journal(tmp_path / "2", keep_seconds=600)):
            pass
        return take(name)

    leases.take_lease = late
    again = Journal(tmp_path, keep_seconds=600)
    with hold_lease(leases, "backup-p", "home-1", again):
        assert not again.mark.is_heir


NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_every_later_holder_knows_how_old_messages_are_that_may_come_again():
    leases = MemoryLeases()
    with hold_lease(leases, "backup-p", "home-1") as held:
        assert held.again_since is None
        held.expect_again(NOON, 600)
    for home in ("home-2", "home-3"):
        with hold_lease(leases, "backup-p", home) as held:
            assert held.again_since == NOON


def test_what_the_lease_says_already_is_not_written_again():
    leases = MemoryLeases()
    with hold_lease(leases, "backup-p", "home-1") as held:
        written = []
        for since in (NOON, NOON, NOON + HOUR, NOON - HOUR, NOON):
            held.expect_again(since, 600)
            written.append(json.loads(leases.content["backup-p"])["again"])
    firsts = [[since for since, _ in again] for again in written]
    noon, earlier = NOON.timestamp(), (NOON - HOUR).timestamp()
    assert firsts == [[noon], [noon], [noon], [earlier], [earlier]]


def test_messages_come_again_no_more_when_the_window_of_the_last_one_is_over(monkeypatch):
    leases = MemoryLeases()
    with hold_lease(leases, "backup-p", "home-1") as held:
        held.expect_again(NOON - HOUR, 600)
        began = time.time()
        for seconds, since, expected in (
            (900, NOON, NOON - HOUR),
            (1400, NOON, NOON),
            (1900, NOON + HOUR, NOON),
            (2300, NOON + HOUR, NOON + HOUR),
        ):
            monkeypatch.setattr(time, "time", lambda seconds=seconds: began + seconds)
            held.expect_again(since, 600)
            assert held.again_since == expected
        monkeypatch.setattr(time, "time", lambda: began + 9000)
        assert held.again_since is None


def test_what_could_not_be_written_is_written_at_the_next_call(monkeypatch):
    leases = MemoryLeases()

    def refuse(*_) -> None:
        raise StorageFullError

    with hold_lease(leases, "backup-p", "home-1") as held:
        with monkeypatch.context() as full:
            full.setattr(leases, "write_lease", refuse)
            with pytest.raises(StorageFullError):
                held.expect_again(NOON, 600)
        held.expect_again(NOON, 600)
        assert json.loads(leases.content["backup-p"])["again"]
