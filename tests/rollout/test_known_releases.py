"""The releases of all agents: as each reports them, by its machine, while it lives."""

from socket import gethostname

import pytest

from model.errors import ReleaseNotFoundError
from model.stream import AgentReport
from rollout.known_releases import KnownReleases
from rollout.releases import Releases
from tests.rollout.wheels import write_small_release


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    Releases(folder / "home").add(write_small_release(folder, "0.2.0"))
    return folder / "home"


@pytest.fixture
def known(store, home):
    return KnownReleases(store, Releases(home))


def release(home, name, sha256=None):
    (own,) = Releases(home).list_releases()
    return {**own.to_json(), "name": name, "sha256": sha256 or name}


def report(store, host, home, *releases):
    store.put_agent_report(AgentReport(host, host, str(home), "0.1.0", releases))


def shown(known):
    return [(each["name"], each["hosts"]) for each in known.list_releases()]


def test_releases_of_every_agent_are_known_by_the_machines_that_have_them(store, known, home):
    assert shown(known) == [("0.2.0", [])], "no agent runs"
    (own,) = Releases(home).list_releases()
    for host in ("venus", "mars"):
        report(store, host, "/far", own.to_json(), release(home, "0.3.0"))
    assert shown(known) == [("0.2.0", ["mars", "venus"]), ("0.3.0", ["mars", "venus"])]
    # What was added to the home that an agent here shares counts before its next report.
    report(store, gethostname(), home)
    assert shown(known)[0] == ("0.2.0", sorted(["mars", "venus", gethostname()]))


def test_the_same_name_with_another_wheel_is_another_release(store, known, home):
    report(store, "mars", "/far", release(home, "0.2.0", "another"))
    found = known.list_releases()
    assert [(each["name"], each["hosts"]) for each in found if each["sha256"] == "another"] == [
        ("0.2.0", ["mars"])
    ]
    assert [each["hosts"] for each in found if each["sha256"] != "another"] == [[]]


def test_a_release_that_no_agent_has_is_not_found_and_those_there_are_are_named(store, known, home):
    known.check_name(None)
    known.check_name("0.2.0")
    with pytest.raises(ReleaseNotFoundError, match=r"No agent runs, and this home does not have a release 0\.9\."):
        known.check_name("0.9")
    report(store, "mars", "/far")
    with pytest.raises(
        ReleaseNotFoundError, match=r"No agent has a release 0.2.0\. There is only the installed version"
    ):
        known.check_name("0.2.0")
    report(store, "mars", "/far", release(home, "0.3.0"))
    known.check_name("0.3.0")
    with pytest.raises(ReleaseNotFoundError, match=r"Did you mean 0.3.0\? Installed releases: 0.3.0\.") as refused:
        known.check_name("0.3.1")
    assert refused.value.details["releases"] == ["0.3.0"]
