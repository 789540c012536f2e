"""Google's Storage Read client on one table, with the calls that tests make most."""

import pyarrow as pa
from google.cloud.bigquery_storage_v1 import types
from google.cloud.bigquery_storage_v1.services.big_query_read import BigQueryReadClient as RawReadClient


class Reader:
    """A reader of one table."""

    def __init__(self, server, archive):
        self.api = server.read_client()
        self.table = archive.table

    def session(self, streams=1, **options):
        session = types.ReadSession(table=self.table, data_format="ARROW", read_options=options)
        return self.api.create_read_session(parent="projects/shop", read_session=session, max_stream_count=streams)

    def read(self, session, stream, offset=0):
        """Return a stream's rows by Google's raw call, batch by batch."""
        schema = pa.ipc.read_schema(pa.py_buffer(session.arrow_schema.serialized_schema))
        request = types.ReadRowsRequest(read_stream=stream.name, offset=offset)
        answers = RawReadClient.read_rows(self.api, request, retry=None)
        for answer in answers:
            raw = pa.py_buffer(answer.arrow_record_batch.serialized_record_batch)
            yield pa.ipc.read_record_batch(raw, schema)

    def rows(self, session, stream, offset=0):
        return [row for batch in self.read(session, stream, offset) for row in batch.to_pylist()]
