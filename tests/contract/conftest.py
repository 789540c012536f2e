from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobs.files import Files, open_files
from jobs.store import JobStore, open_store
from model.job import new_job_id
from tests.worlds.bucket import bucket_lake_of
from tests.worlds.folders import BucketFolder

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


@pytest.fixture(params=["lake", *(pytest.param(each, marks=pytest.mark.cloud) for each in ("gs", "bigquery"))])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator["Shop"]:
    """Return a source with its tables, once in each warehouse."""
    # They import what no job store needs.
    from tests.reporting.shops import BigQueryShop, LakeShop
    from tests.worlds.tables import dataset_name

    shop: Shop
    if request.param == "lake":
        opened: AbstractContextManager[str] = nullcontext(str(tmp_path / "lake"))
    elif request.param == "bigquery":
        opened = nullcontext("")
    else:
        opened = bucket_lake_of(request.param, request)
    with opened as lake:
        shop = (
            LakeShop(lake=lake, folder=tmp_path / "lake")
            if lake
            else BigQueryShop(dataset=dataset_name(), standin=request.getfixturevalue("shared_standin"))
        )
        yield shop
        shop.warehouse.close()


@pytest.fixture
def location(bucket: BucketFolder | None, tmp_path: Path) -> str:
    """The location of a folder of the test's own, which is not there yet."""
    return str(tmp_path / "folder") if bucket is None else bucket.location


@pytest.fixture
def files(location: str) -> Files:
    return open_files(location)


@pytest.fixture
def reopen(location: str) -> Callable[[], Files]:
    """Return what opens the folder as another process does, with nothing remembered."""
    return lambda: open_files(location)
