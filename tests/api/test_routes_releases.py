"""The releases of agents and of the API's home over HTTP, and launches that name one."""

from importlib.metadata import version

from model.stream import AgentReport
from rollout.releases import Releases
from tests.rollout.wheels import write_small_release


def test_releases_are_listed_with_what_they_read(start_api, tmp_path):
    api = start_api()
    with api.client() as client:
        assert client.get("/releases").json() == {
            "installed_version": version("refeed"),
            "agents": [],
            "releases": [],
        }
        added = Releases(api.home).add(write_small_release(tmp_path, "7.1"), name="canary")
        (found,) = client.get("/releases").json()["releases"]
    assert (found["name"], found["version"], found["sha256"]) == ("canary", "7.1", added.sha256)
    assert found["formats"] == added.formats.to_json()
    assert found["hosts"] == []


def test_a_launch_names_a_release_that_an_agent_has(start_api, tmp_path):
    api = start_api()
    far = Releases(tmp_path / "far")
    far.add(write_small_release(tmp_path, "7.1"))
    body = {"name": "backup", "kind": "backup", "release": "7.2"}
    with api.client() as client:
        nowhere = client.post("/streams", json=body)
        assert (nowhere.status_code, nowhere.json()["code"]) == (404, "release_not_found")
        releases = [release.to_json() for release in far.list_releases()]
        api.store.put_agent_report(AgentReport("a", "mars", str(far.home), "7.0", releases))
        listed = client.get("/releases").json()
        assert [(each["host"], each["installed_version"]) for each in listed["agents"]] == [("mars", "7.0")]
        assert [(each["name"], each["hosts"]) for each in listed["releases"]] == [("7.1", ["mars"])]
        wrong = client.post("/streams", json=body)
        assert "Did you mean 7.1? Installed releases: 7.1." in wrong.json()["detail"]
        assert client.get("/streams").json()["streams"] == []
        made = client.post("/streams", json={**body, "release": "7.1"}, headers={"Idempotency-Key": "k"})
        assert (made.status_code, made.json()["release"]) == (201, "7.1")
        # The same launch again is the same stream, also when its release is gone since.
        api.store.remove_agent_report("a")
        again = client.post("/streams", json={**body, "release": "7.1"}, headers={"Idempotency-Key": "k"})
        assert (again.status_code, again.json()["generation"]) == (201, 1)
