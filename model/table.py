"""The one schema of the archive, in the words both warehouses understand."""

from dataclasses import dataclass
from typing import Final, Literal

ColumnType = Literal["BYTES", "STRING", "TIMESTAMP", "ATTRIBUTES"]
Partitioning = Literal["day", "hour"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column; ``ATTRIBUTES`` is ``ARRAY<STRUCT<key STRING, value STRING>>``, TIMESTAMP has microseconds."""

    name: str
    type: ColumnType
    description: str


DEFAULT_ARCHIVE_TABLE: Final = "backup.messages"

ARCHIVE_COLUMNS: Final = (
    Column("data", "BYTES", "The message's payload, bit for bit."),
    Column("attributes", "ATTRIBUTES", "The message's attributes, untouched."),
    Column("message_id", "STRING", "Pub/Sub's id; unique within its topic only."),
    Column("publish_time", "TIMESTAMP", "When Pub/Sub took the message."),
    Column("topic", "STRING", "The id of the topic it was published to."),
    Column("subscription", "STRING", "The id of the backup subscription it came through."),
    Column("ordering_key", "STRING", "The message's ordering key; empty when it has none."),
    Column("ingest_time", "TIMESTAMP", "When the commit that holds the row was made; one value per commit."),
)

# Columns a replay query may name that no table stores: BigQuery's pseudo columns.
PARTITION_TIME: Final = "_PARTITIONTIME"
PARTITION_DATE: Final = "_PARTITIONDATE"

# What every replay query has to give back, exactly once each.
REPLAY_COLUMNS: Final = ("data", "attributes", "message_id")
