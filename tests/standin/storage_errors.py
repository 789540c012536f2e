"""How the Storage APIs refuse: a gRPC status that carries a StorageError."""

from typing import Any, Final, NoReturn

import grpc
from google.cloud.bigquery_storage_v1 import types
from google.protobuf import any_pb2
from google.rpc import status_pb2
from grpc_status import rpc_status

from tests.standin.faults import CallLog, Fault, FaultBook

_CODES: Final = {code.name: code.value[0] for code in grpc.StatusCode}


class StorageProblem(Exception):  # noqa: N818
    """A call is refused; ``code`` is gRPC's, ``storage_code`` that of the StorageError in its details."""

    def __init__(self, code: str, message: str, storage_code: str = "", entity: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.storage_code = storage_code
        self.entity = entity

    def status(self) -> status_pb2.Status:
        status = status_pb2.Status(code=_CODES[self.code], message=self.message)
        if self.storage_code:
            detail = any_pb2.Any()
            detail.Pack(types.StorageError.pb(self.storage_error()))
            status.details.append(detail)
        return status

    def storage_error(self) -> types.StorageError:
        """Return the StorageError on its own."""
        code = types.StorageError.StorageErrorCode[self.storage_code]
        return types.StorageError(code=code, entity=self.entity, error_message=self.message)

    def abort(self, context: grpc.ServicerContext) -> NoReturn:
        context.abort_with_status(rpc_status.to_status(self.status()))
        raise AssertionError("abort raises")


def fault_problem(fault: Fault) -> StorageProblem:
    """Return what an ordered fault answers; a lost connection is UNAVAILABLE to a client of gRPC."""
    if fault.kind == "drop":
        return StorageProblem("UNAVAILABLE", "Connection reset by peer")
    return StorageProblem(fault.status, fault.message)


class Calls:
    """Runs the unary calls: faults before and after, the record, errors as statuses."""

    def __init__(self, faults: FaultBook, log: CallLog, act: Any) -> None:
        self.faults = faults
        self.log = log
        self.act = act

    def meet(self, method: str, when: str, resource: str) -> None:
        """Let an ordered fault happen.

        Raises:
            StorageProblem: the fault answers so.
        """
        fault = self.faults.take(method, when, resource)
        if fault is not None and self.act(fault):
            raise fault_problem(fault)

    def unary(self, method: str, request: Any, response: Any, run: Any, resource_of: Any) -> grpc.RpcMethodHandler:
        def handle(raw: bytes, context: grpc.ServicerContext) -> bytes:
            message = request.deserialize(raw)
            resource = resource_of(message)
            try:
                self.meet(method, "before", resource)
                answer = run(message)
                self.meet(method, "after", resource)
            except StorageProblem as exc:
                self.log.add(method, resource, exc.storage_code or exc.code)
                exc.abort(context)
            self.log.add(method, resource, "ok")
            return response.serialize(answer)

        return grpc.unary_unary_rpc_method_handler(handle)
