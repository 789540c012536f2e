"""The BigQuery stand-in as a process, for any test: ``shared_standin``, or import ``standin`` into a conftest.

``BIGQUERY_EMULATOR_HOST`` is what google-cloud-bigquery itself honours for REST; for the Storage APIs Google has
no such variable, so ``REFEED_BIGQUERY_STORAGE_HOST`` names that half.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery
from google.cloud.bigquery_storage_v1 import BigQueryReadClient, BigQueryWriteClient
from google.cloud.bigquery_storage_v1.services.big_query_read.transports import BigQueryReadGrpcTransport
from google.cloud.bigquery_storage_v1.services.big_query_write.transports import BigQueryWriteGrpcTransport

PROJECT: Final = "shop"
_ROOT: Final = Path(__file__).parents[2]
_SERVER: Final = Path(__file__).with_name("bigquery_server.py")
# Imports of DuckDB, Arrow and gRPC on a busy machine.
_READY_SECONDS: Final = 90.0
# glibc keeps what each of a process's many threads has freed, which came to gigabytes: here it goes back.
_ALLOCATOR: Final = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": "1000000",
    "MALLOC_TRIM_THRESHOLD_": "1000000",
}
_CHANNEL: Final = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class StandIn:
    """One server process on a folder; over ``kill`` and ``start`` its folder and its ports stay the same."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.rest_port = 0
        self.grpc_port = 0
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None
        self._channels: list[grpc.Channel] = []
        self._clients: list[bigquery.Client] = []

    # The process

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "standin.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(_SERVER), "--data-dir", str(self.folder), "--rest-port", str(self.rest_port),
                 "--grpc-port", str(self.grpc_port), *self._arguments],
                stdout=subprocess.PIPE, stderr=log, text=True, cwd=_ROOT,
                env={**os.environ, **_ALLOCATOR, "PYTHONPATH": str(_ROOT)},
            )  # fmt: skip
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(_READY_SECONDS) else ""
        if not line:
            self.kill()
            raise AssertionError(
                f"the stand-in did not start: {(self.folder / 'standin.log').read_text()[-2000:]}"
            )
        ports = json.loads(line)
        self.rest_port, self.grpc_port = ports["rest"], ports["grpc"]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self) -> int:
        """End the process with SIGTERM and return its exit code."""
        self._close_clients()
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the process with SIGKILL; clients stay usable for when it is back."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(number)
        try:
            code = process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait(30)
        assert process.stdout is not None
        process.stdout.close()
        return code

    # How to reach it

    @property
    def rest_host(self) -> str:
        return f"http://127.0.0.1:{self.rest_port}"

    @property
    def storage_host(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables for a process that is to use the stand-in."""
        return {"BIGQUERY_EMULATOR_HOST": self.rest_host, "REFEED_BIGQUERY_STORAGE_HOST": self.storage_host}

    def lead_here(self, patch: pytest.MonkeyPatch, **variables: str) -> None:
        """Make it the warehouse of this process, with these variables."""
        for name, value in {**self.environment, "REFEED_WAREHOUSE": "bigquery", **variables}.items():
            patch.setenv(name, value)

    def client(self, project: str = PROJECT, location: str | None = None) -> bigquery.Client:
        client = bigquery.Client(
            project=project,
            credentials=AnonymousCredentials(),
            location=location,
            client_options=ClientOptions(api_endpoint=self.rest_host),
        )
        self._clients.append(client)
        return client

    def channel(self) -> grpc.Channel:
        """Return a channel to the Storage APIs, closed by ``stop``."""
        channel = grpc.insecure_channel(self.storage_host, options=_CHANNEL)
        self._channels.append(channel)
        return channel

    def write_client(self) -> BigQueryWriteClient:
        return BigQueryWriteClient(transport=BigQueryWriteGrpcTransport(channel=self.channel()))

    def read_client(self) -> BigQueryReadClient:
        return BigQueryReadClient(transport=BigQueryReadGrpcTransport(channel=self.channel()))

    # What a test orders

    def fault(self, method: str, kind: str = "error", **order: Any) -> None:
        """Order a fault; the members are those of ``faults.Fault``."""
        self._control("POST", "faults", {"method": method, "kind": kind, **order})

    def clear_faults(self) -> None:
        self._control("DELETE", "faults")

    def open_faults(self) -> list[dict[str, Any]]:
        return list(self._control("GET", "faults")["faults"])

    def calls(self, method: str | None = None) -> list[dict[str, Any]]:
        return [c for c in self._control("GET", "log")["calls"] if method is None or c["method"] == method]

    def counts(self) -> dict[str, int]:
        return dict(self._control("GET", "log")["counts"])

    def clear_log(self) -> None:
        self._control("DELETE", "log")

    def hold_write_buffer(self, table: str, *, everything: bool = False) -> None:
        """Let what streams bring to ``project.dataset.table`` from now on have a null _PARTITIONTIME.

        With ``everything`` also what they have brought before.
        """
        self._control("POST", "write_buffer", {"table": table, "held": True, "all": everything})

    def release_write_buffer(self, table: str) -> None:
        """Give the held rows the partition of their arrival."""
        self._control("POST", "write_buffer", {"table": table, "held": False})

    def delay_storage(self, *, tables: float = 0.0, columns: float = 0.0, only: str = "") -> None:
        """Let the Storage Write API know new tables, and new columns, these many seconds later than REST does.

        ``only`` limits it to tables whose full name holds the text.
        """
        self._control("POST", "storage_delay", {"tables": tables, "columns": columns, "only": only})

    def allow_streams(self, per_hour: int = 10_000) -> None:
        """Let this many write streams be created in an hour, from now on; the default is Google's quota."""
        self._control("POST", "quotas", {"streams_per_hour": per_hour})

    def _control(self, method: str, what: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.rest_host}/standin/{what}", data, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            raw = answer.read()
        return json.loads(raw) if raw else None

    def _close_clients(self) -> None:
        for channel in self._channels:
            channel.close()
        for client in self._clients:
            client.close()
        self._channels, self._clients = [], []


@contextlib.contextmanager
def run_standin(folder: Path, *arguments: str) -> Iterator[StandIn]:
    server = StandIn(folder, *arguments)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def standin(tmp_path: Path) -> Iterator[StandIn]:
    """A stand-in of this test's own, which it may kill."""
    with run_standin(tmp_path / "bigquery") as server:
        yield server
