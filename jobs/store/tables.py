"""The store's tables, for SQLite and PostgreSQL alike: a column for each field of a record, and some more.

A change here, or of a record's fields, needs a migration.
"""

from collections.abc import Collection, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeEngine

from jobs.store.records import ApiKey, AuditEntry, Job
from model.event import HistoryEvent
from model.manifest_record import ManifestRecord, ScheduleRun
from model.manifest_upload import ManifestUpload
from model.stream_record import StreamRecord
from model.stream_snapshot import SnapshotRecord

# The newest migration in jobs/migrations/versions.
SCHEMA_REVISION: Final = "0037"

METADATA: Final = sa.MetaData()

# Texts are compared by code point on both databases, whatever a server's locale is.
TEXT: Final = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
# Kept as text, not as JSONB: that one refuses what JSON can write and text can't hold, such as NUL.
DOCUMENT: Final = sa.JSON(none_as_null=True)
LABELS: Final = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
NUMBER: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


class Moment(sa.types.TypeDecorator[datetime]):
    """An aware UTC time, to the microsecond; on SQLite a text that sorts as the time does."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the column's type on ``dialect``."""
        if dialect.name == "postgresql":
            return dialect.type_descriptor(sa.TIMESTAMP(timezone=True))
        return dialect.type_descriptor(sa.Text())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Return what the driver gets."""
        if value is None:
            return None
        in_utc = value.astimezone(UTC)
        return in_utc if dialect.name == "postgresql" else in_utc.isoformat()

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Return what the driver gave, in UTC."""
        if value is None:
            return None
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        return moment.astimezone(UTC)


_TYPES: Final[Mapping[Any, Any]] = {
    str: TEXT,
    bool: sa.Boolean,
    int: sa.Integer,
    float: sa.Float,
    datetime: Moment,
}


def _columns(kind: type[Any], without: Collection[str]) -> list[sa.Column[Any]]:
    """Return a column for each field of a record; one that may be None may be NULL."""
    hints = get_type_hints(kind)
    return [_column(each.name, hints[each.name]) for each in fields(kind) if each.name not in without]


def _column(name: str, kind: Any) -> sa.Column[Any]:
    choices = get_args(kind) if get_origin(kind) in {Union, UnionType} else (kind,)
    is_text = isinstance(choices[0], type) and issubclass(choices[0], Enum)
    return sa.Column(name, TEXT if is_text else _TYPES.get(choices[0], DOCUMENT), nullable=NoneType in choices)


def _table(name: str, kind: type[Any], *own: sa.schema.SchemaItem, without: Collection[str] = ()) -> sa.Table:
    """Return the table of a kind of records: ``own`` is what their fields' types do not say.

    ``without`` names the fields that are derived.
    """
    given = {item.name for item in own if isinstance(item, sa.Column)}
    return sa.Table(name, METADATA, *_columns(kind, given.union(without)), *own)


JOBS: Final = _table(
    "jobs",
    Job,
    sa.Column("id", TEXT, primary_key=True),
    # The caller's name and its key, with a line break between: another caller's same key is another key.
    sa.Column("idempotency_key", TEXT, unique=True),
    sa.Column("fingerprint", TEXT),
    sa.Column("topic", TEXT, nullable=False, server_default=""),
    sa.Column("labels", LABELS, nullable=False, server_default="{}"),
    sa.Column("options", DOCUMENT, nullable=False, server_default="{}"),
    sa.Column("restarts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("verify_after", Moment),
    sa.Column("awaits_approval", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("not_before", Moment),
    sa.Column("lease_until", Moment),
    sa.Column("attempt", sa.Integer, nullable=False, server_default="0"),
    sa.Column("memory", DOCUMENT, nullable=False, server_default="{}"),
    # About the telling of its news.
    sa.Column("notify_after", Moment),
    sa.Column("notify_attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Index("jobs_by_state", "state", "kind"),
    sa.Index("jobs_by_end", "kind", "finished_at"),
    sa.Index("jobs_by_news", "kind", "news_at"),
    sa.Index("jobs_by_owner", "lease_owner"),
    sa.Index("jobs_to_verify", "kind", "verify_after"),
    sa.Index("jobs_by_age", "kind", "id"),
    sa.Index("jobs_by_creation", "created_at", "id"),
    sa.Index("jobs_by_subject", "subject", "id"),
)

# The histories of all objects.
EVENTS: Final = _table(
    "events",
    HistoryEvent,
    sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
    sa.Index("events_by_object", "id", "resource", "number"),
    sa.Index("events_by_time", "at", "number"),
)

# Records that end by themselves, by their kind; ``revision`` and ``held_until`` are those of a person's session.
SHORT_LIVED: Final = sa.Table(
    "short_lived",
    METADATA,
    sa.Column("kind", TEXT, primary_key=True),
    sa.Column("key", TEXT, primary_key=True),
    sa.Column("document", DOCUMENT, nullable=False),
    sa.Column("expires_at", Moment, nullable=False, index=True),
    sa.Column("revision", NUMBER, nullable=False),
    sa.Column("held_until", Moment),
)

KEYS: Final = _table(
    "keys",
    ApiKey,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("prefix", TEXT, nullable=False, unique=True),
)

AUDIT: Final = _table(
    "audit",
    AuditEntry,
    sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
)

# The last report of each agent, and of each stream by the instance of the home that runs it. Of a webhook it is
# the first start, by the SHA-256 of its URL, which may hold a secret.
REPORTS: Final = sa.Table(
    "reports",
    METADATA,
    sa.Column("kind", TEXT, primary_key=True),
    sa.Column("name", TEXT, primary_key=True),
    sa.Column("instance", TEXT, primary_key=True),
    sa.Column("reported_at", Moment, nullable=False),
    sa.Column("report", DOCUMENT, nullable=False),
)

# Streams that people launched: what is wanted of each, and which agent keeps it so.
MANAGED_STREAMS: Final = _table(
    "managed_streams",
    StreamRecord,
    sa.Column("name", TEXT, primary_key=True),
    sa.Column("agent_until", Moment),
    # Of its last launch, as a job's.
    sa.Column("idempotency_key", TEXT),
    sa.Column("fingerprint", TEXT),
    sa.Column("launched_by", TEXT),
    sa.Column("launched_at", Moment),
    without={"is_held"},
)

# Snapshots of streams; a record goes when nothing is left of its snapshot.
STREAM_SNAPSHOTS: Final = _table(
    "stream_snapshots",
    SnapshotRecord,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("stream", TEXT, sa.ForeignKey("managed_streams.name"), nullable=False),
    sa.Column("state", TEXT, nullable=False, index=True),
    sa.Column("size_bytes", sa.BigInteger),
    sa.Column("known_messages", sa.BigInteger),
    sa.Column("idempotency_key", TEXT, unique=True),
    sa.Column("fingerprint", TEXT),
    sa.Index("stream_snapshots_by_time", "stream", "created_at"),
    sa.Index("stream_snapshots_by_state", "stream", "state", "reason"),
)

# Manifests that were applied, by their names; a removed one stays for the history of its runs.
MANIFESTS: Final = _table(
    "manifests",
    ManifestRecord,
    sa.Column("name", TEXT, primary_key=True),
)

# The slots of schedules, each once.
SCHEDULE_RUNS: Final = _table(
    "schedule_runs",
    ScheduleRun,
    sa.Column("schedule", TEXT, sa.ForeignKey("manifests.name"), primary_key=True),
    sa.Column("slot", Moment, primary_key=True),
    sa.Column("state", TEXT, nullable=False, index=True),
    # Of one that somebody asked for: the caller's name and its key, with a line break between.
    sa.Column("idempotency_key", TEXT),
    sa.Index("schedule_runs_by_key", "schedule", "idempotency_key", unique=True),
    # The living ones of a schedule among all that it ever had.
    sa.Index("schedule_runs_by_state", "schedule", "state"),
)

# The folders and buckets that manifests are uploaded to, each with the lease of who watches it, and their files.
UPLOADS: Final = _table(
    "uploads",
    ManifestUpload,
    sa.Column("source", TEXT, primary_key=True),
    sa.Column("file", TEXT, primary_key=True),
    sa.Column("lease_owner", TEXT),
    sa.Column("lease_until", Moment),
)

# Figures of streams and jobs at the beginning of a minute; the first ones of an hour stay longer.
FIGURES: Final = sa.Table(
    "figures",
    METADATA,
    sa.Column("subject", TEXT, primary_key=True),
    sa.Column("at", Moment, primary_key=True),
    sa.Column("is_hourly", sa.Boolean, nullable=False),
    sa.Column("figures", DOCUMENT, nullable=False),
    sa.Index("figures_by_kind_and_age", "is_hourly", "at"),
)
