"""The driver's side of the pace with tasks that are played, and a task's side with a driver that is."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from backfill.run.folder import BackfillFolder
from backfill.run.pace import SILENT_SECONDS, Pace, Pacer, Turn, deal, read_pace, write_pace
from backfill.run.progress import CheckpointFolder, SliceCheckpoint
from jobs.folder import Control, Order
from model.errors import CheckpointCorruptError
from tests.waiting import wait_until

PIECE_ROWS = 100_000


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Throttled:
    allowed: float | None = None

    def limit(self) -> float | None:
        return self.allowed


@dataclass
class Stage:
    """An attempt whose tasks send at once what they may, and confirm it before the next tick."""

    folder: BackfillFolder
    clock: Clock = field(default_factory=Clock)
    throttle: Throttled = field(default_factory=Throttled)
    offsets: dict[int, int] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.write_specification({})
        self.checkpoints = CheckpointFolder(self.folder.progress)
        self.checkpoints.create()
        self.pacer = Pacer(self.folder, 1, max_failed=2, throttle=self.throttle, clock=self.clock)

    def order(self, order: Order = Order.RUN, rate: float | None = None, canary: int | None = None) -> None:
        self.folder.write_control(Control(1, order, rate, canary))

    def start(self, *numbers: int, rows: int = PIECE_ROWS) -> None:
        self.rows = dict.fromkeys(numbers, rows)
        for number in numbers:
            self.enter(number)
        self.pacer.begin(self.rows)

    def enter(self, number: int) -> None:
        self.folder.enter_slice(number, 1)
        self.offsets.setdefault(number, 0)
        self.confirm(number, 0)

    def confirm(self, number: int, count: int, *, failed: int = 0) -> None:
        self.offsets[number] += count
        offset = self.offsets[number]
        self.checkpoints.write(
            SliceCheckpoint(
                number,
                1,
                offset=offset,
                published=offset - failed,
                failed=failed,
                newly_failed=failed,
                done=offset == self.rows.get(number, PIECE_ROWS),
            )
        )

    def room(self, number: int) -> int | None:
        return Turn(self.folder, 1, number, clock=self.clock).room(self.offsets[number])

    def run(self, seconds: float, *, send: Callable[[int, int], int] = lambda _number, room: room) -> int:
        """Let the time pass in ticks and return how many rows went out."""
        before = sum(self.offsets.values())
        for _ in range(round(seconds * 10)):
            self.clock.now += 0.1
            self.pacer.tick()
            for number in list(self.offsets):
                room = self.room(number)
                sent = send(number, min(room, self.rows[number] - self.offsets[number])) if room else 0
                if sent:
                    self.confirm(number, sent)
        return sum(self.offsets.values()) - before


@pytest.fixture
def stage(tmp_path):
    return Stage(BackfillFolder(tmp_path / "bf_1"))


@pytest.mark.parametrize("rate", [1.0, 2.5, 70.0, 3000.0])
@pytest.mark.parametrize("tasks", [1, 2, 7])
def test_a_rate_holds_over_all_tasks_together(stage, rate, tasks):
    stage.order(rate=rate)
    stage.start(*range(tasks))
    sent = stage.run(20)
    assert sent == pytest.approx(rate * 20, rel=0.05, abs=1)
    if rate >= 70:
        shares = sorted(stage.offsets.values())
        assert shares[0] > 0.5 * shares[-1], "every task gets its part"


def test_a_rate_that_is_changed_holds_at_once(stage):
    stage.order(rate=1000.0)
    stage.start(0, 1)
    assert stage.run(10) == pytest.approx(10_000, rel=0.05)
    stage.order(rate=50.0)
    assert stage.run(10) <= 500 * 1.05
    stage.order(rate=2000.0)
    assert stage.run(10) == pytest.approx(20_000, rel=0.05)


def test_what_was_given_out_at_a_higher_rate_is_taken_back(stage):
    stage.order(rate=10_000.0)
    stage.start(0, 1)
    stage.run(2, send=lambda _number, _room: 0)
    stage.order(rate=10.0)
    assert stage.run(10) <= 110


def test_tasks_that_stood_still_catch_up_a_second_at_most(stage):
    stage.order(rate=100.0)
    stage.start(0, 1)
    stage.run(30, send=lambda _number, _room: 0)
    assert stage.run(0.1) <= 110
    assert stage.run(10) == pytest.approx(1000, rel=0.05)


def test_a_pause_lets_nothing_out_and_saves_nothing_up(stage):
    stage.order(rate=100.0)
    stage.start(0, 1)
    stage.run(3)
    stage.order(Order.PAUSE, rate=100.0)
    assert stage.run(60) == 0
    assert stage.room(0) is None
    stage.order(rate=100.0)
    assert stage.run(1) <= 100
    assert stage.run(10) == pytest.approx(1000, rel=0.05)


def test_without_a_limit_nothing_is_counted_and_a_limit_that_is_new_holds_before_the_next_tick(stage):
    stage.order()
    stage.start(0)
    assert stage.room(0) == 1000
    assert read_pace(stage.folder, 1) == Pace(beat=1, go=True, until=None)
    stage.order(rate=10.0)
    assert stage.room(0) == 0
    assert stage.run(10) <= 101


@pytest.mark.parametrize("seed", range(5))
def test_a_canary_publishes_exactly_so_many_whatever_its_tasks_do(stage, seed):
    dice = random.Random(seed)
    stage.order(canary=777)
    stage.start(0, 1, 2)

    def send(_number, room):
        return dice.randint(0, room)

    stage.run(30, send=send)
    assert sum(stage.offsets.values()) == 777
    assert stage.folder.read_pause(1) is not None
    assert stage.room(0) is None


def test_a_canary_counts_what_is_published_not_what_failed_and_tasks_may_come_and_go(stage):
    stage.order(canary=100)
    stage.start(0, 1, rows=60)
    stage.run(0.1, send=lambda number, _room: 10 if number == 0 else 0)
    stage.confirm(0, 2, failed=2)
    stage.folder.leave_slice(1, 1)
    del stage.offsets[1]
    stage.run(1)
    # The other one is not working: what it may send goes to nobody.
    assert stage.offsets == {0: 60}
    stage.folder.leave_slice(0, 1)
    stage.enter(1)
    stage.run(5)
    assert sum(c.published for c in stage.checkpoints.read_all()) == 100
    assert stage.folder.read_pause(1) is not None


def test_a_canary_of_all_that_there_is_does_not_pause(stage):
    stage.order(canary=40)
    stage.start(0, 1, rows=20)
    stage.run(5)
    assert stage.offsets == {0: 20, 1: 20}
    assert stage.folder.read_pause(1) is None


def test_the_slower_of_limit_and_throttle_holds_and_a_throttle_stops(stage):
    stage.order(rate=100.0)
    stage.start(0, 1)
    stage.throttle.allowed = 20.0
    assert stage.run(10) == pytest.approx(200, rel=0.05)
    stage.throttle.allowed = 0.0
    stage.run(0.1)
    assert stage.run(10) == 0
    stage.throttle.allowed = None
    assert stage.run(10) == pytest.approx(1000, rel=0.05)


def test_more_failures_than_allowed_halt_the_attempt(stage):
    stage.order()
    stage.start(0, 1)
    stage.folder.dead_letters.make()
    stage.folder.dead_letters.write("000000.1.ndjson", b"{}\n")
    stage.confirm(0, 5, failed=2)
    stage.run(1, send=lambda _number, _room: 0)
    assert not stage.pacer.is_halted
    stage.confirm(1, 5, failed=1)
    stage.run(1, send=lambda _number, _room: 0)
    assert stage.pacer.is_halted
    assert (stage.room(0), stage.room(1)) == (None, None)


def test_what_a_task_found_out_halts_the_others(stage):
    stage.order()
    stage.start(0, 1)
    stage.folder.write_fault(1, "topic_not_found", "There is no topic.")
    stage.run(0.1)
    assert stage.pacer.is_halted
    assert stage.room(1) is None


@pytest.mark.parametrize("control", [Control(1, Order.STOP), Control(1, Order.PAUSE), Control(2, Order.RUN)])
def test_a_task_ends_when_its_attempt_is_not_to_publish(stage, control):
    stage.order()
    stage.start(0)
    assert stage.room(0) == 1000
    stage.folder.write_control(control)
    assert stage.room(0) is None


@pytest.mark.parametrize("until", [None, {0: 50}])
def test_a_task_whose_driver_is_silent_sends_what_it_was_given_and_ends(stage, until):
    stage.order(rate=None if until is None else 10.0)
    write_pace(stage.folder, 1, Pace(7, go=True, until=until))
    turn = Turn(stage.folder, 1, 0, clock=stage.clock)
    assert turn.room(40) == (1000 if until is None else 10)
    stage.clock.now += SILENT_SECONDS
    assert turn.room(50) == (1000 if until is None else 0)
    stage.clock.now += 0.1
    assert turn.room(50) is None
    write_pace(stage.folder, 1, Pace(8, go=True, until=until))
    assert turn.room(40) == (1000 if until is None else 10)


def test_a_task_waits_for_a_driver_that_has_said_nothing_yet_but_not_for_ever(stage):
    stage.order()
    turn = Turn(stage.folder, 1, 0, clock=stage.clock)
    assert turn.room(0) == 0
    stage.clock.now += SILENT_SECONDS + 1
    assert turn.room(0) is None


def test_a_task_that_can_not_see_its_orders_sends_nothing_and_does_not_wait_for_ever(stage):
    stage.order()
    stage.start(0)
    turn = Turn(stage.folder, 1, 0, clock=stage.clock)
    control = stage.folder.path / "control.json"
    hidden = control.rename(control.with_suffix(".hidden"))
    assert turn.room(0) == 0
    hidden.rename(control)
    assert turn.room(0) == 1000
    control.unlink()
    stage.clock.now += SILENT_SECONDS + 1
    with pytest.raises(CheckpointCorruptError):
        turn.room(0)


def test_a_task_that_has_waited_long_lets_others_have_its_place(stage):
    stage.order(rate=1.0)
    turn = Turn(stage.folder, 1, 0, clock=stage.clock)
    for beat in range(30):
        write_pace(stage.folder, 1, Pace(beat, go=True, until={0: 10}))
        stage.clock.now += 1
        assert turn.room(5) == 5
    assert turn.room(10) is None


def test_a_folder_that_fails_once_does_not_end_the_pace(stage):
    stage.order()
    with stage.pacer:
        wait_until(lambda: read_pace(stage.folder, 1) is not None, "it says the pace")
        control = stage.folder.path / "control.json"
        control.write_text("damaged")
        wait_until(lambda: stage.pacer._is_failing, "it sees the damage")
        control.unlink()
        stage.order(rate=5.0)

        def is_limited():
            pace = read_pace(stage.folder, 1)
            return pace is not None and pace.until is not None

        wait_until(is_limited, "it goes on")


def test_no_share_is_larger_than_its_room_and_none_is_lost():
    dice = random.Random(3)
    for _ in range(300):
        pieces = range(dice.randint(1, 9))
        held = {n: dice.randint(0, 50) for n in pieces}
        room = {n: dice.randint(0, 50) for n in pieces}
        tokens = dice.randint(0, 400)
        given = deal(tokens, held, room)
        assert all(0 < count <= room[n] for n, count in given.items())
        assert sum(given.values()) == min(tokens, sum(room.values()))
