"""A stand-in for BigQuery in tests: its REST API and its Storage APIs, as far as Refeed uses them, on one folder.

A test double: no product code imports it. Google's own clients talk to it over loopback; what it can't do it
refuses with an error, never with a made-up answer. Run ``python tests/standin/bigquery_server.py --data-dir DIR``:
one line of JSON on standard output names the ports when it is ready; SIGTERM ends it; ``kill -9`` loses nothing
that it has answered.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from concurrent import futures
from pathlib import Path
from typing import Final, Self

import grpc

from tests.standin.catalog import Catalog
from tests.standin.faults import CallLog, Fault, FaultBook
from tests.standin.job_routes import add_job_routes
from tests.standin.jobs import Jobs
from tests.standin.loads import Uploads
from tests.standin.queries import Queries
from tests.standin.resources import Resources
from tests.standin.rest import RestServer, Routes, add_control_routes, add_resource_routes
from tests.standin.rows import Rows
from tests.standin.storage_errors import Calls
from tests.standin.storage_read import StorageRead
from tests.standin.storage_write import StorageWrite

# A connection of AppendRows has a thread for as long as it lives.
_THREADS: Final = 512
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
    ("grpc.http2.max_ping_strikes", 0),
)


def act(fault: Fault) -> bool:
    """Do what a fault is, and return whether the call ends with it."""
    if fault.seconds:
        time.sleep(fault.seconds)
    return fault.kind in {"error", "drop"}


class BigQueryServer:
    """Both halves over one folder; port 0 takes a free one."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", rest_port: int = 0, grpc_port: int = 0) -> None:
        self.catalog = Catalog(folder)
        faults, log = FaultBook(), CallLog()
        resources = Resources(self.catalog)
        routes = Routes()
        calls = Calls(faults, log, act)
        writes = StorageWrite(self.catalog, calls)
        add_control_routes(routes, self.catalog, faults, log, writes.quota.set)
        add_resource_routes(routes, resources)
        jobs = Jobs(self.catalog, Queries(self.catalog), resources, faults, act)
        add_job_routes(routes, jobs, Rows(self.catalog, jobs), Uploads(folder))
        self.rest = RestServer((host, rest_port), routes, faults, log, act)
        self._grpc = grpc.server(
            futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="storage"), options=_OPTIONS
        )
        self._grpc.add_generic_rpc_handlers((writes.handler(), StorageRead(self.catalog, calls).handler()))
        self.grpc_port = self._grpc.add_insecure_port(f"{host}:{grpc_port}")
        self.host = host
        jobs.recover()

    def __enter__(self) -> Self:
        self._grpc.start()
        threading.Thread(target=self.rest.serve_forever, args=(0.05,), name="rest", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._grpc.stop(grace=0.2).wait()
        self.rest.shutdown()
        self.rest.server_close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--rest-port", type=int, default=0)
    parser.add_argument("--grpc-port", type=int, default=0)
    given = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with BigQueryServer(given.data_dir, given.host, given.rest_port, given.grpc_port) as server:
        ports = {"rest": server.rest.port, "grpc": server.grpc_port, "host": given.host, "pid": os.getpid()}
        sys.stdout.write(json.dumps(ports) + "\n")
        sys.stdout.flush()
        stop.wait()


if __name__ == "__main__":
    main()
