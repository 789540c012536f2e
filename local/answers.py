"""How a gRPC method is put together: bytes or protobuf in and out, StatusError to status."""

import functools
from collections.abc import Callable
from typing import Any

import grpc

from local.status import StatusError

# grpc's own type is generic in its type stubs only.
Handler = Any


def answer_bytes(call: Callable[[bytes, grpc.ServicerContext], bytes]) -> Handler:
    """Return a handler for ``call``, which takes and gives the messages' bytes as they are."""
    return grpc.unary_unary_rpc_method_handler(_with_status(call))


def answer(request_type: Any, call: Callable[[Any], Any]) -> Handler:
    """Return a handler for ``call``, which takes a protobuf message and gives one."""

    def run(request: Any, _context: grpc.ServicerContext) -> Any:
        return call(request)

    return grpc.unary_unary_rpc_method_handler(
        _with_status(run),
        request_deserializer=request_type.FromString,
        response_serializer=lambda response: response.SerializeToString(),
    )


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


def cut_page(items: list[Any], page_size: int, page_token: str) -> tuple[list[Any], str]:
    """Return the page of name-sorted ``items`` behind ``page_token`` and the next page's token, empty at the end.

    A token is the last name of its page, so that it stays good when resources come and go.
    """
    behind = sorted((item for item in items if item.name > page_token), key=lambda item: str(item.name))
    page = behind[: page_size or None]
    return page, page[-1].name if len(page) < len(behind) else ""
