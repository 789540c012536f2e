"""``refeed release``: what it prints; tests/rollout/test_releases.py has what it does."""

import json

from jobs.store import JobStore
from model.stream_options import StreamKind
from model.stream_record import Wanted
from model.stream_update import UpdateRequest
from rollout.formats import own_formats
from tests.rollout.wheels import write_small_release


def test_a_release_is_added_listed_and_removed(refeed, home, tmp_path):
    wheel = write_small_release(tmp_path, "7.1")
    added = json.loads(refeed("release", "add", str(wheel), "--name", "canary", "--json").out)
    assert (added["name"], added["version"], len(added["sha256"])) == ("canary", "7.1", 64)
    assert json.loads(refeed("release", "list", "--json").out) == [added]
    listed = refeed("release", "list").out
    assert "canary" in listed
    assert added["sha256"][:16] in listed
    store = JobStore(home / "jobs.db")
    store.launch_stream("backup", StreamKind.BACKUP, actor="test", release="canary", options={})
    in_use = refeed("release", "remove", "canary")
    assert in_use.code == 1
    assert "canary is the release of backup" in in_use.err
    # One that has ended gets its release at its next launch.
    store.end_stream("backup", Wanted.CANCELLED, actor="test")
    # An update goes to it.
    store.launch_stream("backup", StreamKind.BACKUP, actor="test")
    store.create_update("backup", UpdateRequest("canary", {}, {}), actor="test")
    assert "canary is the release of backup" in refeed("release", "remove", "canary").err
    store.end_stream("backup", Wanted.CANCELLED, actor="test")
    store.close()
    assert refeed("release", "remove", "canary").out == "canary is removed\n"
    assert json.loads(refeed("release", "list", "--json").out) == []
    none, own = refeed("release", "list").out.splitlines()
    assert (none, own.startswith(f"Refeed {own_formats().version} is installed.")) == ("none", True)
    gone = refeed("release", "remove", "canary")
    assert gone.code == 1
    assert "release_not_found" in gone.err


def test_formats_are_those_of_the_code_that_runs(refeed):
    assert json.loads(refeed("release", "formats", "--json").out) == own_formats().to_json()
    assert "journal" in refeed("release", "formats").out
