"""What the service knows of nothing, and whether it is ready."""

from collections.abc import Callable

import pytest

from backfill.steer.service import BackfillService
from model.errors import JobNotFoundError
from model.principal import LOCAL


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
