"""Rolling rollouts with real releases: one agrees in the shadow, one differs and changes nothing."""

import hashlib
import json
from contextlib import closing

import pytest
from pydantic import TypeAdapter

from jobs.store import open_store
from model.principal import SCOPES, Principal
from model.stream_record import StreamState
from model.stream_update import UpdateState
from pipeline.shadow_report import ShadowFolder, ShadowReport
from rollout.child import Children
from rollout.manifests.service import ManifestService
from rollout.process import find_instance
from rollout.releases import Releases
from rollout.request import StreamLaunch
from rollout.rollouts import RolloutService
from rollout.service import StreamService
from tests.acceptance.test_pipeline import Plant
from tests.rollout.wheels import build_release
from tests.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(1200)]
TAKEN = """\
            if type(value) is as_it_is and (twin is None or twin not in source):
                values[place] = value
"""
# A release that writes texts in capitals, and reads no message natively, which would leave them as they are.
CHANGES = {
    "pipeline/forms.py": ("FEWEST: Final = 16", "FEWEST: Final = 1_000_000"),
    "pipeline/convert.py": (TAKEN, TAKEN.replace("= value\n", "= value.upper() if as_it_is is str else value\n")),
}
ANN = Principal("ann", frozenset(SCOPES))
NAME = "pipeline-default"
REPORT = TypeAdapter(ShadowReport)
MANIFEST = """
kind: Rollout
name: orders
stream: pipeline-default
from: {release: %s, options: {group: default}}
to: {release: %s, options: {group: default}}
strategy: rolling
validate: {seconds: 8, min_messages: 50, thresholds: {rate_factor: 0}}
"""


class Yard:
    """A plant whose streams an agent runs."""

    def __init__(self, plant, store):
        self.plant = plant
        self.store = store
        self.manifests = ManifestService(store, rollouts=RolloutService(store))
        self.published = 0

    def launch(self):
        for name, kind in (("backup", "backup"), (NAME, "pipeline")):
            StreamService(self.store).launch(StreamLaunch(name=name, kind=kind), principal=ANN)
        for name in ("backup", NAME):
            is_there = lambda n=name: self.store.get_stream(n).state is StreamState.RUNNING  # noqa: E731
            wait_until(is_there, seconds=180, why=f"{name} runs: {self.logs()}")

    def send(self, count):
        """Publish orders and members, each with a dead letter."""
        first, self.published = self.published, self.published + count
        orders = [json.dumps({"id": n, "customer": f"c{n}"}).encode() for n in range(first, first + count)]
        self.plant.send("staging.orders", *orders, b"no JSON")
        self.plant.send("staging.members", *[json.dumps({"tags": ["A"] * (n % 3)}).encode() for n in range(count)])

    def wait_until_staged(self):
        wait_until(
            lambda: self.plant.unacked() == 0, seconds=180, every_seconds=0.05, why=f"all is staged: {self.logs()}"
        )

    def roll(self, before, after, until):
        """Apply a rolling rollout, and wait until then."""
        self.manifests.apply("orders", (MANIFEST % (before, after)).encode(), principal=ANN)

        is_sent = False

        def look():
            nonlocal is_sent
            if not is_sent and self.is_watched():
                # A watch without messages proves nothing.
                self.send(60)
                is_sent = True
            return bool(until(self.rollout))

        wait_until(
            look,
            seconds=300,
            every_seconds=0.05,
            why=f"{self.rollout} {self.store.list_updates(NAME)}: {self.logs()}",
        )
        return self.rollout

    def is_watched(self):
        found = self.store.list_updates(NAME)
        return bool(found) and found[0].state is UpdateState.WATCHING

    @property
    def rollout(self):
        return self.store.list_updates()[0]

    def shadows(self):
        return [folder.shadow_id for folder in ShadowFolder.all_of(self.plant.home)]

    def logs(self):
        found = sorted((self.plant.home / "logs").glob("*.log"))
        return "\n".join(f"--- {path.name}\n" + "\n".join(path.read_text().splitlines()[-8:]) for path in found)


@pytest.fixture
def yard(tmp_path):
    with Children() as children:
        plant = Plant(tmp_path / "home", children, folder=tmp_path)
        for name, changes in (("same", {}), ("capitals", CHANGES)):
            Releases(plant.home).add(build_release(tmp_path / name, f"0.1.0+{name}", changes), name=name)
        plant.publish_schema()
        plant.attach("orders", "members")
        for topic in ("orders", "members"):
            plant.pubsub.create_subscription(f"refeed-pipeline.{topic}", topic, ack_deadline_seconds=10)
        with closing(open_store(plant.settings.job_store)) as store:
            yield Yard(plant, store)


def digest(folder):
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_release_that_agrees_in_the_shadow_takes_over_and_one_that_differs_changes_nothing(yard, tmp_path):
    plant, marker = yard.plant, tmp_path / "hit"
    agents = [plant.start_agent(REFEED_FAILPOINTS=f"shadow.looked=0:{marker}")]
    yard.launch()
    yard.send(60)
    yard.wait_until_staged()
    plan = plant.home / "streams" / NAME / "plan.json"
    before = digest(plant.home / "registry"), plan.read_text()

    # The agent is killed while the shadow runs, which the next one finds by its id.
    yard.roll("null", "same", lambda _: not agents[0].is_running)
    (left,) = yard.shadows()
    shadow = find_instance("the shadow", left)
    assert shadow.is_running
    agents.append(plant.start_agent())
    yard.send(20)
    done = yard.roll("null", "same", lambda found: found.state.is_ended)
    assert done.state is UpdateState.STABLE, f"{done}: {yard.logs()}"
    agreed = REPORT.validate_python(dict(done.figures or {})["shadow"])
    assert (agreed.has_differences, agreed.rows_different, agreed.rows_skipped) == (False, 0, 0)
    assert agreed.messages_compared >= 121
    record = yard.store.get_stream(NAME)
    assert record.release == "same"
    yard.wait_until_staged()

    halted = yard.roll("same", "capitals", lambda found: found.state.is_ended)
    assert halted.state is UpdateState.FAILED, f"{halted}: {yard.logs()}"
    assert halted.error.code == "shadow_differs"
    report = REPORT.validate_python(dict(halted.figures or {})["shadow"])
    assert report.rows_different >= 1
    assert report.rows_missing == 0
    assert {(one.table, one.column) for one in report.examples} == {("staging.orders", "customer")}
    assert all(one.running is not None and one.new == one.running.upper() for one in report.examples)
    # Nothing was touched: the same process runs, and no standby or snapshot was made.
    after = yard.store.get_stream(NAME)
    assert (after.instance_id, after.release, after.state) == (record.instance_id, "same", StreamState.RUNNING)
    (update, *_) = yard.store.list_updates(NAME)
    assert (update.state, update.snapshot_id, update.instance_id) == (UpdateState.FAILED, None, None)
    wait_until(lambda: yard.shadows() == [], seconds=30, why="the shadow is gone")
    assert (digest(plant.home / "registry"), plan.read_text()) == before
    plant.check()
    assert agents[1].stop() == 0
