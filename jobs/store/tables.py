"""The store's tables, for SQLite and PostgreSQL alike; a change here needs a migration beside it."""

from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeEngine

# The newest migration in jobs/migrations/versions.
SCHEMA_REVISION: Final = "0018"

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


JOBS: Final = sa.Table(
    "jobs",
    METADATA,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("kind", TEXT, nullable=False),
    sa.Column("state", TEXT, nullable=False),
    sa.Column("request", DOCUMENT, nullable=False),
    sa.Column("created_by", TEXT, nullable=False),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("started_at", Moment),
    sa.Column("finished_at", Moment),
    sa.Column("progress", DOCUMENT, nullable=False),
    sa.Column("error", DOCUMENT),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("driver", DOCUMENT),
    # The caller's name and its key, with a line break between: another caller's same key is another key.
    sa.Column("idempotency_key", TEXT, unique=True),
    sa.Column("fingerprint", TEXT),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("topic", TEXT, nullable=False, server_default=""),
    sa.Column("labels", LABELS, nullable=False, server_default="{}"),
    sa.Column("options", DOCUMENT, nullable=False, server_default="{}"),
    sa.Column("restarts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("plan_id", TEXT),
    # What is found out of the job, in the words of its kind.
    sa.Column("findings", DOCUMENT),
    sa.Column("verify_after", Moment),
    sa.Column("approval", DOCUMENT),
    sa.Column("awaits_approval", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("not_before", Moment),
    sa.Column("lease_owner", TEXT),
    sa.Column("lease_until", Moment),
    # When it ended, or began to wait for a person; the columns below are about the telling of this.
    sa.Column("news_at", Moment),
    sa.Column("notified_at", Moment),
    sa.Column("notify_after", Moment),
    sa.Column("notify_attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("notify_error", TEXT),
    sa.Index("jobs_by_state", "kind", "state"),
    sa.Index("jobs_by_end", "kind", "finished_at"),
    sa.Index("jobs_by_news", "kind", "news_at"),
    sa.Index("jobs_by_owner", "lease_owner"),
    sa.Index("jobs_to_verify", "kind", "verify_after"),
    sa.Index("jobs_by_age", "kind", "id"),
)

# Webhooks by the SHA-256 of their URL, which may hold a secret, and since when each is told of news.
WEBHOOKS: Final = sa.Table(
    "webhooks",
    METADATA,
    sa.Column("digest", TEXT, primary_key=True),
    sa.Column("since", Moment, nullable=False),
)

EVENTS: Final = sa.Table(
    "events",
    METADATA,
    sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
    sa.Column("job_id", TEXT, sa.ForeignKey("jobs.id"), nullable=False, index=True),
    sa.Column("at", Moment, nullable=False),
    sa.Column("actor", TEXT, nullable=False),
    sa.Column("what", TEXT, nullable=False),
    sa.Column("why", TEXT),
    # What programs read; the two above are for people.
    sa.Column("type", TEXT, nullable=False, server_default="changed"),
    sa.Column("fields", DOCUMENT, nullable=False, server_default="{}"),
    sa.Index("events_by_time", "at", "number"),
)

# Idempotency keys whose create is still under way.
CREATES: Final = sa.Table(
    "creates",
    METADATA,
    sa.Column("key", TEXT, primary_key=True),
    sa.Column("fingerprint", TEXT, nullable=False),
    sa.Column("attempt", TEXT, nullable=False),
    sa.Column("held_until", Moment, nullable=False),
)

PLANS: Final = sa.Table(
    "plans",
    METADATA,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("fingerprint", TEXT, nullable=False),
    sa.Column("document", DOCUMENT, nullable=False),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("expires_at", Moment, nullable=False, index=True),
)

KEYS: Final = sa.Table(
    "keys",
    METADATA,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("prefix", TEXT, nullable=False, unique=True),
    sa.Column("digest", TEXT, nullable=False),
    sa.Column("name", TEXT, nullable=False),
    sa.Column("scopes", DOCUMENT, nullable=False),
    sa.Column("topics", DOCUMENT),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("expires_at", Moment),
    sa.Column("revoked_at", Moment),
    sa.Column("last_used_at", Moment),
)

SESSIONS: Final = sa.Table(
    "sessions",
    METADATA,
    sa.Column("digest", TEXT, primary_key=True),
    sa.Column("key_id", TEXT, sa.ForeignKey("keys.id"), nullable=False),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("expires_at", Moment, nullable=False, index=True),
)

USER_SESSIONS: Final = sa.Table(
    "user_sessions",
    METADATA,
    sa.Column("digest", TEXT, primary_key=True),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("expires_at", Moment, nullable=False, index=True),
    # The tokens, encrypted with a key that is derived from the session's own token.
    sa.Column("sealed", TEXT, nullable=False),
    sa.Column("renew_at", Moment, nullable=False),
    sa.Column("token_expires_at", Moment, nullable=False),
    sa.Column("revision", NUMBER, nullable=False),
    # Until then one replica alone asks the provider for new tokens.
    sa.Column("renewing_until", Moment),
)

USED_SIGN_INS: Final = sa.Table(
    "used_sign_ins",
    METADATA,
    sa.Column("digest", TEXT, primary_key=True),
    sa.Column("expires_at", Moment, nullable=False, index=True),
)

AUDIT: Final = sa.Table(
    "audit",
    METADATA,
    sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
    sa.Column("at", Moment, nullable=False),
    sa.Column("actor", TEXT, nullable=False),
    sa.Column("action", TEXT, nullable=False),
    sa.Column("target", TEXT, nullable=False),
    sa.Column("outcome", TEXT, nullable=False),
    sa.Column("why", TEXT),
)

# The last report of each stream, by the home that runs it.
STREAMS: Final = sa.Table(
    "streams",
    METADATA,
    sa.Column("name", TEXT, primary_key=True),
    sa.Column("instance", TEXT, primary_key=True),
    sa.Column("host", TEXT, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("state", TEXT, nullable=False),
    sa.Column("reported_at", Moment, nullable=False),
    sa.Column("status", DOCUMENT, nullable=False),
)

# Streams that people launched: what is wanted of each, and which agent keeps it so.
MANAGED_STREAMS: Final = sa.Table(
    "managed_streams",
    METADATA,
    sa.Column("name", TEXT, primary_key=True),
    sa.Column("kind", TEXT, nullable=False),
    sa.Column("release", TEXT),
    sa.Column("options", DOCUMENT, nullable=False),
    sa.Column("wanted", TEXT, nullable=False),
    sa.Column("drain_timeout_seconds", sa.Float, nullable=False),
    sa.Column("state", TEXT, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("instance_id", TEXT),
    sa.Column("agent", TEXT),
    sa.Column("agent_until", Moment),
    sa.Column("home", DOCUMENT),
    sa.Column("snapshot_id", TEXT),
    sa.Column("error", DOCUMENT),
    sa.Column("created_by", TEXT, nullable=False),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("changed_at", Moment, nullable=False),
    # Of its last launch, as a job's.
    sa.Column("idempotency_key", TEXT),
    sa.Column("fingerprint", TEXT),
)

STREAM_EVENTS: Final = sa.Table(
    "stream_events",
    METADATA,
    sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
    sa.Column("stream", TEXT, sa.ForeignKey("managed_streams.name"), nullable=False, index=True),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("at", Moment, nullable=False),
    sa.Column("actor", TEXT, nullable=False),
    sa.Column("type", TEXT, nullable=False),
    sa.Column("what", TEXT, nullable=False),
    sa.Column("why", TEXT),
    sa.Column("fields", DOCUMENT, nullable=False),
    sa.Index("stream_events_by_time", "at", "number"),
)

# Snapshots of streams; a record goes when nothing is left of its snapshot.
STREAM_SNAPSHOTS: Final = sa.Table(
    "stream_snapshots",
    METADATA,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("stream", TEXT, sa.ForeignKey("managed_streams.name"), nullable=False, index=True),
    sa.Column("kind", TEXT, nullable=False),
    sa.Column("with_source", sa.Boolean, nullable=False),
    sa.Column("reason", TEXT, nullable=False),
    sa.Column("state", TEXT, nullable=False),
    sa.Column("release", TEXT),
    sa.Column("format_version", sa.Integer),
    sa.Column("sources", DOCUMENT, nullable=False),
    sa.Column("taken_at", Moment),
    sa.Column("size_bytes", sa.BigInteger),
    sa.Column("seconds_paused", sa.Float),
    sa.Column("known_messages", sa.BigInteger),
    sa.Column("place", DOCUMENT),
    sa.Column("error", DOCUMENT),
    sa.Column("created_by", TEXT, nullable=False),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("finished_at", Moment),
    sa.Column("idempotency_key", TEXT, unique=True),
    sa.Column("fingerprint", TEXT),
)

# Streams that are put back to a snapshot, and how far that is.
STREAM_RESTORES: Final = sa.Table(
    "stream_restores",
    METADATA,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("stream", TEXT, sa.ForeignKey("managed_streams.name"), nullable=False, index=True),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("snapshot_id", TEXT, nullable=False),
    sa.Column("state", TEXT, nullable=False),
    sa.Column("step", TEXT, nullable=False),
    sa.Column("not_reverted", DOCUMENT, nullable=False),
    sa.Column("discard_staged", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("error", DOCUMENT),
    sa.Column("created_by", TEXT, nullable=False),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("finished_at", Moment),
)

# Updates of streams, and the step that each is at.
STREAM_UPDATES: Final = sa.Table(
    "stream_updates",
    METADATA,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("stream", TEXT, sa.ForeignKey("managed_streams.name"), nullable=False, index=True),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("state", TEXT, nullable=False),
    sa.Column("request", DOCUMENT, nullable=False),
    sa.Column("from_release", TEXT),
    sa.Column("from_options", DOCUMENT, nullable=False),
    sa.Column("checked", DOCUMENT),
    sa.Column("snapshot_id", TEXT),
    sa.Column("instance_id", TEXT),
    sa.Column("outgoing_id", TEXT),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("handed_over_at", Moment),
    sa.Column("paused_seconds", sa.Float),
    sa.Column("figures", DOCUMENT),
    sa.Column("replay", DOCUMENT),
    sa.Column("error", DOCUMENT),
    sa.Column("created_by", TEXT, nullable=False),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("changed_at", Moment, nullable=False),
    sa.Column("finished_at", Moment),
    sa.Column("idempotency_key", TEXT, unique=True),
    sa.Column("fingerprint", TEXT),
)

# Manifests that were applied, by their names; a removed one stays for the history of its runs.
MANIFESTS: Final = sa.Table(
    "manifests",
    METADATA,
    sa.Column("name", TEXT, primary_key=True),
    sa.Column("kind", TEXT, nullable=False),
    sa.Column("document", DOCUMENT, nullable=False),
    sa.Column("digest", TEXT, nullable=False),
    sa.Column("source", TEXT, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("applied_by", TEXT, nullable=False),
    sa.Column("scopes", DOCUMENT, nullable=False),
    sa.Column("topics", DOCUMENT),
    sa.Column("settled_until", Moment, nullable=False),
    sa.Column("paused", TEXT),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("changed_at", Moment, nullable=False),
    sa.Column("removed_at", Moment),
)

# The slots of schedules, each once.
SCHEDULE_RUNS: Final = sa.Table(
    "schedule_runs",
    METADATA,
    sa.Column("schedule", TEXT, sa.ForeignKey("manifests.name"), primary_key=True),
    sa.Column("slot", Moment, primary_key=True),
    sa.Column("slot_start", Moment, nullable=False),
    sa.Column("state", TEXT, nullable=False, index=True),
    sa.Column("request", DOCUMENT, nullable=False),
    sa.Column("job_kind", TEXT),
    sa.Column("job_id", TEXT),
    sa.Column("is_unwanted", sa.Boolean, nullable=False),
    sa.Column("why", TEXT),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("finished_at", Moment),
)

# Rollouts of streams, and the step that each is at.
ROLLOUTS: Final = sa.Table(
    "rollouts",
    METADATA,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("manifest", TEXT, sa.ForeignKey("manifests.name"), nullable=False, index=True),
    sa.Column("digest", TEXT, nullable=False),
    sa.Column("document", DOCUMENT, nullable=False),
    sa.Column("stream", TEXT, sa.ForeignKey("managed_streams.name"), nullable=False, index=True),
    sa.Column("strategy", TEXT, nullable=False),
    sa.Column("state", TEXT, nullable=False),
    sa.Column("from_side", DOCUMENT, nullable=False),
    sa.Column("to_side", DOCUMENT, nullable=False),
    sa.Column("steps", DOCUMENT, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("is_trusted", sa.Boolean, nullable=False),
    sa.Column("reverses", TEXT),
    sa.Column("unwanted_by", TEXT),
    sa.Column("generation", sa.Integer),
    sa.Column("update_id", TEXT),
    sa.Column("compared", DOCUMENT),
    sa.Column("error", DOCUMENT),
    sa.Column("created_by", TEXT, nullable=False),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("changed_at", Moment, nullable=False),
    sa.Column("finished_at", Moment),
)

# Agents that live, and the releases that each can start streams of.
STREAM_AGENTS: Final = sa.Table(
    "stream_agents",
    METADATA,
    sa.Column("agent", TEXT, primary_key=True),
    sa.Column("host", TEXT, nullable=False),
    sa.Column("home", TEXT, nullable=False),
    sa.Column("version", TEXT, nullable=False),
    sa.Column("releases", DOCUMENT, nullable=False),
    sa.Column("reported_at", Moment, nullable=False),
)

# Actions that wait for a second person, and what became of each.
APPROVALS: Final = sa.Table(
    "approvals",
    METADATA,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("kind", TEXT, nullable=False),
    sa.Column("name", TEXT, nullable=False),
    sa.Column("action", TEXT, nullable=False),
    sa.Column("request", DOCUMENT, nullable=False),
    sa.Column("what", TEXT, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("scope", TEXT, nullable=False),
    sa.Column("requested_by", TEXT, nullable=False),
    sa.Column("scopes", DOCUMENT, nullable=False),
    sa.Column("topics", DOCUMENT),
    sa.Column("requested_at", Moment, nullable=False),
    sa.Column("expires_at", Moment, nullable=False),
    sa.Column("state", TEXT, nullable=False, index=True),
    sa.Column("decided_by", TEXT),
    sa.Column("decided_at", Moment),
    sa.Column("reason", TEXT),
    sa.Column("outcome", DOCUMENT),
    sa.Column("error", DOCUMENT),
)

# The folders and buckets that manifests are uploaded to, and which replica watches each.
UPLOAD_SOURCES: Final = sa.Table(
    "upload_sources",
    METADATA,
    sa.Column("source", TEXT, primary_key=True),
    sa.Column("lease_owner", TEXT),
    sa.Column("lease_until", Moment),
    sa.Column("problem", TEXT),
    sa.Column("problem_at", Moment),
)

# Their files, and what became of the newest version of each.
MANIFEST_UPLOADS: Final = sa.Table(
    "manifest_uploads",
    METADATA,
    sa.Column("source", TEXT, sa.ForeignKey("upload_sources.source"), primary_key=True),
    sa.Column("file", TEXT, primary_key=True),
    sa.Column("generation", TEXT, nullable=False),
    sa.Column("noted_at", Moment, nullable=False),
    sa.Column("fault", TEXT),
    sa.Column("applied_generation", TEXT),
    sa.Column("gone_at", Moment),
    sa.Column("waits", TEXT),
    sa.Column("approval_id", TEXT),
    sa.Column("removed_at", Moment),
)

# Figures of streams and jobs at the beginning of a minute; the first ones of an hour stay longer.
FIGURES: Final = sa.Table(
    "figures",
    METADATA,
    sa.Column("subject", TEXT, primary_key=True),
    sa.Column("at", Moment, primary_key=True),
    sa.Column("is_hourly", sa.Boolean, nullable=False),
    sa.Column("figures", DOCUMENT, nullable=False),
    sa.Index("figures_by_age", "at"),
)
