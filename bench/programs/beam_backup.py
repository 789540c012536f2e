"""What a user of Apache Beam would write: messages with their attributes to Parquet files, on the local runner.

Runs in a virtual environment of its own and imports nothing of Refeed. Arguments: subscription path, folder. The
sink is the faster of two: with ``WriteToParquet`` over windows the runner took a fifth as many messages. Nothing
is promised here: the runner acknowledges what it has read and not what is written.
"""

import sys
import uuid

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.utils.shared import Shared

ROWS_A_FILE = 1_000
SCHEMA = pa.schema(
    [
        ("data", pa.binary()),
        ("attributes", pa.map_(pa.string(), pa.string())),
        ("message_id", pa.string()),
        ("publish_time", pa.timestamp("us", "UTC")),
        ("ordering_key", pa.string()),
    ]
)


class Rows(list):
    """A list that can be shared."""


class WriteParquet(beam.DoFn):
    """Writes a file whenever enough messages are here, over the bundles: the runner makes them of ten."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder
        self._shared = Shared()

    def setup(self) -> None:
        self._rows = self._shared.acquire(Rows)

    def process(self, message: PubsubMessage) -> None:
        self._rows.append(
            {
                "data": message.data,
                "attributes": list(message.attributes.items()),
                "message_id": message.message_id,
                "publish_time": message.publish_time,
                "ordering_key": message.ordering_key,
            }
        )
        if len(self._rows) >= ROWS_A_FILE:
            table = pa.Table.from_pylist(list(self._rows), schema=SCHEMA)
            pq.write_table(table, f"{self._folder}/{uuid.uuid4().hex}.parquet", compression="zstd")
            self._rows.clear()


def main() -> None:
    subscription, folder = sys.argv[1:]
    with beam.Pipeline(options=PipelineOptions([], streaming=True, runner="DirectRunner")) as pipeline:
        messages = pipeline | beam.io.ReadFromPubSub(subscription=subscription, with_attributes=True)
        messages | beam.ParDo(WriteParquet(folder))


if __name__ == "__main__":
    main()
