import fcntl
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from jobs.folder import Control, JobFolder, Order
from model.errors import CheckpointCorruptError


@pytest.fixture
def folder(tmp_path):
    folder = JobFolder(tmp_path / "bf_1")
    folder.write_specification({"query": "SELECT 1"})
    return folder


@pytest.mark.parametrize(
    ("orders", "goes_on", "publishes"),
    [
        ([Order.RUN], True, True),
        ([Order.RUN, Order.STOP], False, False),
        ([Order.PAUSE], True, False),
        ([Order.PAUSE, Order.RUN], True, True),
    ],
)
def test_only_the_attempt_that_counts_goes_on_and_publishes_as_the_last_order_says(
    folder, orders, goes_on, publishes
):
    for order in orders:
        folder.write_control(Control(2, order))
    assert (folder.may_go_on(2), folder.may_publish(2)) == (goes_on, publishes)
    assert not folder.may_go_on(1)
    assert not folder.may_publish(1)


def test_a_control_written_before_there_were_limits_has_none(folder):
    (folder.path / "control.json").write_text('{"epoch":3,"order":"run"}')
    assert folder.read_control() == Control(3, Order.RUN, None, None)


def test_a_task_that_can_not_see_its_orders_does_not_go_on(folder):
    with pytest.raises(CheckpointCorruptError):
        folder.may_go_on(1)


def test_a_damaged_control_is_replaced(folder):
    (folder.path / "control.json").write_text("")
    assert folder.write_control(Control(1, Order.STOP))
    assert folder.read_control() == Control(1, Order.STOP)


def test_a_writer_that_stopped_with_the_lock_in_hand_stops_nobody_for_long(folder):
    with (folder.path / "control.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert folder.write_control(Control(1, Order.STOP))


def test_of_many_that_write_a_control_at_once_the_latest_attempt_stays(folder):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda epoch: folder.write_control(Control(epoch, Order.RUN)), range(1, 41)))
    assert folder.read_control().epoch == 40


def test_the_specification_is_for_its_owner_only(folder):
    assert folder.read_specification() == {"query": "SELECT 1"}
    assert folder.path.stat().st_mode & 0o077 == 0


def test_a_damaged_file_is_named(folder):
    (folder.path / "specification.json").write_text(json.dumps([1]))
    with pytest.raises(CheckpointCorruptError, match=r"specification\.json"):
        folder.read_specification()
