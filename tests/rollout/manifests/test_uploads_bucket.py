"""Manifests in a bucket, whose notifications come twice, late, in any order or never."""

import pytest

from connectors.pubsub.client import PubSub
from connectors.pubsub.object_events import ObjectEvents
from jobs.files import open_files
from local.server import PubSubServer
from model.errors import StoreUnavailableError
from rollout.manifests.uploads import LOOK_SECONDS, RETRY_SECONDS
from tests.rollout.manifests.upload_yard import ANN, SNAPSHOT, Yard
from tests.standin.gcs_notifications import publish_unkindly
from tests.standin.gcs_server import pointing_at, running_gcs
from tests.waiting import wait_until
from tests.worlds.bucket import Fault
from tests.worlds.folders import bucket_folder

TOPIC = "manifest-changes"
LOCATION = "gs://ours/manifests"


class BucketYard(Yard):
    """A bucket that two replicas watch, and what publishes its notifications."""

    def __init__(self, tmp_path, gcs, pubsub, subscription):
        self.gcs = gcs
        self.pubsub = pubsub
        path = pubsub.subscription_path(subscription)
        first, second = (ObjectEvents(pubsub.channel, path, LOCATION) for _ in range(2))
        super().__init__(tmp_path, open_files(LOCATION), (first, second))

    def put(self, name, minute=0):
        self.gcs.put("ours", f"manifests/{name}.yaml", SNAPSHOT.format(name, minute).encode())

    def remove(self, name):
        self.gcs.remove("ours", f"manifests/{name}.yaml")

    def publish(self, seed=0):
        publish_unkindly(self.gcs, self.pubsub, TOPIC, seed=seed)

    def hear(self, seconds=3):
        """Let both replicas hear what was published, and look."""
        for _ in range(5):
            for watcher in self.watchers:
                watcher.hear()
        self.go(seconds)

    def crons(self):
        return {record.name: record.document["cron"].split()[0] for record in self.store.list_manifests()}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with PubSubServer(tmp_path_factory.mktemp("pubsub")) as running:
        yield running


@pytest.fixture
def start(tmp_path, server, monkeypatch):
    yards = []
    with running_gcs("ours") as gcs, PubSub("shop", server.emulator_host) as pubsub, pointing_at(gcs, monkeypatch):
        pubsub.create_topic(TOPIC)

        def start(subscription=f"changes-{tmp_path.name}"):
            yards.append(BucketYard(tmp_path, gcs, pubsub, subscription))
            return yards[-1]

        pubsub.create_subscription(f"changes-{tmp_path.name}", TOPIC)
        yield start
        for yard in yards:
            for watcher in yard.watchers:
                watcher.stop()
            yard.store.close()


@pytest.fixture
def yard(start):
    return start()


@pytest.mark.parametrize("is_versioned", [False, True])
def test_what_lives_is_applied_however_its_events_come(yard, is_versioned):
    if is_versioned:
        yard.gcs.versioned.add("ours")
    yard.go(2)
    for minute in (1, 2, 3):
        yard.put("one", minute)
    yard.put("two", 9)
    for seed in range(3):
        yard.publish(seed)
        yard.hear()
        assert yard.crons() == {"one": "3", "two": "9"}
        assert yard.gone() == set(), "an event of an overwrite says nothing of what is there"
    kinds = {each["eventType"] for each in yard.gcs.notifications if "overwrittenByGeneration" in each}
    assert kinds == {"OBJECT_ARCHIVE" if is_versioned else "OBJECT_DELETE"}
    (first, second) = (yard.store.get_manifest(name) for name in ("one", "two"))
    assert (first.version, second.version) == (1, 1)
    assert sorted(yard.audit()) == [("applyManifest", f"/manifests/{name}", "done") for name in ("one", "two")]
    live = {each.file: each.applied_generation for each in yard.status.list_uploads(principal=ANN)}
    assert live == {
        f"{name}.yaml": yard.gcs.buckets["ours"][f"manifests/{name}.yaml"].e_tag for name in ("one", "two")
    }


def test_an_event_leads_to_a_look_at_once_and_one_that_never_comes_is_made_up_for(yard):
    yard.put("one", 1)
    yard.go(1)
    assert yard.crons() == {"one": "1"}
    yard.put("one", 2)
    yard.go(LOOK_SECONDS - 3)
    assert yard.crons() == {"one": "1"}, "nobody told"
    yard.publish()
    yard.hear(1)
    assert yard.crons() == {"one": "2"}
    yard.put("one", 3)
    yard.go(LOOK_SECONDS + 1)
    assert yard.crons() == {"one": "3"}


def test_an_object_that_was_deleted_leaves_its_manifest_and_an_older_event_does_not_bring_it_back(yard):
    for name in ("keep", "one"):
        yard.put(name)
    yard.go()
    yard.remove("one")
    yard.publish()
    yard.hear(1)
    assert (yard.names(), yard.gone()) == (["keep", "one"], {"one.yaml"})
    yard.publish(seed=7)
    yard.hear()
    assert yard.gone() == {"one.yaml"}
    yard.put("one", 5)
    yard.publish(seed=8)
    yard.hear(1)
    assert (yard.crons(), yard.gone()) == ({"keep": "0", "one": "5"}, set())


def test_a_bucket_that_is_emptied_or_away_or_loses_several_objects_removes_nothing(yard):
    for name in ("keep", "one", "two"):
        yard.put(name)
    yard.go()
    objects = yard.gcs.buckets.pop("ours")
    yard.go(RETRY_SECONDS + 30)
    assert "can't be read, so nothing is changed" in (yard.problem() or "")
    assert yard.gone() == set(), "nobody knows what is there"
    yard.gcs.buckets["ours"] = {"manifests/": objects["manifests/one.yaml"]}
    yard.go(RETRY_SECONDS + 30)
    assert (yard.problem(), len(yard.names()), len(yard.gone())) == (None, 3, 3)
    yard.gcs.buckets["ours"] = objects
    yard.go()
    assert (len(yard.names()), yard.gone(), len(yard.audit())) == (3, set(), 3)
    for name in ("one", "two"):
        yard.remove(name)
        yard.publish()
        yard.hear()
    assert (yard.names(), yard.gone()) == (["keep", "one", "two"], {"one.yaml", "two.yaml"})
    for name in ("one", "two"):
        yard.service.remove(name, principal=ANN)
    assert yard.names() == ["keep"]


def test_without_its_subscription_it_is_listed_all_the_same_and_that_is_shown(start):
    yard = start("nobody-made-it")
    yard.put("one")
    watcher = yard.watchers[0]
    watcher.start()
    wait_until(
        lambda: watcher.loop.problem is not None, seconds=20, why="a turn that can't read events has failed"
    )
    assert "subscription_not_found" in (watcher.loop.problem or ""), "as 'refeed status' shows it"
    assert yard.names() == ["one"]
    yard.pubsub.create_subscription("nobody-made-it", TOPIC)
    wait_until(lambda: watcher.loop.problem is None, seconds=20, why="a turn has read events")


def test_a_look_that_failed_is_made_again_soon_as_its_event_does_not_come_again(yard, monkeypatch):
    yard.go()
    yard.put("one")
    yard.publish()
    yard.hear(0)
    with monkeypatch.context() as patched:
        patched.setattr(yard.store, "note_upload", _be_away)
        with pytest.raises(StoreUnavailableError):
            yard.watchers[0].tick()
    yard.put("one", 5)
    yard.go()
    assert yard.crons() == {"one": "5"}


@pytest.mark.cloud
def test_a_bucket_of_amazon_s_is_listed_every_ten_seconds_and_no_failure_removes_anything(request, tmp_path):
    with bucket_folder("s3", request) as bucket:
        yard = Yard(tmp_path, open_files(bucket.location))
        for name in ("keep", "one"):
            yard.files.write(f"{name}.yaml", SNAPSHOT.format(name, 1).encode())
        yard.go()
        assert yard.names() == ["keep", "one"]

        yard.files.write("one.yaml", SNAPSHOT.format("one", 2).encode())
        bucket.proxy.faults.append(Fault("GET", "list-type", "503", count=1000))
        yard.go(30)
        assert f"can't be read, so nothing is changed: {bucket.location}" in (yard.problem() or "")
        bucket.proxy.faults.clear()
        yard.go()
        crons = {record.name: record.document["cron"].split()[0] for record in yard.store.list_manifests()}
        assert (yard.problem(), crons) == (None, {"keep": "1", "one": "2"})

        for name in ("keep", "one"):
            yard.files.remove(f"{name}.yaml")
        yard.go()
        assert (yard.names(), yard.gone()) == (["keep", "one"], {"keep.yaml", "one.yaml"})
        yard.files.write("keep.yaml", SNAPSHOT.format("keep", 1).encode())
        yard.go()
        assert (yard.names(), yard.gone()) == (["keep", "one"], {"one.yaml"})
        yard.store.close()


def _be_away(*_, **__):
    raise StoreUnavailableError("The job store does not answer.")
