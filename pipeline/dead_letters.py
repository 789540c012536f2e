"""Messages that are no row: kept untouched with the reason, in a table that a backfill can replay."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa

from connectors.columns import arrow_schema
from model.schema import Field, RowSchema
from pipeline.decode import Refusal
from pipeline.originals import read_originals

DEAD_LETTER_SCHEMA: Final = RowSchema(
    (
        Field("data", "BYTES", description="The message's payload, unchanged."),
        Field(
            "attributes",
            "RECORD",
            "REPEATED",
            "The message's attributes, unchanged.",
            fields=(Field("key", "STRING"), Field("value", "STRING")),
        ),
        Field(
            "message_id",
            "STRING",
            description="The message's id in Pub/Sub, or the original's id for a replay. Unique within the topic.",
        ),
        Field("publish_time", "TIMESTAMP", description="When Pub/Sub first received the message."),
        Field("topic", "STRING", description="The topic to which the message was first published."),
        Field("ordering_key", "STRING", description="The message's ordering key. Empty if there is none."),
        Field("source", "STRING", description="The data source that could not read the message."),
        Field("error_code", "STRING", description="The code, such as not_json, wrong_type or too_large."),
        Field("error_message", "STRING", description="The reason, and the position of the fault in the message."),
        Field(
            "schema_version",
            "STRING",
            description="The hash of the schema that the pipeline used to read the message.",
        ),
        Field("ingest_time", "TIMESTAMP", description="When the row was written."),
    ),
    "Messages that the pipeline could not turn into rows.",
)
_COLUMNS: Final = arrow_schema(DEAD_LETTER_SCHEMA)
_CARRIED: Final = ("data", "attributes", "ordering_key")
_MESSAGE_CHARACTERS: Final = 1000


def dead_letter_rows(
    messages: pa.RecordBatch,
    refused: Sequence[Refusal],
    *,
    topic: str,
    token: str,
    source: str,
    version: str | None,
) -> pa.RecordBatch:
    """Return a row for each of ``refused``, in its order; ``messages`` is the batch that they are places in.

    A replay of ``topic``, known by ``token``, that fails again has its original's id and time, so that it is the
    same message however often it is tried; its attributes are untouched, tags among them.
    """
    taken = messages.take(pa.array([refusal.index for refusal in refused], pa.int32()))
    constants = {"source": source, "schema_version": version, "ingest_time": datetime.now(UTC)}
    found = {name: taken.column(name) for name in _CARRIED}
    originals = read_originals(taken, topic=topic, token=token)
    found |= {name: originals[f"_{name}"] for name in ("topic", "message_id", "publish_time")}
    found["error_code"] = pa.array([refusal.code for refusal in refused], pa.string())
    # A payload's broken text may be quoted in the message: what has no UTF-8 is written as escapes.
    texts = [refusal.message[:_MESSAGE_CHARACTERS].encode(errors="backslashreplace") for refusal in refused]
    found["error_message"] = pa.array([text.decode() for text in texts], pa.string())
    columns = [
        found[field.name]
        if field.name in found
        else pa.repeat(pa.scalar(constants[field.name], field.type), taken.num_rows)
        for field in _COLUMNS
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_COLUMNS)
