"""The one schema of the archive, in the words both warehouses understand."""

from dataclasses import dataclass
from typing import Final, Literal

from model.window import Window

ColumnType = Literal["BYTES", "STRING", "TIMESTAMP", "ATTRIBUTES"]
Partitioning = Literal["day", "hour"]
Warehouse = Literal["lake", "bigquery"]
# Those whose tables are on no machine's disk, so that a process on any other machine reads them.
CLOUD_WAREHOUSES: Final = frozenset[Warehouse]({"bigquery"})


@dataclass(frozen=True, slots=True)
class Column:
    """A column; ``ATTRIBUTES`` is ``ARRAY<STRUCT<key STRING, value STRING>>``, TIMESTAMP has microseconds."""

    name: str
    type: ColumnType
    description: str


DEFAULT_ARCHIVE_TABLE: Final = "backup.messages"
DEFAULT_DEAD_LETTER_TABLE: Final = "backup.dead_letters"

ARCHIVE_COLUMNS: Final = (
    Column("data", "BYTES", "The message's payload, unchanged."),
    Column("attributes", "ATTRIBUTES", "The message's attributes, unchanged."),
    Column("message_id", "STRING", "The message's id in Pub/Sub. It is unique only within the topic."),
    Column("publish_time", "TIMESTAMP", "When Pub/Sub received the message."),
    Column("topic", "STRING", "The id of the topic to which the message was published."),
    Column("subscription", "STRING", "The id of the backup subscription that delivered the message."),
    Column("ordering_key", "STRING", "The message's ordering key. Empty if the message has no ordering key."),
    Column("ingest_time", "TIMESTAMP", "When Refeed committed the row. All rows of a commit have the same time."),
)

# Columns a replay query may name that no table stores: BigQuery's pseudo columns.
PARTITION_TIME: Final = "_PARTITIONTIME"
PARTITION_DATE: Final = "_PARTITIONDATE"

# What every replay query has to give back, exactly once each.
REPLAY_COLUMNS: Final = ("data", "attributes", "message_id")

TableColumns = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A table beside the archive that queries may read: its name as the deployment lists it, columns and types.

    Types are GoogleSQL's, ``ARRAY<STRUCT<key STRING, value STRING>>`` for example. A table with ``partitioning``
    is partitioned by the time its rows came in, so that it has the pseudo columns too.
    """

    table: str
    columns: TableColumns
    partitioning: Partitioning | None = None


@dataclass(frozen=True, slots=True)
class TableRead:
    """What a query reads beside the archive: a table, the view it is called by on the lake, and its window.

    ``window`` are the ingestion times it can touch, None for a table that is not partitioned by them.
    """

    table: str
    view: str
    window: Window | None
