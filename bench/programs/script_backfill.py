"""What a user would write: DuckDB reads the archive's files, Google's client publishes row by row.

Arguments: topic path, file pattern.
"""

import sys

import duckdb
from google.cloud import pubsub_v1

ROWS_AT_ONCE = 10_000
BATCH = pubsub_v1.types.BatchSettings(max_messages=1_000, max_bytes=9_000_000, max_latency=0.05)


def main() -> None:
    topic, pattern = sys.argv[1:]
    publisher = pubsub_v1.PublisherClient(batch_settings=BATCH)
    rows = duckdb.connect().execute("SELECT data, attributes FROM read_parquet($1)", [pattern])
    futures = []
    while found := rows.fetchmany(ROWS_AT_ONCE):
        for data, attributes in found:
            futures.append(publisher.publish(topic, data, **{pair["key"]: pair["value"] for pair in attributes}))
    for future in futures:
        future.result()


if __name__ == "__main__":
    main()
