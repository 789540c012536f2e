"""Uploads remove nothing: one table has the sources and their files, and removals that wait expire."""

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import DOCUMENT, TEXT, Moment

revision = "0028"
down_revision = "0027"

_APPROVALS = sa.table(
    "approvals",
    *(sa.column(name, TEXT) for name in ("kind", "state")),
    sa.column("error", DOCUMENT),
)
_SOURCES = sa.table(
    "upload_sources",
    *(sa.column(name, TEXT) for name in ("source", "problem", "lease_owner")),
    *(sa.column(name, Moment) for name in ("problem_at", "lease_until")),
)
_UPLOADS = sa.table(
    "uploads",
    *(sa.column(name, TEXT) for name in ("source", "file", "generation", "fault", "lease_owner")),
    *(sa.column(name, Moment) for name in ("noted_at", "lease_until")),
)
_EXPIRED = {
    "code": "manifest_changed",
    "message": "Nothing was removed, because the deletion of an uploaded file no longer removes its manifest. To "
    "remove the manifest, use 'refeed delete NAME'.",
}


def upgrade() -> None:
    """Move sources and files to one table, and expire the approvals; a file whose manifest was removed is gone."""
    op.create_table(
        "uploads",
        sa.Column("source", TEXT, primary_key=True),
        sa.Column("file", TEXT, primary_key=True),
        sa.Column("generation", TEXT, nullable=False),
        sa.Column("noted_at", Moment, nullable=False),
        *(sa.Column(name, TEXT) for name in ("fault", "applied_generation")),
        sa.Column("gone_at", Moment),
        sa.Column("lease_owner", TEXT),
        sa.Column("lease_until", Moment),
    )
    op.execute(
        "INSERT INTO uploads (source, file, generation, noted_at, fault, applied_generation, gone_at) "
        "SELECT source, file, generation, noted_at, fault, applied_generation, gone_at FROM manifest_uploads "
        "WHERE removed_at IS NULL"
    )
    columns = _SOURCES.c
    names = ["source", "file", "generation", "noted_at", "fault", "lease_owner", "lease_until"]
    noted_at = sa.func.coalesce(columns.problem_at, sa.literal(datetime.now(UTC), Moment))
    itself = (columns.source, sa.literal("", TEXT), sa.literal("", TEXT), noted_at, columns.problem)
    moved = sa.select(*itself, columns.lease_owner, columns.lease_until)
    op.execute(_UPLOADS.insert().from_select(names, moved))
    op.drop_table("manifest_uploads")
    op.drop_table("upload_sources")
    waits = _APPROVALS.update().where(_APPROVALS.c.kind == "manifest", _APPROVALS.c.state == "WAITING")
    op.execute(waits.values(state="EXPIRED", error=_EXPIRED))
