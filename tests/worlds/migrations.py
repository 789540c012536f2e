"""Databases at the schema of an earlier release."""

import json
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

ROOT = Path(__file__).parents[2]
AT: Final = "2026-01-02T03:04:05+00:00"


def migrate_to(empty: str, revision: str) -> sa.Engine:
    """Return a database as the Refeed of that revision left it."""
    engine = sa.create_engine(empty.replace("postgresql:", "postgresql+psycopg:"))
    config = Config()
    config.set_main_option("script_location", str(ROOT / "jobs" / "migrations"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    return engine


def insert(connection: sa.Connection, table: str, **values: Any) -> None:
    """Keep a row as that revision had it."""
    texts = {name: json.dumps(v) if isinstance(v, dict | list) else v for name, v in values.items()}
    query = f"INSERT INTO {table} ({', '.join(texts)}) VALUES ({', '.join(f':{name}' for name in texts)})"
    connection.execute(sa.text(query), texts)


def insert_stream(connection: sa.Connection, name: str, wanted: str = "RUNNING", state: str = "RUNNING") -> None:
    """Keep a stream in its second generation."""
    stream = {"kind": "backup", "generation": 2, "options": {}, "wanted": wanted, "version": 3}
    times = {"drain_timeout_seconds": 60.0, "state": state, "changed_at": AT}
    insert(connection, "managed_streams", name=name, **stream, **times, created_by="ann", created_at=AT)
