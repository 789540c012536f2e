import pytest

from app.closing import Closers, ClosingStep


def test_the_order_is_that_of_the_steps_and_not_that_of_opening() -> None:
    closed: list[ClosingStep] = []
    closers = Closers()
    for step in reversed(ClosingStep):
        closers.add(step, lambda step=step: closed.append(step))
    closers.close()
    assert closed == list(ClosingStep)


def test_within_a_step_the_first_one_added_is_closed_first() -> None:
    closed: list[int] = []
    closers = Closers()
    for number in range(3):
        closers.add(ClosingStep.LAUNCHES, lambda number=number: closed.append(number))
    closers.close()
    assert closed == [0, 1, 2]


def test_each_is_closed_once() -> None:
    closed: list[int] = []
    closers = Closers()
    closers.add(ClosingStep.STORE, lambda: closed.append(1))
    closers.close()
    closers.add(ClosingStep.STORE, lambda: closed.append(2))
    closers.close()
    assert closed == [1, 2]


@pytest.mark.parametrize("failing", ClosingStep)
def test_an_error_of_one_keeps_no_other_from_being_closed_and_is_raised(failing: ClosingStep) -> None:
    closed: list[ClosingStep] = []

    def close(step: ClosingStep) -> None:
        closed.append(step)
        if step is failing:
            raise OSError(step.name)

    closers = Closers()
    for step in ClosingStep:
        closers.add(step, lambda step=step: close(step))
    with pytest.raises(OSError, match=failing.name):
        closers.close()
    assert closed == list(ClosingStep)
