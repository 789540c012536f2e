"""Google's Storage Write client on one table, with the calls that tests make most."""

import pyarrow as pa
from google.cloud.bigquery_storage_v1 import types
from google.rpc import status_pb2

PENDING, COMMITTED = types.WriteStream.Type.PENDING, types.WriteStream.Type.COMMITTED
BUFFERED = types.WriteStream.Type.BUFFERED
Code = types.StorageError.StorageErrorCode


def code_of(status: status_pb2.Status) -> Code:
    error = types.StorageError.pb()()
    assert status.details[0].Unpack(error)
    return Code(error.code)


def batch(*ids, **columns):
    rows = [
        {"data": b"\x00\xff" * 3, "attributes": [{"key": "k", "value": "v"}], "message_id": one, **columns}
        for one in ids
    ]
    return pa.RecordBatch.from_pylist(rows)


def request(stream, rows, offset=None, schema=True):
    arrow = {"rows": {"serialized_record_batch": rows.serialize().to_pybytes()}}
    if schema:
        arrow["writer_schema"] = {"serialized_schema": rows.schema.serialize().to_pybytes()}
    return types.AppendRowsRequest(write_stream=stream, offset=offset, arrow_rows=arrow)


class Writer:
    def __init__(self, standin, table):
        self.rest = standin.client()
        self.api = standin.write_client()
        self.table = f"projects/shop/datasets/{table.replace('.', '/tables/')}"
        self.name = table

    def create(self, kind=PENDING):
        return self.api.create_write_stream(parent=self.table, write_stream=types.WriteStream(type_=kind)).name

    def append(self, *requests):
        # With its own retry the client would send the rest of a consumed iterator, which is nothing.
        return list(self.api.append_rows(iter(requests), retry=None))

    def finalise(self, stream):
        return self.api.finalize_write_stream(name=stream).row_count

    def flush(self, stream, offset):
        return self.api.flush_rows(types.FlushRowsRequest(write_stream=stream, offset=offset)).offset

    def commit(self, *streams):
        return self.api.batch_commit_write_streams(
            types.BatchCommitWriteStreamsRequest(parent=self.table, write_streams=streams)
        )

    @property
    def rows(self):
        return self.rest.get_table(self.name).num_rows
