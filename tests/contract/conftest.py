from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.store import JobStore, open_store
from model.job import new_job_id


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the url of an empty job store, once on each database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'home' / 'jobs.db'}"
    made: str = request.getfixturevalue("make_postgresql_store")()
    return made


@pytest.fixture
def store(url: str) -> Iterator[JobStore]:
    store = open_store(url)
    yield store
    store.close()


@pytest.fixture
def insert(store: JobStore) -> Callable[..., str]:
    """Return what makes a job, PENDING unless it is said otherwise, and gives its id."""

    def insert(request: dict[str, Any] | None = None, *, actor: str = "ann", **options: Any) -> str:
        return store.insert(new_job_id("bf"), "backfill", request or {}, actor=actor, **options).id

    return insert
