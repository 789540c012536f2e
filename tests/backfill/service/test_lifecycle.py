"""The service starts, ends, and is found again."""

from collections.abc import Callable
from typing import Any

import pytest

from backfill.request import BackfillRequest
from backfill.service import BackfillService
from model.errors import JobNotFoundError, StoreUnavailableError
from model.job import JobState
from model.principal import LOCAL

Wait = Callable[..., None]
RequestOf = Callable[..., BackfillRequest]


def test_running_backfills_go_on_when_the_service_ends_and_spark_stays_for_them(
    open_service: Callable[..., BackfillService], launcher: Any, wait_for: Wait, request_of: RequestOf
) -> None:
    service = open_service()
    made = service.create(request_of(), principal=LOCAL)
    service.start()
    wait_for(lambda: service.get(made.id, principal=LOCAL).state is JobState.RUNNING, "it runs")
    service.close()

    again = open_service()
    again.start()
    try:
        assert again.get(made.id, principal=LOCAL).state is JobState.RUNNING
        assert launcher.drivers[0].is_alive
        assert launcher.closed == 0
        wait_for(lambda: again._store.get(made.id).lease_owner is not None, "it is looked after again")
    finally:
        again.close(interrupt=True)
    assert not launcher.drivers[0].is_alive
    assert launcher.closed == 1


def test_a_service_ends_also_when_its_store_does_not_answer(
    open_service: Callable[..., BackfillService], launcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = open_service()
    service.start()

    def fail(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("not now")

    monkeypatch.setattr(service._store, "held", fail)
    with pytest.raises(StoreUnavailableError):
        service.close(interrupt=True)

    # Nothing looks at jobs any more, and nothing of it keeps the process.
    supervisor = service._supervisor
    assert not supervisor._thread.is_alive()
    assert not supervisor._renewal._thread.is_alive()
    assert launcher.closed == 1
    monkeypatch.undo()


def test_a_backfill_that_waits_without_a_driver_keeps_no_spark(
    open_service: Callable[..., BackfillService], launcher: Any, request_of: RequestOf
) -> None:
    service = open_service()
    service.start()
    service.create(request_of(start_paused=True), principal=LOCAL)

    service.close()

    assert launcher.closed == 1


def test_a_backfill_that_is_not_there_is_an_error(service: BackfillService) -> None:
    calls: list[Callable[..., object]] = [
        service.get,
        service.pause,
        service.resume,
        service.cancel,
        service.retry,
        service.approve,
        service.revert,
        service.watch,
        service.list_events,
        service.list_slices,
        service.list_missing,
        service.read_log,
    ]
    for call in calls:
        with pytest.raises(JobNotFoundError):
            call("bf_00000000000000000000000000", principal=LOCAL)


def test_readiness_names_what_does_not_answer(service: BackfillService) -> None:
    assert service.check_readiness() == {}
