import sqlite3
from contextlib import closing
from pathlib import Path

from jobs.store import JobStore, database


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return sorted(connection.iterdump())


def test_a_store_made_from_another_ones_schema_is_as_the_migrations_make_it(tmp_path, request):
    for name in ("first", "copied"):
        JobStore(tmp_path / name).close()
    assert "schema" in database._run_migrations.__module__
    request.getfixturevalue("migrations")
    assert "database" in database._run_migrations.__module__
    JobStore(tmp_path / "migrated").close()
    assert dump(tmp_path / "copied") == dump(tmp_path / "first") == dump(tmp_path / "migrated")
