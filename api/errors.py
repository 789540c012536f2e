"""Every failure as RFC 9457 problem details; the one place that knows status codes."""

import json
import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from model import errors
from sql.validate import QueryRefusedError
from sql.worker import GateUnavailableError

_LOG: Final = structlog.get_logger()
PROBLEM_TYPE: Final = "application/problem+json"
# Clearer than the framework's own message; most often it is curl without the header.
_NO_OBJECT: Final = "The body must be a JSON object, sent with Content-Type: application/json."
# A dataclass is read from JSON like a model, and its faults get the same messages.
_DATACLASS_FAULTS: Final = {
    "dataclass_type": ("model_attributes_type", "Input should be a JSON object"),
    "unexpected_keyword_argument": ("extra_forbidden", "Extra inputs are not permitted"),
}

# The nearest class in an error's ancestry decides.
STATUSES: Final[Mapping[type[errors.RefeedError], HTTPStatus]] = {
    QueryRefusedError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.RequestInvalidError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.InvalidNameError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.TopicNotFoundError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.SubscriptionNotFoundError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.TargetSubscriptionError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.IdempotencyKeyReusedError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.QueryError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.IdempotencyInProgressError: HTTPStatus.CONFLICT,
    errors.StoreUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.JobNotFoundError: HTTPStatus.NOT_FOUND,
    errors.KeyNotFoundError: HTTPStatus.NOT_FOUND,
    errors.StreamNotFoundError: HTTPStatus.NOT_FOUND,
    errors.StreamSnapshotNotFoundError: HTTPStatus.NOT_FOUND,
    errors.UpdateNotFoundError: HTTPStatus.NOT_FOUND,
    errors.TopicUnknownError: HTTPStatus.NOT_FOUND,
    errors.TopicBackupChangedError: HTTPStatus.CONFLICT,
    errors.SubscriptionMismatchError: HTTPStatus.CONFLICT,
    errors.MessageNotFoundError: HTTPStatus.NOT_FOUND,
    errors.SourceNotFoundError: HTTPStatus.NOT_FOUND,
    errors.ReleaseNotFoundError: HTTPStatus.NOT_FOUND,
    errors.ReleaseExistsError: HTTPStatus.CONFLICT,
    errors.ReleaseInUseError: HTTPStatus.CONFLICT,
    errors.ReleaseInvalidError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.EnvironmentFailedError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.ManifestInvalidError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.ManifestNotFoundError: HTTPStatus.NOT_FOUND,
    errors.ManifestChangedError: HTTPStatus.PRECONDITION_FAILED,
    errors.ManifestOwnedError: HTTPStatus.CONFLICT,
    errors.RolloutRefusedError: HTTPStatus.CONFLICT,
    errors.JobStateError: HTTPStatus.CONFLICT,
    errors.JobUnreadableError: HTTPStatus.CONFLICT,
    errors.StreamExistsError: HTTPStatus.CONFLICT,
    errors.StreamStateError: HTTPStatus.CONFLICT,
    errors.UpdateInProgressError: HTTPStatus.CONFLICT,
    errors.StreamElsewhereError: HTTPStatus.CONFLICT,
    errors.PlanExpiredError: HTTPStatus.CONFLICT,
    errors.PlanMismatchError: HTTPStatus.CONFLICT,
    errors.BackfillOverlapsError: HTTPStatus.CONFLICT,
    errors.ReplayArchivedError: HTTPStatus.CONFLICT,
    errors.ApprovalRequiredError: HTTPStatus.CONFLICT,
    errors.StagingUnknownError: HTTPStatus.CONFLICT,
    errors.AlreadyMergedError: HTTPStatus.CONFLICT,
    errors.SnapshotRefusedError: HTTPStatus.CONFLICT,
    errors.SnapshotExpiredError: HTTPStatus.CONFLICT,
    errors.SnapshotCorruptError: HTTPStatus.CONFLICT,
    errors.SnapshotFormatError: HTTPStatus.CONFLICT,
    errors.JobChangedError: HTTPStatus.PRECONDITION_FAILED,
    errors.StreamChangedError: HTTPStatus.PRECONDITION_FAILED,
    errors.BodyTooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.RequestTimeoutError: HTTPStatus.REQUEST_TIMEOUT,
    errors.UnauthenticatedError: HTTPStatus.UNAUTHORIZED,
    errors.ForbiddenError: HTTPStatus.FORBIDDEN,
    errors.RateLimitedError: HTTPStatus.TOO_MANY_REQUESTS,
    errors.ServiceBusyError: HTTPStatus.TOO_MANY_REQUESTS,
    errors.AnswerTimeoutError: HTTPStatus.GATEWAY_TIMEOUT,
    errors.IdentityUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.CredentialsMissingError: HTTPStatus.BAD_GATEWAY,
    errors.PubSubUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.PubSubError: HTTPStatus.BAD_GATEWAY,
    errors.RegistryError: HTTPStatus.BAD_GATEWAY,
    errors.StorageFullError: HTTPStatus.INSUFFICIENT_STORAGE,
    errors.WarehouseUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.WarehouseError: HTTPStatus.BAD_GATEWAY,
    errors.FolderUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.LaunchError: HTTPStatus.SERVICE_UNAVAILABLE,
    GateUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.JavaNotFoundError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.RefeedError: HTTPStatus.INTERNAL_SERVER_ERROR,
}

_RETRY_AFTER_SECONDS: Final = 5
# A person mends the first ones first, and no other request is answered while thousands are written down.
_MOST_FAULTS: Final = 100
_HTTP_CODES: Final[Mapping[int, str]] = {404: "not_found", 405: "method_not_allowed"}


def install_problem_handlers(app: FastAPI) -> None:
    """Let every error of ``app`` be answered as a problem, the framework's own too."""
    app.add_exception_handler(errors.RefeedError, _answer_refeed_error)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(Exception, _answer_unknown_error)


def problem_response(  # noqa: PLR0917 - the fields of a problem, in its order
    request: Request,
    status: int,
    code: str,
    detail: str,
    faults: list[dict[str, Any]] | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Return a problem; ``code`` is stable and names the page that ``type`` points to."""
    # For the audit log, which sees only the status. The detail may quote the request, so that it is not for there.
    request.state.problem = code
    found = [{key: value for key, value in fault.items() if value is not None} for fault in faults or []]
    body = render_problem(status, code, detail, request.url.path, found)
    return _AsciiResponse(body, status, headers=headers, media_type=PROBLEM_TYPE)


def render_problem(
    status: int, code: str, detail: str, instance: str, faults: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the body of a problem."""
    return {
        "type": f"/problems/{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": instance,
        "code": code,
        "errors": faults,
    }


class _AsciiResponse(JSONResponse):
    """JSON in ASCII: a message may quote half of a surrogate pair, which UTF-8 can't hold."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":")).encode()


def status_of(error: errors.RefeedError) -> HTTPStatus:
    """Return the status that an error is answered with."""
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


async def _answer_refeed_error(request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, errors.RefeedError)
    return answer_error(request, exc)


def answer_error(request: Request, exc: errors.RefeedError) -> JSONResponse:
    """Return the problem that an error is answered with."""
    status = status_of(exc)
    if status is HTTPStatus.INTERNAL_SERVER_ERROR:
        return _internal_problem(request, exc)
    request.state.why = exc.details.get("why") or (exc.message if isinstance(exc, errors.ForbiddenError) else None)
    found = exc.details.get("errors") or exc.details.get("violations")
    return problem_response(request, status, exc.code, exc.message, found, _headers_of(exc, status))


def _headers_of(error: errors.RefeedError, status: HTTPStatus) -> dict[str, str]:
    """Return the headers of a problem: when to try again, how to authenticate."""
    match status:
        case HTTPStatus.SERVICE_UNAVAILABLE:
            return {"Retry-After": str(_RETRY_AFTER_SECONDS)}
        case HTTPStatus.TOO_MANY_REQUESTS:
            return {"Retry-After": str(math.ceil(error.details.get("retry_after_seconds", _RETRY_AFTER_SECONDS)))}
        case HTTPStatus.UNAUTHORIZED:
            # RFC 6750: the error is named only to those who sent something.
            named = ', error="invalid_token"' if error.details.get("was_given") else ""
            return {"WWW-Authenticate": f'Bearer realm="refeed"{named}'}
        case _:
            return {}


async def _answer_validation_error(request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, RequestValidationError)
    faults = [_describe_fault(error) for error in exc.errors()[:_MOST_FAULTS]]
    detail = "; ".join(f"{error['pointer']}: {error['message']}".removeprefix(": ") for error in faults)
    return problem_response(request, HTTPStatus.UNPROCESSABLE_ENTITY, "request_invalid", detail, faults)


def _describe_fault(error: Mapping[str, Any]) -> dict[str, str]:
    written = error["msg"].removeprefix("Value error, ")
    kind, message = _DATACLASS_FAULTS.get(error["type"], (error["type"], written))
    pointer = _pointer(error["loc"])
    return {
        "code": "json_invalid" if kind == "json_invalid" else f"field_{kind}",
        "message": _NO_OBJECT if not pointer and kind == "model_attributes_type" else message,
        "pointer": pointer,
    }


async def _answer_http_error(request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, HTTPException)
    if exc.status_code == HTTPStatus.BAD_REQUEST:
        # The framework's word for a body that it can't even parse, such as 5,000 brackets in each other.
        faults = [{"code": "json_invalid", "message": str(exc.detail), "pointer": ""}]
        status = HTTPStatus.UNPROCESSABLE_ENTITY
        return problem_response(request, status, "request_invalid", str(exc.detail), faults)
    code = _HTTP_CODES.get(exc.status_code, "http_error")
    return problem_response(request, exc.status_code, code, str(exc.detail), headers=exc.headers)


async def _answer_unknown_error(request: Request, exc: Exception) -> JSONResponse:
    return _internal_problem(request, exc)


def _internal_problem(request: Request, exc: Exception) -> JSONResponse:
    # What it was goes to the log alone: it may hold other people's SQL, paths or secrets.
    _LOG.error("unexpected error", path=request.url.path, method=request.method, exc_info=exc)
    detail = "An unexpected error occurred. The service's log has the details."
    return problem_response(request, HTTPStatus.INTERNAL_SERVER_ERROR, "internal", detail)


def _pointer(location: tuple[int | str, ...]) -> str:
    """Return pydantic's place as a JSON pointer into the body, or the parameter's name."""
    where, *rest = location
    parts = [str(part).replace("~", "~0").replace("/", "~1") for part in rest]
    if where == "body":
        return "".join(f"/{part}" for part in parts)
    return f"{where}:{'/'.join(parts)}"
