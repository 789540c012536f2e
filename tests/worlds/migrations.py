"""Databases at the schema of an earlier release."""

import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the url of a database without any table."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    made: str = request.getfixturevalue("postgresql").make_database()
    return made


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
    """Keep a row; what a column holds as a document is given as it is."""
    texts = {name: json.dumps(v) if isinstance(v, dict | list) else v for name, v in values.items()}
    query = f"INSERT INTO {table} ({', '.join(texts)}) VALUES ({', '.join(f':{name}' for name in texts)})"
    connection.execute(sa.text(query), texts)
