"""The check before an update over HTTP and in the terminal; tests/rollout/test_checking.py has what it finds."""

import json
from socket import gethostname

import pytest

from app.deployment import Deployment
from jobs.store.tables import EVENTS, MANAGED_STREAMS
from model.settings import read_settings
from model.stream_options import StreamKind
from model.stream_record import StreamHome, StreamState
from rollout.formats import own_formats
from rollout.releases import Releases
from streams.folder import StreamFolder
from streams.status import StatusFile, place_of
from tests.rollout.wheels import write_small_release
from tests.worlds.job_store import empty

# A release that reads neither the journal nor the lake's parts of this version, and writes another journal.
NEWER = """
import json as _json
_print = print
def print(text):
    found = _json.loads(text)
    found["state"]["journal"] = {"writes": 99, "reads": [99]}
    found["warehouses"]["lake"]["parts"] = {"writes": 99, "reads": [99]}
    _print(_json.dumps(found))
"""


CHECK = "/streams/backup:update?validate_only=true"


@pytest.fixture(scope="module")
def served(start_api, tmp_path_factory):
    api = start_api()
    wheels = tmp_path_factory.mktemp("wheels")
    Releases(api.home).add(write_small_release(wheels, "0.2.0"))
    Releases(api.home).add(write_small_release(wheels, "9.0.0", extra=NEWER))
    return api


@pytest.fixture
def api(served):
    served.store.launch_stream("backup", StreamKind.BACKUP, actor="ann", options={"slots": 2})
    yield served
    empty(served.store, EVENTS, MANAGED_STREAMS)


def check(api, **wanted):
    with api.client() as client:
        answer = client.post(CHECK, json=wanted)
    assert answer.status_code == 200, answer.text
    return answer.json()


def run(api, host, home, project="refeed-local", **settings):
    """What an agent writes when it has started the stream, and the stream of where it reads and writes."""
    api.store.take_streams("agent", limit=1, lease_seconds=60)
    folder = StreamFolder.of(home, "backup", "in_1")
    folder.run.mkdir(parents=True, exist_ok=True)
    place = StreamHome(host, str(folder.state))
    api.store.report_stream("backup", "agent", StreamState.RUNNING, instance_id="in_1", home=place)
    with Deployment(read_settings({"REFEED_HOME": str(home), **settings})) as deployment:
        status = StatusFile(folder.status, instance="in_1")
        status.note(place=place_of(project, deployment.warehouse))
        status.write(state="running")


def test_an_identical_rebuild_passes_and_options_are_shown_as_changes(api):
    run(api, gethostname(), api.home)
    assert check(api) == {"passes": True, "reasons": [], "changes": [], "has_way_back": True, "no_way_back": []}
    changed = check(api, release="0.2.0", options={"slots": 1, "batch_seconds": None})
    assert changed["passes"]
    assert changed["changes"][1:] == ["slots changes from 2 to 1"]
    assert f"version {own_formats().version} becomes 0.2.0" in changed["changes"]


def test_every_reason_is_told_at_once_with_what_to_do_and_without_a_way_back(api):
    run(api, gethostname(), api.home, project="another", REFEED_LAKE=str(api.home / "pond"))
    found = check(api, release="9.0.0", mapping={"orders": "sales"})
    assert not found["passes"]
    remedies = {each["code"]: each["remedy"] for each in found["reasons"]}
    assert remedies == {
        "format_unreadable": "drain_and_relaunch",
        "project_changed": "drain_and_relaunch",
        "lake_changed": "drain_and_relaunch",
        "mapping_invalid": "map",
    }
    assert {each["about"] for each in found["reasons"] if each["code"] == "format_unreadable"} == {
        "formats.journal",
        "formats.lake parts",
    }
    assert all(each["advice"] for each in found["reasons"])
    (project,) = [each for each in found["reasons"] if each["code"] == "project_changed"]
    assert "from another to refeed-local" in project["message"]
    assert not found["has_way_back"]
    assert f"{own_formats().version} can't read the journal that 9.0.0 writes" in found["no_way_back"]


def test_a_machine_that_shares_the_home_checks_what_another_one_runs(api, client, tmp_path):
    run(api, "another-machine", api.home)
    assert check(api)["passes"]
    # Its state is where nobody here sees it.
    run(api, "another-machine", tmp_path / "far")
    (api.home / "streams" / "backup" / "instances" / "in_1").rename(tmp_path / "gone")
    answer = client.post(CHECK, json={})
    assert (answer.status_code, answer.json()["code"]) == (409, "stream_elsewhere")
    assert f"{tmp_path / 'far' / 'streams' / 'backup'} on another-machine" in answer.json()["detail"]


def test_what_is_asked_wrongly_is_refused(client):
    for path, body, status, code in (
        ("bakcup", {}, 404, "stream_not_found"),
        ("backup", {"release": "0.2.1"}, 404, "release_not_found"),
        ("backup", {"options": {"slot": 1, "batch_bytes": 1}}, 422, "request_invalid"),
        ("backup", {"mapping": ["orders"]}, 422, "request_invalid"),
        ("backup", {"validate_second": 3}, 422, "request_invalid"),
    ):
        answer = client.post(f"/streams/{path}:update?validate_only=true", json=body)
        assert (answer.status_code, answer.json()["code"]) == (status, code), body
    answer = client.post(CHECK, json={"options": {"slot": 1, "batch_bytes": 1}})
    assert {each["pointer"] for each in answer.json()["errors"]} == {"/options/slot", "/options/batch_bytes"}


def test_the_terminal_prints_the_same_and_its_exit_code_says_whether_it_passes(api, refeed):
    run(api, gethostname(), api.home)
    code, text, _ = refeed("update", "backup", "--dry-run", "--set", "slots=1")
    assert (code, text.splitlines()) == (
        0,
        ["The update may begin.", "  slots changes from 2 to 1", "The update can be rolled back."],
    )
    code, text, _ = refeed("update", "backup", "--dry-run", "--release", "9.0.0", "--mapping", "orders=")
    assert code == 1
    assert "Add a mapping of this source to the update, or correct the registry." in text
    assert "The update can't be rolled back:" in text
    code, text, _ = refeed("update", "backup", "--dry-run", "--release", "9.0.0", "--mapping", "orders=", "--json")
    assert (code, json.loads(text)) == (1, check(api, release="9.0.0", mapping={"orders": None}))
    for arguments, words in (
        (("backup", "--set", "group=shop"), "has no option group"),
        (("backup", "--release", "9"), "release_not_found"),
        (("nobody",), "stream_not_found"),
    ):
        code, _, said = refeed("update", "--dry-run", *arguments)
        assert (code, words in said) == (4, True), said
