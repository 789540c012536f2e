import subprocess
import sys
from dataclasses import replace

from jobs.lease_owner import LeaseOwner
from model.process import Process


def test_an_owner_is_read_as_it_was_written() -> None:
    owner = LeaseOwner.current()
    assert LeaseOwner.parse(str(owner)) == owner
    assert LeaseOwner.parse("somebody") is None
    assert LeaseOwner.parse("a|b|c|d|e") is None


def test_two_owners_of_one_process_are_two() -> None:
    assert str(LeaseOwner.current()) != str(LeaseOwner.current())


def test_only_of_a_process_of_this_machine_it_is_said_that_it_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = Process.of(child.pid)
    owner = replace(LeaseOwner.current(), process=process)
    assert not owner.is_dead
    child.kill()
    child.communicate()
    assert owner.is_dead
    assert not replace(owner, process=replace(process, boot_id="another")).is_dead
