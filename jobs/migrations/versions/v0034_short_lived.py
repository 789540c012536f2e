"""One table of what ends by itself, and one of reports."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import DOCUMENT, NUMBER, TEXT, Moment

revision = "0034"
down_revision = "0033"

Row = Mapping[str, Any]


def upgrade() -> None:
    """Make both tables, and move every row; an agent of before ends with its next report."""
    short_lived = op.create_table(
        "short_lived",
        sa.Column("kind", TEXT, primary_key=True),
        sa.Column("key", TEXT, primary_key=True),
        sa.Column("document", DOCUMENT, nullable=False),
        sa.Column("expires_at", Moment, nullable=False),
        sa.Column("revision", NUMBER, nullable=False),
        sa.Column("held_until", Moment),
    )
    op.create_index("ix_short_lived_expires_at", "short_lived", ["expires_at"])
    _move(short_lived, "plan", "plans", "id")
    _move(short_lived, "session", "sessions", "digest")
    _move(short_lived, "user_session", "user_sessions", "digest")
    _move(short_lived, "sign_in", "used_sign_ins", "digest")
    _move(short_lived, "create", "creates", "key")
    reports = op.create_table(
        "reports",
        sa.Column("kind", TEXT, primary_key=True),
        sa.Column("name", TEXT, primary_key=True),
        sa.Column("instance", TEXT, primary_key=True),
        sa.Column("reported_at", Moment, nullable=False),
        sa.Column("report", DOCUMENT, nullable=False),
    )
    _copy(reports, "streams", lambda row: _report_of(row, "stream", row["name"], row["instance"]))
    _copy(reports, "stream_agents", lambda row: _report_of(row, "agent", row["agent"], ""))


def _move(table: sa.Table, kind: str, name: str, key: str) -> None:
    def values_of(row: Row) -> dict[str, Any]:
        document = _document_of(row, {"renewing_until", "held_until"})
        return {
            "kind": kind,
            "key": row[key],
            "document": document if kind != "sign_in" else {},
            "expires_at": row.get("expires_at", row.get("held_until")),
            "revision": row.get("revision", 0),
            "held_until": row.get("renewing_until"),
        }

    _copy(table, name, values_of)


def _report_of(row: Row, kind: str, name: str, instance: str) -> dict[str, Any]:
    key = {"kind": kind, "name": name, "instance": instance}
    return {**key, "reported_at": row["reported_at"], "report": _document_of(row, {"reported_at"})}


def _document_of(row: Row, without: set[str]) -> dict[str, Any]:
    found = {name: value for name, value in row.items() if name not in without}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in found.items()}


def _copy(table: sa.Table, name: str, values_of: Callable[[Row], dict[str, Any]]) -> None:
    connection = op.get_bind()
    before = sa.Table(name, sa.MetaData(), *_moments(name), autoload_with=connection)
    for row in connection.execute(sa.select(before)).mappings().all():
        connection.execute(table.insert().values(**values_of(dict(row))))
    op.drop_table(name)


def _moments(name: str) -> list[sa.Column[Any]]:
    """Return the columns that hold times: on SQLite they are texts."""
    columns = {
        "plans": ("created_at", "expires_at"),
        "sessions": ("created_at", "expires_at"),
        "user_sessions": ("created_at", "expires_at", "renew_at", "token_expires_at", "renewing_until"),
        "used_sign_ins": ("expires_at",),
        "creates": ("held_until",),
    }
    return [sa.Column(each, Moment) for each in columns.get(name, ("reported_at",))]
