"""Watches decide alone: rollouts without a query, updates that wait for nobody.

What is at a step that there is no more goes on with the step before it.
"""

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import DOCUMENT, TEXT, Moment

revision = "0025"
down_revision = "0024"

_ROLLOUTS = sa.table(
    "rollouts",
    *(sa.column(name, TEXT) for name in ("id", "state", "strategy", "update_id")),
    *(sa.column(name, DOCUMENT) for name in ("document", "steps", "error")),
    sa.column("finished_at", Moment),
    sa.column("is_trusted", sa.Boolean),
)

_UPDATES = sa.table(
    "stream_updates",
    *(sa.column(name, TEXT) for name in ("id", "state")),
    *(sa.column(name, DOCUMENT) for name in ("request", "error")),
    sa.column("finished_at", Moment),
)
_MANIFESTS = sa.table(
    "manifests",
    *(sa.column(name, TEXT) for name in ("name", "kind", "paused")),
    sa.column("document", DOCUMENT),
)
_PAUSED = (
    "Its rollouts were validated by a query, which no longer runs. Apply the manifest without validate.query, or "
    "resume the schedule to continue without the query."
)


def upgrade() -> None:
    """Take the query out of rollouts and manifests, and let updates be judged again that waited for a person."""
    connection, now = op.get_bind(), datetime.now(UTC)
    # An update that leads back to what was STABLE before has nothing to prove.
    proves = (_ROLLOUTS.c.state == "UPDATING", sa.not_(_ROLLOUTS.c.is_trusted))
    of_rollouts = set(connection.execute(sa.select(_ROLLOUTS.c.update_id).where(*proves)).scalars())
    for row in connection.execute(sa.select(_UPDATES).where(_UPDATES.c.finished_at.is_(None))).all():
        wanted = {"when_inconclusive": "fail"} if row.id in of_rollouts else {}
        again = {"state": "WATCHING", "error": None} if row.state == "INCONCLUSIVE" else {}
        changes = {"request": {**row.request, **wanted}, **again}
        connection.execute(_UPDATES.update().where(_UPDATES.c.id == row.id).values(**changes))
    for row in connection.execute(sa.select(_ROLLOUTS)).all():
        changes = _without_query(row, now)
        if changes:
            connection.execute(_ROLLOUTS.update().where(_ROLLOUTS.c.id == row.id).values(**changes))
    for row in connection.execute(sa.select(_MANIFESTS)).all():
        changes = _without_query_of_manifest(row)
        if changes:
            connection.execute(_MANIFESTS.update().where(_MANIFESTS.c.name == row.name).values(**changes))


def _strip(wanted: dict[str, Any]) -> dict[str, Any] | None:
    """Return a rollout without its query; None where it has none."""
    validate = wanted.get("validate") or {}
    kept = {name: value for name, value in validate.items() if name not in {"query", "max_bytes_billed"}}
    return None if kept == validate else {**wanted, "validate": kept}


def _without_query_of_manifest(row: sa.Row[Any]) -> dict[str, Any]:
    job = row.document.get("job") or {}
    if row.kind == "Rollout":
        stripped = _strip(row.document)
        return {} if stripped is None else {"document": stripped}
    if job.get("kind") != "rollout" or (stripped := _strip(job["request"])) is None:
        return {}
    document = {**row.document, "job": {**job, "request": stripped}}
    had_query = "query" in job["request"]["validate"] and row.paused is None
    return {"document": document, **({"paused": _PAUSED} if had_query else {})}


def _without_query(row: sa.Row[Any], now: datetime) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if (stripped := _strip(row.document)) is not None:
        changes["document"] = stripped
    steps = [step for step in row.steps if step["state"] != "VALIDATING"]
    if len(steps) != len(row.steps):
        changes["steps"] = steps
    if row.state == "VALIDATING":
        changes["state"] = "WATCHING" if row.strategy == "restart" else "UPDATING"
    elif row.state == "ROLLING_BACK" and row.strategy != "restart":
        # Only a query began this second update. The agent carries it out, whatever becomes of the rollout.
        why = f"{(row.error or {}).get('message', '')} The update {row.update_id} takes the stream back.".strip()
        changes |= {
            "state": "FAILED",
            "finished_at": now,
            "error": {"code": "rollout_failed", "message": why},
            "steps": [*steps, {"state": "FAILED", "at": now.isoformat(), "why": why}],
        }
    return changes
