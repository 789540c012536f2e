from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from jobs.files import open_files
from jobs.store import open_store
from model.job import new_job_id
from tests.worlds.bucket import bucket_lake_of

if TYPE_CHECKING:
    from tests.reporting.shops import Shop


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """Return the url of an empty job store, once on each database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'home' / 'jobs.db'}"
    return request.getfixturevalue("make_postgresql_store")()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request, tmp_path):
    """Return the url of a database without any table."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return request.getfixturevalue("postgresql").make_database()


@pytest.fixture
def store(url):
    store = open_store(url)
    yield store
    store.close()


@pytest.fixture
def insert(store):
    """Return what makes a job, PENDING unless it is said otherwise, and gives its id."""

    def insert(request=None, *, actor="ann", **options):
        return store.insert(new_job_id("bf"), "backfill", request or {}, actor=actor, **options).id

    return insert


@pytest.fixture(params=["lake", *(pytest.param(each, marks=pytest.mark.cloud) for each in ("gs", "bigquery"))])
def shop(request, tmp_path):
    """Return a source with its tables, once in each warehouse."""
    # They import what no job store needs.
    from tests.reporting.shops import BigQueryShop, LakeShop
    from tests.worlds.tables import dataset_name

    shop: Shop
    if request.param == "lake":
        opened = nullcontext(str(tmp_path / "lake"))
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
def location(bucket, tmp_path):
    """The location of a folder of the test's own, which is not there yet."""
    return str(tmp_path / "folder") if bucket is None else bucket.location


@pytest.fixture
def files(location):
    return open_files(location)


@pytest.fixture
def reopen(location):
    """Return what opens the folder as another process does, with nothing remembered."""
    return lambda: open_files(location)
