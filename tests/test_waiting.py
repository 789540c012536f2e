import time

import pytest

from tests.waiting import wait_until


def test_what_is_true_is_not_waited_for() -> None:
    began = time.monotonic()
    wait_until(lambda: True, "it is true", every_seconds=60)
    assert time.monotonic() - began < 30


def test_what_comes_late_is_waited_for() -> None:
    looks = iter([0, "", "there"])
    wait_until(lambda: next(looks), "it is there")
    assert next(looks, None) is None


def test_what_does_not_come_fails_with_the_reason_and_the_bound() -> None:
    with pytest.raises(AssertionError, match=r"^not within 0\.05 s: the moon is full$"):
        wait_until(lambda: False, "the moon is full", seconds=0.05)
