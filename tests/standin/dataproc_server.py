"""A test double of google.cloud.dataproc.v1.BatchController: a batch is a process on this machine.

It knows what the launcher relies on: ids that are taken once, request ids that make a create idempotent, states in
their order, CancelOperation, and refusals on demand. Main files are read from the double of Cloud Storage.
"""

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.cloud.dataproc_v1.types import Batch, BatchOperationMetadata, CreateBatchRequest, GetBatchRequest
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2
from google.protobuf.any_pb2 import Any as AnyMessage

from tests.standin.gcs_server import GcsServer
from tests.worlds.grpc import answering

_SERVICE = "google.cloud.dataproc.v1.BatchController"
_OPERATIONS = "google.longrunning.Operations"


@dataclass
class DataprocServer:
    folder: Path
    gcs: GcsServer
    host: str = ""
    creates: list[Any] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    # Refusals by method, first come first served; with the last field the call is made and its answer lost.
    refusals: list[tuple[str, grpc.StatusCode, str, bool]] = field(default_factory=list)
    # A batch of this machine waits for nothing; a test may hold one back as Google's queue does.
    is_held: threading.Event = field(default_factory=threading.Event)
    # The Python of the batches' image, with what comes before it, and its environment: this process's own.
    python: list[str] = field(default_factory=lambda: [sys.executable])
    environment: dict[str, str] | None = None
    _batches: dict[str, Batch] = field(default_factory=dict)
    _request_ids: dict[str, str] = field(default_factory=dict)
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def log_of(self, name: str) -> str:
        return (self.folder / f"{name.rpartition('/')[2]}.log").read_text()

    def create(self, request: Any, context: grpc.ServicerContext) -> Any:
        name = f"{request.parent}/batches/{request.batch_id}"
        with self._lock:
            self.creates.append(request)
            if self._request_ids.get(request.request_id) != name:
                if name in self._batches:
                    context.abort(
                        grpc.StatusCode.ALREADY_EXISTS, f"Already exists: Failed to create batch: {name}"
                    )
                self._request_ids[request.request_id] = name
                batch = Batch(request.batch)
                batch.name, batch.state = name, Batch.State.PENDING
                batch.operation = f"{request.parent.replace('locations', 'regions')}/operations/{request.batch_id}"
                self._batches[name] = batch
                if not self.is_held.is_set():
                    self.run(name)
        metadata = AnyMessage()
        metadata.Pack(BatchOperationMetadata.pb(BatchOperationMetadata(batch=name)))
        return operations_pb2.Operation(name=self._batches[name].operation, metadata=metadata)

    def run(self, name: str) -> None:
        """Start the driver of a batch that is PENDING."""
        batch = self._batches[name]
        bucket, _, path = batch.pyspark_batch.main_python_file_uri.removeprefix("gs://").partition("/")
        main = self.folder / f"{name.rpartition('/')[2]}.py"
        main.write_bytes(self.gcs.buckets[bucket][path].content)
        prefix = "spark.dataproc.driverEnv."
        properties = dict(batch.runtime_config.properties)
        environment = {k.removeprefix(prefix): v for k, v in properties.items() if k.startswith(prefix)}
        conf = [f"--conf {shlex.quote(f'{k}={v}')}" for k, v in properties.items() if not k.startswith(prefix)]
        environment["PYSPARK_SUBMIT_ARGS"] = " ".join(["--master local[2]", *conf, "pyspark-shell"])
        with (self.folder / f"{name.rpartition('/')[2]}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [*self.python, str(main), *batch.pyspark_batch.args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**(os.environ if self.environment is None else self.environment), **environment},
                start_new_session=True,
            )
        batch.state = Batch.State.RUNNING
        batch.runtime_info.output_uri = f"gs://staging/{name.rpartition('/')[2]}/driveroutput"

    def get(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._lock:
            batch = self._batches.get(request.name)
            if batch is None:
                context.abort(grpc.StatusCode.NOT_FOUND, f"Not found: Batch {request.name}")
            process = self._processes.get(request.name)
            code = None if process is None else process.poll()
            if code is not None and batch.state == Batch.State.RUNNING:
                batch.state = Batch.State.FAILED if code else Batch.State.SUCCEEDED
                batch.state_message = f"Job failed with exit code {code}" if code else ""
            elif batch.state == Batch.State.CANCELLING and (process is None or code is not None):
                batch.state = Batch.State.CANCELLED
            return Batch.pb(batch)

    def cancel(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._lock:
            name = next((n for n, batch in self._batches.items() if batch.operation == request.name), None)
            if name is None:
                context.abort(grpc.StatusCode.NOT_FOUND, f"Not found: {request.name}")
            if self._batches[name].state not in {Batch.State.PENDING, Batch.State.RUNNING}:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the operation is done")
            self._batches[name].state = Batch.State.CANCELLING
            self._end(name)
        return empty_pb2.Empty()

    def end(self, name: str, state: Any, message: str) -> None:
        """End a batch that has no process."""
        with self._lock:
            self._batches[name].state, self._batches[name].state_message = state, message

    def forget(self, name: str) -> None:
        """Delete a batch, as somebody does by hand."""
        with self._lock:
            self._end(name)
            del self._batches[name]

    def end_all(self) -> None:
        for name in list(self._processes):
            self._end(name)

    def _end(self, name: str) -> None:
        process = self._processes.get(name)
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def answer(self, method: str, do: Callable[..., Any], parse: Callable[[bytes], Any]) -> Callable[..., bytes]:
        def handle(request: bytes, context: grpc.ServicerContext) -> bytes:
            with self._lock:
                self.calls.append(method)
                found = next((r for r in self.refusals if r[0] == method), None)
                if found is not None:
                    self.refusals.remove(found)
            if found is not None and not found[3]:
                context.abort(found[1], found[2])
            answer: bytes = do(parse(request), context).SerializeToString()
            if found is not None:
                context.abort(found[1], found[2])
            return answer

        return handle


@contextmanager
def running_dataproc(folder: Path, gcs: GcsServer) -> Iterator[DataprocServer]:
    """Give a server on loopback; batches that still run when it ends are killed."""
    dataproc = DataprocServer(folder, gcs)

    answer, cancel = dataproc.answer, operations_pb2.CancelOperationRequest.FromString
    batches = {
        "CreateBatch": answer("CreateBatch", dataproc.create, CreateBatchRequest.deserialize),
        "GetBatch": answer("GetBatch", dataproc.get, GetBatchRequest.deserialize),
    }
    operations = {"CancelOperation": answer("CancelOperation", dataproc.cancel, cancel)}
    try:
        with answering({_SERVICE: batches, _OPERATIONS: operations}) as dataproc.host:
            yield dataproc
    finally:
        dataproc.end_all()
