from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the url of an empty job store, once on each database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'home' / 'jobs.db'}"
    made: str = request.getfixturevalue("make_postgresql_store")()
    return made
