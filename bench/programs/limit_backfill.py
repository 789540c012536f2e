"""The limit of a backfill: one process from Parquet to raw Publish calls, with nothing around it.

Arguments: topic path, folder of the selection, number of this process, number of processes.
"""

import os
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.yard import IN_FLIGHT
from connectors.pubsub.channel import open_channel
from connectors.pubsub.encoding import MESSAGE_SCHEMA
from connectors.pubsub.requests import RequestCutter


def main() -> None:
    topic, folder, number, count = sys.argv[1:]
    with open_channel(os.environ["PUBSUB_EMULATOR_HOST"]) as channel:
        publish = channel.unary_unary(
            "/google.pubsub.v1.Publisher/Publish", request_serializer=None, response_deserializer=None
        )
        flying: deque[Any] = deque()
        for path in sorted(Path(folder).glob("*.parquet")):
            with pq.ParquetFile(path) as file:
                for group in range(int(number), file.num_row_groups, int(count)):
                    (rows,) = file.read_row_group(group).combine_chunks().to_batches()
                    columns = [rows.column("data"), rows.column("attributes"), pa.repeat("", rows.num_rows)]
                    batch = pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)
                    cutter, start = RequestCutter(batch, topic), 0
                    while start < batch.num_rows:
                        request = cutter.cut(start)
                        start += request.rows
                        if len(flying) == IN_FLIGHT:
                            flying.popleft().result()
                        flying.append(publish.future(request.body))
        for call in flying:
            call.result()


if __name__ == "__main__":
    main()
