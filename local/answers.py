"""How a gRPC method is put together: bytes or protobuf in and out, StatusError to status."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import grpc
from google.protobuf import json_format

from local.status import StatusError

# grpc's own type is generic in its type stubs only.
Handler = Any


def answer_bytes(call: Callable[[bytes, grpc.ServicerContext], bytes]) -> Handler:
    """Return a handler for ``call``, which takes and returns the messages' bytes as they are."""
    return grpc.unary_unary_rpc_method_handler(_with_status(call))


def answer(request_type: Any, call: Callable[[Any], Any]) -> Handler:
    """Return a handler for ``call``, which takes a protobuf message and returns one, or None for an empty one."""

    def run(request: Any, _context: grpc.ServicerContext) -> Any:
        _check_times(request)
        return call(request)

    return grpc.unary_unary_rpc_method_handler(
        _with_status(run),
        request_deserializer=request_type.FromString,
        response_serializer=lambda response: b"" if response is None else response.SerializeToString(),
    )


def _check_times(request: Any) -> None:
    """Raise INVALID_ARGUMENT for a time or a duration that protobuf carries and that can't be."""
    try:
        json_format.MessageToDict(request)
    except json_format.Error as exc:
        raise StatusError.invalid(str(exc)) from exc


def _with_status(call: Callable[[Any, grpc.ServicerContext], Any]) -> Callable[[Any, grpc.ServicerContext], Any]:
    @functools.wraps(call)
    def run(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return call(request, context)
        except StatusError as exc:
            abort(context, exc)

    return run


def abort(context: grpc.ServicerContext, error: StatusError) -> None:
    """End the call with the error's status."""
    if error.details is not None:
        context.set_trailing_metadata((("grpc-status-details-bin", error.details),))
    context.abort(error.code, error.text)


def render_page(
    request: Any, response_type: Any, field: str, configs: Iterable[Any], *, names: bool = False
) -> Any:
    """Return the page of name-sorted ``configs`` that a list's ``request`` asks for, or of their names.

    A page token is the last name of its page, so that it stays good when resources come and go.

    Raises:
        StatusError: INVALID_ARGUMENT, the size of a page is negative.
    """
    if request.page_size < 0:
        raise StatusError.invalid(f"The value for page_size must not be negative: {request.page_size}.")
    following = sorted(
        (each for each in configs if each.name > request.page_token), key=lambda each: str(each.name)
    )
    page = following[: request.page_size or None]
    shown = [each.name for each in page] if names else page
    token = page[-1].name if len(page) < len(following) else ""
    return response_type(**{field: shown}, next_page_token=token)
