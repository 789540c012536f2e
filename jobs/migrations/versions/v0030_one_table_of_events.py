"""One table of events: streams' histories move to those of jobs, and manifests and keys get theirs."""

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import DOCUMENT, NUMBER, TEXT, Moment

revision = "0030"
down_revision = "0029"

# A job's lines keep their numbers, after which a caller may be reading on; streams' come after all of them.
_COPIES = (
    """
    INSERT INTO history (number, resource, id, at, actor, type, what, why, fields)
    SELECT old.number, jobs.kind, old.job_id, old.at, old.actor, old.type, old.what, old.why, old.fields
    FROM events old JOIN jobs ON jobs.id = old.job_id
    """,
    """
    INSERT INTO history (number, resource, id, generation, at, actor, type, what, why, fields)
    SELECT old.number + (SELECT coalesce(max(number), 0) FROM events),
        'stream', old.stream, old.generation, old.at, old.actor, old.type, old.what, old.why, old.fields
    FROM stream_events old
    """,
    # Nobody wrote down who removed, paused or resumed a manifest.
    """
    INSERT INTO history (number, resource, id, at, actor, type, what, why, fields)
    SELECT (SELECT coalesce(max(number), 0) FROM history) + row_number() OVER (ORDER BY changed_at, name),
        'manifest', name, changed_at,
        CASE WHEN removed_at IS NULL AND paused IS NULL THEN applied_by END,
        CASE WHEN removed_at IS NOT NULL THEN 'removed' WHEN paused IS NOT NULL THEN 'paused' ELSE 'applied' END,
        CASE WHEN removed_at IS NOT NULL THEN 'removed' WHEN paused IS NOT NULL THEN 'paused'
            WHEN created_at = changed_at THEN 'applied' ELSE 'changed' END || ', version ' || version,
        paused, '{}'
    FROM manifests
    """,
    """
    INSERT INTO history (number, resource, id, at, type, what, fields)
    SELECT (SELECT coalesce(max(number), 0) FROM history) + row_number() OVER (ORDER BY at, type),
        'key', name, at, type, type, '{}'
    FROM (
        SELECT name, created_at AS at, 'created' AS type FROM keys
        UNION ALL SELECT name, revoked_at, 'revoked' FROM keys WHERE revoked_at IS NOT NULL
    ) made
    """,
)
_LAUNCH = """
    UPDATE managed_streams SET {column} = coalesce((
        SELECT {source} FROM stream_events line
        WHERE line.stream = managed_streams.name AND line.generation = managed_streams.generation
            AND line.type = 'launched'
        ORDER BY line.number LIMIT 1
    ), {otherwise})
"""


def upgrade() -> None:
    """Make the table, copy every line, and let each stream know who launched it, and when."""
    op.create_table(
        "history",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("resource", TEXT, nullable=False),
        sa.Column("id", TEXT, nullable=False),
        sa.Column("at", Moment, nullable=False),
        sa.Column("actor", TEXT),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("what", TEXT, nullable=False),
        sa.Column("why", TEXT),
        sa.Column("generation", sa.Integer),
        sa.Column("fields", DOCUMENT, nullable=False),
    )
    for copy in _COPIES:
        op.execute(copy)
    op.add_column("managed_streams", sa.Column("launched_by", TEXT))
    op.add_column("managed_streams", sa.Column("launched_at", Moment))
    for column, source in (("by", "actor"), ("at", "at")):
        op.execute(_LAUNCH.format(column=f"launched_{column}", source=source, otherwise=f"created_{column}"))
    op.drop_table("stream_events")
    op.drop_table("events")
    op.rename_table("history", "events")
    op.create_index("events_by_object", "events", ["id", "resource", "number"])
    op.create_index("events_by_time", "events", ["at", "number"])
    if op.get_bind().dialect.name == "postgresql":
        newest = "(SELECT coalesce(max(number), 0) + 1 FROM events)"
        op.execute(f"SELECT setval(pg_get_serial_sequence('events', 'number'), {newest}, false)")
