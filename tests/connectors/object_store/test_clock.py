"""The clock of an object store, measured seldom."""

import time
from datetime import UTC, datetime

import pytest

from connectors.object_store import clock as clock_module
from connectors.object_store.clock import StoreClock

AT = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_store_s_clock_goes_on_by_itself_whatever_becomes_of_the_machine_s(monkeypatch):
    steady = 1000.0
    monkeypatch.setattr(clock_module, "_steady_seconds", lambda: steady)
    clock = StoreClock()
    assert clock.now(lambda: AT) == AT.timestamp()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    steady += 3000
    assert clock.now(pytest.fail) == AT.timestamp() + 3000
    steady += 3000
    later = datetime(2026, 1, 2, tzinfo=UTC)
    assert clock.now(lambda: later) == later.timestamp()
