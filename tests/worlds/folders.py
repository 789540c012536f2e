"""Folders in buckets: of the stand-in for Cloud Storage, and of moto's S3 server."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import pytest

from tests.standin.gcs_server import GcsServer, running_gcs, settings_at_gcs
from tests.worlds.bucket import Proxy, settings_at

# The schemes of buckets, for fixtures with a parameter.
SCHEMES = ["gs", pytest.param("s3", marks=pytest.mark.cloud)]


@dataclass(frozen=True)
class BucketFolder:
    """An empty folder in a bucket of its own; all clients go to the bucket by ``proxy``."""

    location: str
    proxy: Proxy

    def fill(self, names: list[str], content: bytes = b"x") -> None:
        """Put objects without the proxy."""
        folder = self.location.partition("://")[2]
        with httpx.Client(base_url=f"http://{self.proxy.upstream}", timeout=60) as client:
            for name in names:
                client.put(f"/{folder}/{name}", content=content).raise_for_status()


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[GcsServer]:
    """The stand-in for Cloud Storage, one for all tests of the session."""
    with running_gcs() as server:
        yield server


@contextmanager
def bucket_folder(scheme: str, request: pytest.FixtureRequest) -> Iterator[BucketFolder]:
    """Lead this process, and those that it starts, to a new bucket, and give a folder in it."""
    bucket = f"folders-{time.time_ns()}"
    if scheme == "gs":
        server: GcsServer = request.getfixturevalue("gcs_server")
        server.buckets[bucket] = {}
        url = server.url
    else:
        url = request.getfixturevalue("bucket_server")
        httpx.put(f"{url}/{bucket}", timeout=60).raise_for_status()
    proxy = Proxy(url.removeprefix("http://"))
    with proxy.serving() as at, pytest.MonkeyPatch.context() as patch:
        for name, value in (settings_at_gcs(at) if scheme == "gs" else settings_at(at)).items():
            patch.setenv(name, value)
        yield BucketFolder(f"{scheme}://{bucket}/tests/of", proxy)
