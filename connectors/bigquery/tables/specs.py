"""How Refeed's tables have to look."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from google.cloud import bigquery

from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.schema import to_bigquery
from model.audit import AUDIT_SCHEMA, AUDITS_TABLE
from model.schema import Field, RowSchema
from model.settings import BigQuerySettings
from model.table import ARCHIVE_COLUMNS, ColumnType, Partitioning

DAY_MS: Final = 86_400_000
# Nobody needs the outcome of an attempt long after Pub/Sub itself has forgotten its messages.
ATTEMPTS_DAYS: Final = 30
DEAD_LETTERS: Final = "dead_letters"
ATTEMPTS: Final = "attempts"
_ATTRIBUTES: Final[ColumnType] = "ATTRIBUTES"
DEAD_LETTER_ROWS: Final = RowSchema(
    (
        Field("topic", "STRING", description="The id of the topic to which the message was published."),
        Field(
            "subscription", "STRING", description="The id of the backup subscription that delivered the message."
        ),
        Field(
            "message_id", "STRING", description="The message's id in Pub/Sub. It is unique only within the topic."
        ),
        Field("reason", "STRING", description="BigQuery's reason."),
        Field("row", "BYTES", description="The unchanged row of the archive, as an Arrow IPC stream."),
        Field("failed_at", "TIMESTAMP", description="When BigQuery refused the row."),
    ),
    "Whole messages that BigQuery refused permanently, with the reason.",
)
ATTEMPT_ROWS: Final = RowSchema(
    (
        Field("lease", "STRING", description="The lease that the stream held."),
        Field("epoch", "INT64", description="The number of times that a stream has taken the lease."),
        Field("stream", "STRING", description="The stream that made the attempt."),
        Field("attempt", "INT64", description="The number of the attempt in its stream."),
        Field(
            "kind",
            "STRING",
            description="The kind of this row: attempt, ids (some of the attempt's message ids) or abandoned.",
        ),
        Field("document", "STRING", description="The content of the commit, as JSON."),
        Field(
            "ids",
            "BYTES",
            description="The topic, message_id and publish_time of the attempt's messages, as an Arrow "
            "IPC stream.",
        ),
        Field("noted_at", "TIMESTAMP", description="When this row was written."),
    ),
    "Each stream's attempts to commit, written before the commit.",
)


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table as it should be; ``partitioning`` is by ingestion time, ``expiration_days`` 0 keeps everything."""

    id: TableId
    description: str
    schema: tuple[bigquery.SchemaField, ...]
    partitioning: Partitioning
    clustering: tuple[str, ...] = ()
    expiration_days: int = 0
    require_partition_filter: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    kms_key: str | None = None


def archive_specs(archive: TableId, partitioning: Partitioning, settings: BigQuerySettings) -> list[TableSpec]:
    """Return the archive, its dead letters and the record of its attempts, in this order."""
    common = _common(settings)
    return [
        TableSpec(
            archive,
            "Every raw Pub/Sub message, unchanged.",
            tuple(_archive_fields()),
            partitioning,
            clustering=("topic", "message_id"),
            expiration_days=settings.partition_expiration_days,
            require_partition_filter=settings.require_partition_filter,
            **common,
        ),
        TableSpec(
            archive.companion(DEAD_LETTERS),
            DEAD_LETTER_ROWS.description,
            tuple(_fields(DEAD_LETTER_ROWS)),
            "day",
            clustering=("topic",),
            **common,
        ),
        attempts_spec(archive, settings),
    ]


def attempts_spec(anchor: TableId, settings: BigQuerySettings) -> TableSpec:
    """Return the record of the attempts of streams that write to ``anchor`` and what lies beside it."""
    return TableSpec(
        anchor.companion(ATTEMPTS),
        ATTEMPT_ROWS.description,
        tuple(_fields(ATTEMPT_ROWS)),
        "day",
        clustering=("lease",),
        expiration_days=ATTEMPTS_DAYS,
        **_common(settings),
    )


def audits_spec(archive: TableId, settings: BigQuerySettings) -> TableSpec:
    """Return the table of what merges checked, in the archive's dataset."""
    return rows_spec(archive.beside(AUDITS_TABLE), AUDIT_SCHEMA, "day", settings)


def rows_spec(
    table: TableId, schema: RowSchema, partitioning: Partitioning, settings: BigQuerySettings
) -> TableSpec:
    """Return a table of rows of ``schema``; it is kept for ever and requires no filter."""
    return TableSpec(table, schema.description, tuple(to_bigquery(schema)), partitioning, **_common(settings))


def _common(settings: BigQuerySettings) -> dict[str, Any]:
    labels = {"app": "refeed", **dict(settings.labels)}
    return {"labels": tuple(sorted(labels.items())), "kms_key": settings.kms_key}


def with_expiration(partitioning: Any, expiration_ms: int | None) -> Any:
    """Return the partitioning with this expiration; None is sent as an explicit null, which a patch needs."""
    changed = bigquery.TimePartitioning(type_=partitioning.type_, field=partitioning.field)
    changed.expiration_ms = expiration_ms
    return changed


def table_resource(spec: TableSpec) -> Any:
    """Return the table as Google's client creates it."""
    table = bigquery.Table(str(spec.id), schema=spec.schema)
    table.description = spec.description
    table.labels = dict(spec.labels)
    by_time = bigquery.TimePartitioning(type_=spec.partitioning.upper())
    table.time_partitioning = with_expiration(by_time, spec.expiration_days * DAY_MS or None)
    table.require_partition_filter = spec.require_partition_filter
    table.clustering_fields = list(spec.clustering) or None
    if spec.kms_key:
        table.encryption_configuration = bigquery.EncryptionConfiguration(kms_key_name=spec.kms_key)
    return table


def _archive_fields() -> Iterator[Any]:
    for column in ARCHIVE_COLUMNS:
        if column.type == _ATTRIBUTES:
            pair = [bigquery.SchemaField(name, "STRING") for name in ("key", "value")]
            yield bigquery.SchemaField(
                column.name, "RECORD", mode="REPEATED", description=column.description, fields=pair
            )
        else:
            yield bigquery.SchemaField(column.name, column.type, description=column.description)


def _fields(schema: RowSchema) -> Iterator[Any]:
    for field in schema.fields:
        yield bigquery.SchemaField(field.name, field.type, description=field.description)
