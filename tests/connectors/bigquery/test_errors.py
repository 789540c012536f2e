"""What Google's clients raise, as ours: what passes, what needs a role, a login or a table."""

import google.auth.exceptions
import pytest
import requests.exceptions
from google.api_core import exceptions as api

from connectors.bigquery.errors import JOB_ROLE, error_from, our_errors
from connectors.patience import Patience, retry_passing
from model.errors import (
    QuotaExceededError,
    TableNotFoundError,
    WarehouseCredentialsError,
    WarehouseError,
    WarehousePermissionError,
    WarehouseUnavailableError,
)


def forbidden(reason: str) -> api.Forbidden:
    return api.Forbidden("no", errors=[{"reason": reason, "message": "no"}])


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        # "BigQuery error messages" (Google): a 403 is a quota or a missing permission, its reason says which.
        (forbidden("quotaExceeded"), QuotaExceededError),
        (forbidden("rateLimitExceeded"), QuotaExceededError),
        (forbidden("accessDenied"), WarehousePermissionError),
        (api.BadRequest("x", errors=[{"reason": "jobRateLimitExceeded"}]), QuotaExceededError),
        (api.BadRequest("x", errors=[{"reason": "jobBackendError"}]), WarehouseUnavailableError),
        (api.BadRequest("x", errors=[{"reason": "invalid"}]), WarehouseError),
        (api.TooManyRequests("x"), QuotaExceededError),
        (api.ResourceExhausted("x"), QuotaExceededError),
        (api.ServiceUnavailable("x"), WarehouseUnavailableError),
        (api.InternalServerError("x"), WarehouseUnavailableError),
        (api.RetryError("x", cause=None), WarehouseUnavailableError),
        (requests.exceptions.ConnectionError("x"), WarehouseUnavailableError),
        (requests.exceptions.ChunkedEncodingError("x"), WarehouseUnavailableError),
        (api.NotFound("x"), TableNotFoundError),
        (api.InvalidArgument("x"), WarehouseError),
        (google.auth.exceptions.DefaultCredentialsError("x"), WarehouseCredentialsError),
        (google.auth.exceptions.RefreshError("x"), WarehouseCredentialsError),
        (google.auth.exceptions.TransportError("x"), WarehouseUnavailableError),
        (TimeoutError(), WarehouseUnavailableError),
    ],
)
def test_each_failure_has_the_class_that_says_what_to_do(exc, expected):
    error = error_from(exc, "asking")
    assert type(error) is expected
    assert error.message.startswith("asking") or "gcloud auth application-default login" in error.message


def test_a_refusal_names_the_role_and_keeps_the_cause():
    with (
        pytest.raises(WarehousePermissionError, match=r"needs roles/bigquery\.jobUser") as raised,
        our_errors("running a job", JOB_ROLE),
    ):
        raise forbidden("accessDenied")
    assert isinstance(raised.value.__cause__, api.Forbidden)


class Calls:
    """A call that fails with each of ``errors`` before it answers."""

    def __init__(self, *errors: Exception) -> None:
        self.left = list(errors)
        self.waits: list[float] = []

    def __call__(self) -> str:
        if self.left:
            raise self.left.pop(0)
        return "done"


def test_what_passes_is_tried_again_with_growing_pauses_a_quota_with_longer_ones():
    calls = Calls(*[WarehouseUnavailableError()] * 3, QuotaExceededError())
    assert retry_passing(calls, seconds=60, wait=calls.waits.append) == "done"
    first, second, third, quota = calls.waits
    assert 0.05 <= first <= 0.1
    assert 0.1 <= second <= 0.2
    assert 0.2 <= third <= 0.4
    assert 0.5 <= quota <= 1.0


def test_progress_gives_the_whole_time_anew_and_begins_with_short_pauses_again():
    waits: list[float] = []
    patience = Patience(0.3, waits.append)
    for _ in range(2):
        patience.wait_after(WarehouseUnavailableError())
    with pytest.raises(WarehouseUnavailableError):
        patience.wait_after(WarehouseUnavailableError())
    patience.renew()
    patience.wait_after(WarehouseUnavailableError())
    assert waits[-1] <= 0.1


def test_what_does_not_pass_is_raised_at_once_and_time_is_kept():
    calls = Calls(WarehousePermissionError())
    with pytest.raises(WarehousePermissionError):
        retry_passing(calls, seconds=60, wait=calls.waits.append)
    assert calls.waits == []
    with pytest.raises(WarehouseUnavailableError):
        retry_passing(Calls(WarehouseUnavailableError()), seconds=0.01)
