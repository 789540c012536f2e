"""A lake in a bucket, to which all clients go by a proxy, and query processes."""

import pytest

from connectors.lake.archive import LakeArchive
from connectors.lake.query import QueryLimits
from tests.connectors.lake.bucket_archive import append


@pytest.fixture
def proxy(bucket_proxy):
    return bucket_proxy


@pytest.fixture
def uri(bucket_lake, bucket_proxy):
    return bucket_lake


@pytest.fixture
def archive(uri, proxy):
    found = LakeArchive(uri, "backup.messages")
    found.create()
    append(found, 1, found.take_lease("l"))
    proxy.forget()
    return found


@pytest.fixture
def limits(tmp_path):
    return QueryLimits("200MB", tmp_path / "spill", seconds=60)
