from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobs.store import JobStore, open_store
from model.job import new_job_id

if TYPE_CHECKING:
    from tests.reporting.shops import Shop


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


@pytest.fixture(params=["lake", *(pytest.param(each, marks=pytest.mark.cloud) for each in ("bucket", "bigquery"))])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator["Shop"]:
    """Return a source with its tables, once in each warehouse."""
    # They import what no job store needs.
    from tests.reporting.shops import BigQueryShop, LakeShop
    from tests.worlds.tables import dataset_name

    shop: Shop
    if request.param == "lake":
        shop = LakeShop(lake=tmp_path / "lake")
    elif request.param == "bucket":
        shop = LakeShop(lake=request.getfixturevalue("bucket_lake"), folder=tmp_path)
    else:
        shop = BigQueryShop(dataset=dataset_name(), standin=request.getfixturevalue("shared_standin"))
    yield shop
    shop.warehouse.close()
