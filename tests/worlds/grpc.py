"""A gRPC server on loopback whose answers a test gives."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc


@contextmanager
def answering(
    services: Mapping[str, Mapping[str, Callable[[bytes, grpc.ServicerContext], bytes]]],
) -> Iterator[str]:
    """Answer the unary calls of each service, by its methods' names, until the block ends; give the address."""
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", -1)])
    for service, methods in services.items():
        handlers: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(answer) for name, answer in methods.items()
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield address
    finally:
        server.stop(0).wait(10)
