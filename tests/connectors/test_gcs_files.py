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
