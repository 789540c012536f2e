"""Ports of this machine: one that is free, and whether somebody listens there."""

import socket

from model.errors import PortTakenError


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def check_port_free(port: int, option: str) -> None:
    """Raise unless 127.0.0.1:``port`` can be listened on; ``option`` is what to choose another one with.

    Raises:
        PortTakenError: somebody listens there.
    """
    with socket.socket() as listener:
        # As servers do: a port whose last connections are still fading is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as exc:
            raise PortTakenError(
                f"Port {port} of 127.0.0.1 can't be used ({exc.strerror}). Choose another port with {option}.",
                port=port,
            ) from exc


def is_listening(address: str, *, seconds: float = 1.0) -> bool:
    """Say whether somebody takes connections at ``address`` ("host:port") within ``seconds``."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=seconds):
            return True
    except (OSError, ValueError):
        return False
