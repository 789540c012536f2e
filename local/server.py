"""The embedded Pub/Sub server: google.pubsub.v1 over gRPC on a data folder."""

import argparse
import contextlib
import ctypes
import errno
import fcntl
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Final, Self

import grpc
import structlog

from local.answers import answer_bytes
from local.health import HealthServer
from local.publisher import PublisherService
from local.resources import Resources
from local.streaming import StreamSlots
from local.subscriber import SubscriberService
from model.errors import CheckpointCorruptError, LeaseHeldError, PortTakenError, StorageFullError
from model.process import raise_file_limit
from model.variables import is_loopback_name

DEFAULT_PORT: Final = 8085
STATS_METHOD: Final = "/refeed.local.Stats/Get"
CLEAN_UP_SECONDS: Final = 5.0
# How late a message may come back after its deadline.
TICK_SECONDS: Final = 0.1
# A waiting Pull or a stream keeps a thread (some 100 KB); the rest of the pool is for calls that don't wait.
_THREADS: Final = 544
_WAITING_THREADS: Final = 512
# malloc.h: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD (32 MB is the most it takes), M_ARENA_MAX.
_MALLOC_OPTIONS: Final = ((-1, 128 * 1024 * 1024), (-3, 32 * 1024 * 1024), (-8, 1))
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # As many calls at a time on one connection as Google's front end takes: others wait.
    ("grpc.max_concurrent_streams", 100),
    # Else a second server on the port would silently take half of the calls.
    ("grpc.so_reuseport", 0),
    # Google's clients ping busy and idle streams.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
    ("grpc.http2.max_ping_strikes", 0),
)


class PubSubServer:
    """A Pub/Sub server for one data folder; port 0 takes a free one.

    What it has answered survives ``kill -9`` of its process; with ``fsync`` also a power cut. With a
    ``health_port`` it answers ``GET /`` there while it serves. ``partial_pulls`` is for tests: a Pull brings fewer
    messages than wait, or none, at random. So is ``seek_seconds``: a seek takes effect that long after its answer,
    as Google's may within a minute, and what it holds for done may come meanwhile.

    Raises:
        LeaseHeldError: on ``start``, another server uses the data folder.
        PortTakenError: on ``start``, a port is taken.
        StorageFullError: on ``start``, there is no space for its files, or to repair damaged ones.
    """

    def __init__(
        self,
        data_dir: Path,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        fsync: bool = False,
        health_port: int | None = None,
        partial_pulls: bool = False,
        seek_seconds: float = 0.0,
        segment_bytes: int | None = None,
    ) -> None:
        self.data_dir = Path(data_dir)
        self.host = host
        self.port = port
        self.health_port = health_port
        self._health: HealthServer | None = None
        self._fsync = fsync
        self._partial_pulls = partial_pulls
        self._seek_seconds = seek_seconds
        self._segment_bytes = segment_bytes
        self._lock_fd = -1
        self._resources: Resources | None = None
        self._slots = StreamSlots(_WAITING_THREADS)
        self._server: grpc.Server | None = None
        self._stopping = threading.Event()
        self._upkeep: threading.Thread | None = None

    @property
    def emulator_host(self) -> str:
        """What PUBSUB_EMULATOR_HOST has to be for a client of this server."""
        return _render_address(self.host, self.port)

    def start(self) -> int:
        """Start to serve and return the port."""
        self._lock_fd = _lock_folder(self.data_dir)
        try:
            with _told_when_full(self.data_dir):
                self._resources = Resources(self.data_dir, fsync=self._fsync, segment_bytes=self._segment_bytes)
            self._server = self._build_server(self._resources)
            bound = _bind(self._server, self.host, self.port)
            if self.health_port is not None:
                self._health = HealthServer(self.host, self.health_port)
                self.health_port = self._health.port
        except BaseException:
            self._release()
            raise
        self.port = bound
        self._server.start()
        if self._health is not None:
            self._health.start()
        self._stopping.clear()
        self._upkeep = threading.Thread(target=self._keep_up, name="pubsub-upkeep", daemon=True)
        self._upkeep.start()
        return self.port

    def _build_server(self, resources: Resources) -> grpc.Server:
        server = grpc.server(futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="pubsub"), options=_OPTIONS)
        self._slots = StreamSlots(_WAITING_THREADS)
        stats = {"Get": answer_bytes(lambda _raw, _context: json.dumps(resources.read_stats()).encode())}
        server.add_generic_rpc_handlers(
            (
                PublisherService(resources).handler(),
                SubscriberService(
                    resources,
                    self._slots,
                    partial_pulls=self._partial_pulls,
                    seek_seconds=self._seek_seconds,
                ).handler(),
                grpc.method_handlers_generic_handler(STATS_METHOD.split("/")[1], stats),
            )
        )
        return server

    def _keep_up(self) -> None:
        resources = self._resources
        assert resources is not None
        cleaned_at = time.monotonic()
        while not self._stopping.wait(TICK_SECONDS):
            # A full disk only postpones it; the calls that need the space fail.
            with contextlib.suppress(Exception):
                resources.tick()
            if time.monotonic() - cleaned_at >= CLEAN_UP_SECONDS:
                cleaned_at = time.monotonic()
                with contextlib.suppress(Exception):
                    resources.clean_up()

    def stop(self, grace: float | None = 1.0) -> None:
        """Stop: waiting calls end at once, others have ``grace`` seconds. Calling it twice does nothing."""
        self._stopping.set()
        self._slots.closed = True
        if self._resources is not None:
            self._resources.wake()
        if self._server is not None:
            self._server.stop(grace).wait()
            self._server = None
        if self._upkeep is not None:
            self._upkeep.join()
            self._upkeep = None
        self._release()

    def _release(self) -> None:
        if self._health is not None:
            self._health.close()
            self._health = None
        if self._resources is not None:
            self._resources.close()
            self._resources = None
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def read_stats(self) -> dict[str, dict[str, float | str]]:
        """Return per subscription: topic, undelivered_messages, leased_messages, oldest_unacked_seconds.

        Other processes get the same as JSON from the gRPC method ``/refeed.local.Stats/Get`` (empty request).
        """
        assert self._resources is not None, "the server is not running"
        return self._resources.read_stats()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _lock_folder(folder: Path) -> int:
    with _told_when_full(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        os.close(descriptor)
        raise LeaseHeldError(f"Another Pub/Sub server uses {folder}.", path=str(folder)) from exc
    return descriptor


@contextlib.contextmanager
def _told_when_full(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        if exc.errno == errno.ENOSPC:
            raise StorageFullError(f"The disk has no space for the Pub/Sub server's data in {folder}.") from exc
        raise


def _bind(server: grpc.Server, host: str, port: int) -> int:
    if port:
        # gRPC's own answer to a taken port names no reason.
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as exc:
                if exc.errno != errno.EADDRINUSE:
                    raise
                raise _port_taken(host, port) from exc
    try:
        return server.add_insecure_port(_render_address(host, port))
    except RuntimeError as exc:
        raise _port_taken(host, port) from exc


def _render_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _port_taken(host: str, port: int) -> PortTakenError:
    return PortTakenError(f"Port {port} on {host} is in use. Choose another port with --port.", port=port)


def _keep_freed_memory() -> None:
    """Let glibc keep the buffers of requests instead of giving each back to the kernel and faulting it in again.

    Requests and responses of a megabyte come and go a hundred times a second: this takes 2 of 5 us off a message
    pulled. Other C libraries have no ``mallopt``, or ignore it.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in _MALLOC_OPTIONS:
            mallopt(option, value)


def serve(server: PubSubServer) -> None:
    """Serve until SIGTERM or SIGINT, then stop cleanly; one line on standard output says when it is ready.

    Must run on the main thread, since it takes the signals.

    Raises:
        LeaseHeldError: another server uses the data folder.
        PortTakenError: a port is taken.
    """
    raise_file_limit()
    _keep_freed_memory()
    if not is_loopback_name(server.host):
        logging.getLogger(__name__).warning(
            "The Pub/Sub server has no authentication: everyone who reaches %s can read, publish and delete.",
            server.host,
        )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with server:
        sys.stdout.write(f"Pub/Sub server on {server.emulator_host}\n")
        if server.health_port is not None:
            sys.stdout.write(f"Health checks on http://{_render_address(server.host, server.health_port)}/\n")
        sys.stdout.flush()
        stop.wait()


def main() -> None:
    """Run ``serve`` from the command line."""
    parser = argparse.ArgumentParser(prog="python -m local.server", description=serve.__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    parser.add_argument("--health-port", type=int, help="answer GET / here")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--fsync", action="store_true", help="survive a power cut as well; slower")
    parser.add_argument(
        "--partial-pulls", action="store_true", help="for tests: answer a Pull with fewer, or none"
    )
    parser.add_argument(
        "--seek-seconds",
        type=float,
        default=0.0,
        help="for tests: let a seek take effect this long after its answer",
    )
    arguments = parser.parse_args()
    # Standard output has only the line with the address of the server.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    server = PubSubServer(
        arguments.data_dir,
        arguments.host,
        arguments.port,
        fsync=arguments.fsync,
        health_port=arguments.health_port,
        partial_pulls=arguments.partial_pulls,
        seek_seconds=arguments.seek_seconds,
    )
    try:
        serve(server)
    except (CheckpointCorruptError, LeaseHeldError, PortTakenError, StorageFullError) as exc:
        sys.exit(exc.message)


if __name__ == "__main__":
    main()
