"""Rollouts are updates that a manifest asked for: each moves to the table of jobs, under way or ended."""

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import DOCUMENT, LABELS, TEXT, Moment

revision = "0027"
down_revision = "0026"

_ROLLOUTS = sa.table(
    "rollouts",
    *(sa.column(name, TEXT) for name in ("id", "manifest", "digest", "stream", "strategy", "state")),
    *(sa.column(name, TEXT) for name in ("reverses", "unwanted_by", "update_id", "created_by")),
    *(sa.column(name, DOCUMENT) for name in ("document", "from_side", "to_side", "steps", "compared", "error")),
    *(sa.column(name, Moment) for name in ("created_at", "changed_at", "finished_at")),
    sa.column("generation", sa.Integer),
    sa.column("is_trusted", sa.Boolean),
)
_JOBS = sa.table(
    "jobs",
    *(sa.column(name, TEXT) for name in ("id", "kind", "state", "subject", "step", "created_by")),
    *(sa.column(name, DOCUMENT) for name in ("request", "progress", "memory", "error")),
    *(sa.column(name, Moment) for name in ("created_at", "started_at", "finished_at", "step_began_at")),
    *(sa.column(name, sa.Integer) for name in ("epoch", "version", "attempt")),
    sa.column("labels", LABELS),
)
_EVENTS = sa.table(
    "events",
    *(sa.column(name, TEXT) for name in ("job_id", "actor", "what", "why", "type")),
    sa.column("at", Moment),
    sa.column("fields", DOCUMENT),
)
_STREAMS = sa.table(
    "managed_streams",
    *(sa.column(name, TEXT) for name in ("name", "wanted", "state")),
    sa.column("generation", sa.Integer),
)
_LINES = sa.table(
    "stream_events",
    *(sa.column(name, TEXT) for name in ("stream", "type", "actor")),
    *(sa.column(name, sa.Integer) for name in ("number", "generation")),
)
# The steps of a restart, and of a job that goes on from each; where the rollout stopped its stream.
_STEPS = {
    "PENDING": "check",
    "DRAINING": "stop",
    "STARTING": "start",
    "WATCHING": "watch",
    "ROLLING_BACK": "back_stop",
    "STARTING_BACK": "back_start",
}
_STOPS = {"DRAINING", "ROLLING_BACK"}
_BACK = {"ROLLING_BACK", "STARTING_BACK"}
_BEFORE = {"check", "shadow", "snapshot", "stand_by"}
_OUTCOMES = {"STABLE": "STABLE", "REFUSED": "REFUSED", "CANCELLED": "ROLLED_BACK", "ROLLED_BACK": "ROLLED_BACK"}
_UNWANTED = "update_unwanted"
# Which process ran before is in no record of a rollout.
_UNKNOWN = "unknown"


def upgrade() -> None:
    """Move the rollouts: the update of one becomes the rollout, under its id, and the others get a job."""
    connection, now = op.get_bind(), datetime.now(UTC)
    columns = [each["name"] for each in sa.inspect(connection).get_columns("jobs")]
    for row in connection.execute(sa.select(_ROLLOUTS).order_by(_ROLLOUTS.c.id)).all():
        query = sa.select(_JOBS).where(_JOBS.c.id == row.update_id)
        update = None if row.update_id is None else connection.execute(query).first()
        if update is None:
            connection.execute(_JOBS.insert().values(**_job(connection, row, now)))
            _add_steps(connection, row)
        else:
            _rename(connection, columns, update.id, row.id)
            changes = _joined(row, update, now)
            connection.execute(_JOBS.update().where(_JOBS.c.id == row.id).values(**changes))
    op.drop_table("rollouts")


def _labels(row: sa.Row[Any]) -> dict[str, str]:
    return {"manifest": row.manifest, **({} if row.reverses is None else {"reverses": row.reverses})}


def _asked(row: sa.Row[Any]) -> dict[str, Any]:
    known = {name: getattr(row, name) for name in ("manifest", "digest", "document", "reverses")}
    return {**known, "generation": None}


def _fault(row: sa.Row[Any]) -> dict[str, Any] | None:
    """Return why a rollout did not go on, in the words of an update."""
    if row.unwanted_by is not None:
        return {"code": _UNWANTED, "message": f"{row.unwanted_by} cancelled the rollout.", "logs": {}}
    if row.error is None:
        return None
    return {**row.error, "code": row.error["code"].replace("rollout_", "update_"), "logs": {}}


def _rename(connection: sa.Connection, columns: list[str], old: str, new: str) -> None:
    """Give a job another id; it has no key, since a rollout made it."""
    kept = ", ".join(name for name in columns if name not in {"id", "idempotency_key"})
    copy = f"INSERT INTO jobs (id, {kept}) SELECT :new, {kept} FROM jobs WHERE id = :old"  # noqa: S608
    connection.execute(sa.text(copy), {"old": old, "new": new})
    connection.execute(_EVENTS.update().where(_EVENTS.c.job_id == old).values(job_id=new))
    connection.execute(_JOBS.delete().where(_JOBS.c.id == old))


def _joined(row: sa.Row[Any], update: sa.Row[Any], now: datetime) -> dict[str, Any]:
    """Return what an update that carries out a rollout has more when it is the rollout."""
    memory, wanted = dict(update.memory), dict(update.request["update"])
    if row.is_trusted:
        wanted["is_trusted"] = True
        if update.state == "SUCCEEDED":
            # To what was STABLE before nothing was to be proven.
            memory.pop("error", None)
    changes: dict[str, Any] = {}
    if row.unwanted_by is not None:
        memory["unwanted_by"] = row.unwanted_by
    if row.unwanted_by is not None and update.finished_at is None and "error" not in memory:
        # Somebody cancelled it, and its update has not heard of that.
        fault = memory["error"] = _fault(row)
        if update.step in _BEFORE:
            memory["outcome"] = "ROLLED_BACK"
            error = {name: fault[name] for name in ("code", "message")} if fault else None
            changes = {"state": "CANCELLED", "finished_at": now, "error": error}
        elif update.step == "watch" and (memory.get("checked") or {}).get("has_way_back"):
            changes = {"step": "back_stand_by", "step_began_at": now, "attempt": 1}
    request = {**update.request, "update": wanted, "rollout": _asked(row)}
    version = update.version + 1
    return {"request": request, "memory": memory, "labels": _labels(row), "version": version, **changes}


def _job(connection: sa.Connection, row: sa.Row[Any], now: datetime) -> dict[str, Any]:
    """Return the job of a rollout that no update carries out."""
    fault, state, finished_at = _fault(row), row.state, row.finished_at
    stream = connection.execute(sa.select(_STREAMS).where(_STREAMS.c.name == row.stream)).one()
    if finished_at is None and (why := _abandoned(connection, row, stream)):
        state, finished_at = "FAILED", now
        fault = {"code": "update_abandoned", "message": why, "logs": {}}
    step = _STEPS.get(state)
    if finished_at is None and state in _STOPS:
        # The agent drains what its job stops, whatever the record wanted of it so far.
        changes = {"wanted": "RUNNING", **({"state": "STARTING"} if stream.state == "DRAINED" else {})}
        connection.execute(_STREAMS.update().where(_STREAMS.c.name == row.stream).values(**changes))
    elif row.unwanted_by is not None and state in {"STARTING", "WATCHING"}:
        step = "back_stop"
    memory: dict[str, Any] = {
        "figures": row.compared and {k: v for k, v in row.compared.items() if k in {"before", "after"}},
        "instance_id": (row.compared or {}).get("instance_id"),
        "unwanted_by": row.unwanted_by,
        "error": fault if finished_at is not None or state in _BACK or row.unwanted_by is not None else None,
        "outgoing_id": _UNKNOWN if any(each["state"] == "DRAINING" for each in row.steps) else None,
    }
    if state in {"STARTING", "WATCHING", "HALTED", *_BACK}:
        memory["handed_over_at"] = _time_of(row, "STARTING")
    if finished_at is not None:
        memory |= {"outcome": _OUTCOMES.get(state, "FAILED"), "why": row.steps[-1]["why"]}
    is_stable, is_unwanted = state == "STABLE", fault is not None and fault["code"] == _UNWANTED
    job_state = "PENDING" if state == "PENDING" else "RUNNING"
    if finished_at is not None:
        job_state = "SUCCEEDED" if is_stable else "CANCELLED" if is_unwanted else "FAILED"
    error = fault and {name: fault[name] for name in ("code", "message")}
    return {
        "id": row.id,
        "kind": "update",
        "state": job_state,
        "subject": f"stream/{row.stream}",
        "step": step or "check",
        "step_began_at": None if state == "PENDING" else now if step == "back_stop" else row.changed_at,
        "attempt": 0 if state == "PENDING" else 1,
        "request": {
            "stream": row.stream,
            "generation": stream.generation,
            "update": _wanted(row),
            "from_release": row.from_side["release"],
            "from_options": row.from_side["options"],
            "rollout": _asked(row),
        },
        "memory": {name: value for name, value in memory.items() if value is not None},
        "labels": _labels(row),
        "error": error if finished_at is not None and not is_stable else None,
        "created_by": row.created_by,
        "created_at": row.created_at,
        "started_at": None if state == "PENDING" else row.created_at,
        "finished_at": finished_at,
        "progress": {},
        "epoch": 0,
        "version": 1,
    }


def _wanted(row: sa.Row[Any]) -> dict[str, Any]:
    """Return the update that a rollout asks for, as an update's request has it."""
    document, before, after = row.document, row.from_side["options"], row.to_side["options"]
    validate, is_restart = document.get("validate") or {}, row.strategy == "restart"
    names = {*before, *after} - (set() if is_restart else {"mapping"})
    known, mapping = before.get("mapping") or {}, after.get("mapping") or {}
    renamed = {old: new for old, new in mapping.items() if known.get(old) != new}
    wanted: dict[str, Any] = {
        "release": row.to_side["release"],
        "options": {name: after.get(name) for name in sorted(names) if before.get(name) != after.get(name)},
        "mapping": {} if is_restart else renamed,
        "validate_seconds": validate.get("seconds", 120.0),
        "min_messages": validate.get("min_messages", 100),
        "bounds": validate.get("thresholds") or {},
        "when_inconclusive": validate.get("when_inconclusive", "fail"),
        "is_halting": document.get("on_failure") == "halt",
        "is_trusted": bool(row.is_trusted),
        "strategy": "restart" if is_restart else "hand_over",
    }
    if row.strategy == "rolling" and not row.is_trusted:
        wanted["shadow"] = {"may_differ": validate.get("may_differ") or []}
    return wanted


def _abandoned(connection: sa.Connection, row: sa.Row[Any], stream: sa.Row[Any]) -> str | None:
    """Return what somebody else did to the stream of a rollout; None where nobody did."""
    if row.generation is not None and stream.generation != row.generation:
        return f"{row.stream} was launched again while the rollout was {row.state}."
    is_drained = row.state in _STOPS and stream.wanted == "DRAINED"
    if is_drained:
        lines = _LINES.c
        query = sa.select(lines.actor).where(lines.stream == row.stream, lines.type == "wanted")
        query = query.where(lines.generation == stream.generation).order_by(lines.number.desc()).limit(1)
        is_drained = connection.scalar(query) in (None, f"rollout:{row.manifest}")
    is_own = is_drained if row.state in _STOPS else stream.wanted == "RUNNING"
    return None if is_own else f"Somebody requested {stream.wanted} for {row.stream} while it was {row.state}."


def _time_of(row: sa.Row[Any], state: str) -> str:
    """Return when a rollout entered a state; the time of its last change where it never did."""
    times: list[str] = [each["at"] for each in row.steps if each["state"] == state]
    return times[0] if times else row.changed_at.isoformat()


def _add_steps(connection: sa.Connection, row: sa.Row[Any]) -> None:
    """Keep the steps of a rollout as lines of its job's history."""
    line = {"job_id": row.id, "actor": row.created_by, "why": None, "fields": {}}
    created = {**line, "at": row.created_at, "what": "created", "type": "created"}
    connection.execute(_EVENTS.insert().values(**created))
    for each in row.steps[1:]:
        step = _STEPS.get(each["state"])
        if step is not None:
            at, fields = datetime.fromisoformat(each["at"]), {"step": step, "attempt": 1}
            begun = {"at": at, "what": f"began {step}", "why": each["why"], "type": "step", "fields": fields}
            connection.execute(_EVENTS.insert().values(**{**line, **begun, "actor": "agent"}))
