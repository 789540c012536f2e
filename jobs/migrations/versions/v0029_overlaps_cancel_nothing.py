"""Overlaps cancel nothing: a schedule whose slots replaced the runs before them lets them wait for these."""

import hashlib
import json

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import DOCUMENT, TEXT

revision = "0029"
down_revision = "0028"

_MANIFESTS = sa.table(
    "manifests", *(sa.column(name, TEXT) for name in ("name", "digest")), sa.column("document", DOCUMENT)
)


def upgrade() -> None:
    """Turn ``replace`` into ``queue``, which loses no run that has begun, and go on with runs that were to end."""
    connection = op.get_bind()
    for row in connection.execute(sa.select(_MANIFESTS)).all():
        if row.document.get("overlap") == "replace":
            document = {**row.document, "overlap": "queue"}
            digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
            changes = {"document": document, "digest": digest}
            connection.execute(_MANIFESTS.update().where(_MANIFESTS.c.name == row.name).values(**changes))
    op.drop_column("schedule_runs", "is_unwanted")
