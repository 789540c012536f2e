"""The releases of the API's home over HTTP."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from model.principal import PLAN
from rollout.releases import Releases
from tests.rollout.wheels import write_small_release


def test_releases_are_listed_for_those_who_may_read(start_api: Callable[..., Any], tmp_path: Path) -> None:
    api = start_api()
    with api.client() as client:
        assert client.get("/releases").json() == {"installed_version": version("refeed"), "releases": []}
        added = Releases(api.home).add(write_small_release(tmp_path, "7.1"), name="canary")
        (found,) = client.get("/releases").json()["releases"]
    assert (found["name"], found["version"], found["sha256"]) == ("canary", "7.1", added.sha256)
    assert found["formats"] == added.formats.to_json()
    with api.client(api.make_key(PLAN)) as client:
        assert client.get("/releases").status_code == 403
