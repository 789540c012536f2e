"""Folders in buckets: of the stand-in for Cloud Storage, and of moto's S3 server."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import pytest

from tests.worlds.bucket import Proxy, at_bucket


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


@contextmanager
def bucket_folder(scheme: str, request: pytest.FixtureRequest) -> Iterator[BucketFolder]:
    """Lead this process, and those that it starts, to a new bucket, and give a folder in it."""
    bucket = f"folders-{time.time_ns()}"
    url = request.getfixturevalue(f"{scheme}_server")
    httpx.put(f"{url}/{bucket}", timeout=60).raise_for_status()
    proxy = Proxy(url.removeprefix("http://"))
    with proxy.serving() as at, at_bucket(at):
        yield BucketFolder(f"{scheme}://{bucket}/tests/of", proxy)
