"""A folder in a bucket: its errors name the object that they are about."""

from types import SimpleNamespace

import pytest
from google.api_core import exceptions as api

from connectors.gcs.files import BucketFiles
from model.errors import FolderUnavailableError


def test_an_object_that_can_not_be_removed_is_named_once():
    def refuse(**_):
        raise api.ServiceUnavailable("no")

    bucket = SimpleNamespace(name="b", blob=lambda name: SimpleNamespace(name=name, delete=refuse))
    with pytest.raises(FolderUnavailableError, match=r"^gs://b/jobs/one: "):
        BucketFiles(bucket, "jobs/").remove("one")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("No such object: acme-bucket/jobs/one", FileNotFoundError),
        ("The specified bucket does not exist.", FolderUnavailableError),
    ],
)
def test_an_object_that_is_not_there_is_told_from_a_bucket_that_is_not_whatever_the_bucket_is_called(text, error):
    def refuse(**_):
        raise api.NotFound(f"GET https://storage.googleapis.com/storage/v1/b/acme-bucket/o/jobs%2Fone: {text}")

    blob = SimpleNamespace(name="jobs/one", download_as_bytes=refuse)
    folder = BucketFiles(SimpleNamespace(name="acme-bucket", blob=lambda _: blob), "jobs/")
    with pytest.raises(error):
        folder.read("one")
