"""What a user would write: a callback that collects messages, rows in batches into the same table, then acks.

Google's client and delta-rs as their manuals show them. Arguments: subscription path, table.
"""

import queue
import sys
import time
from datetime import UTC, datetime

import pyarrow as pa
from deltalake import write_deltalake
from google.cloud import pubsub_v1

ROWS_A_COMMIT = 20_000
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("subscription", pa.string()),
        ("data", pa.binary()),
        ("attributes", pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))),
        ("message_id", pa.string()),
        ("publish_time", pa.timestamp("us", "UTC")),
        ("ordering_key", pa.string()),
        ("ingest_time", pa.timestamp("us", "UTC")),
        ("ingest_date", pa.date32()),
    ]
)


def main() -> None:
    subscription, table = sys.argv[1:]
    messages: queue.SimpleQueue = queue.SimpleQueue()
    flow_control = pubsub_v1.types.FlowControl(max_messages=4 * ROWS_A_COMMIT, max_bytes=1 << 30)
    client = pubsub_v1.SubscriberClient()
    client.subscribe(subscription, callback=messages.put, flow_control=flow_control)
    name = subscription.rsplit("/", 1)[-1]
    while True:
        batch = []
        ends_at = time.monotonic() + 1
        while len(batch) < ROWS_A_COMMIT and time.monotonic() < ends_at:
            try:
                batch.append(messages.get(timeout=0.1))
            except queue.Empty:
                continue
        if not batch:
            continue
        now = datetime.now(UTC)
        rows = [
            {
                "topic": name.rsplit(".", 1)[-1],
                "subscription": name,
                "data": message.data,
                "attributes": [{"key": key, "value": value} for key, value in message.attributes.items()],
                "message_id": message.message_id,
                "publish_time": message.publish_time,
                "ordering_key": message.ordering_key,
                "ingest_time": now,
                "ingest_date": now.date(),
            }
            for message in batch
        ]
        write_deltalake(table, pa.Table.from_pylist(rows, schema=SCHEMA), mode="append")
        for message in batch:
            message.ack()


if __name__ == "__main__":
    main()
