"""Uploads under a random walk of writers and kills: what is there in the end is applied, each version once."""

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest

from connectors.pubsub.client import PubSub
from jobs.files import open_files
from jobs.store import open_store
from local.server import PubSubServer
from model import failpoint
from rollout.child import Child, Children
from tests.standin.gcs_notifications import publish_unkindly
from tests.standin.gcs_server import GcsServer, pointing_at, running_gcs, settings_at_gcs
from tests.waiting import wait_until
from tests.worlds.processes import plain_environment

pytestmark = [pytest.mark.kills, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).with_name("upload_replica.py")
NAMES = ("alpha", "beta", "gamma", "delta", "epsilon")
GOOD = "kind: Schedule\nname: {}\ncron: {} 3 * * *\njob: {{kind: snapshot, request: {{stream: s}}}}\noverlap: {}\n"
BAD = "kind: Schedule\nname: {}\ncron: {} 3 * *\njob: {}\n"
STEPS = 30


class Place(Protocol):
    """Where people upload to."""

    location: str
    environment: Mapping[str, str]

    def write(self, name: str, content: str) -> None: ...

    def delete(self, name: str) -> None: ...

    def tell(self, seed: int) -> None: ...


class Folder:
    """A folder in which files are written in place, a piece at a time."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self._path = path
        self.location = str(path)
        self.environment: Mapping[str, str] = {}

    def write(self, name: str, content: str) -> None:
        with (self._path / name).open("w") as file:
            for start in range(0, len(content), 40):
                file.write(content[start : start + 40])
                file.flush()
                time.sleep(0.05)

    def delete(self, name: str) -> None:
        (self._path / name).unlink()

    def tell(self, seed: int) -> None:
        """A folder sends no notifications: the service polls it."""


class Bucket:
    """A bucket whose notifications come twice and in any order, those of before among them."""

    location = "gs://ours/manifests"

    def __init__(self, gcs: GcsServer, pubsub: PubSub) -> None:
        self._gcs = gcs
        self._pubsub = pubsub
        pubsub.create_topic("changes")
        pubsub.create_subscription("changes", "changes", ack_deadline_seconds=10)
        self.environment = {"REFEED_MANIFESTS_SUBSCRIPTION": "changes", **settings_at_gcs(gcs.url)}

    def write(self, name: str, content: str) -> None:
        self._gcs.put("ours", f"manifests/{name}", content.encode())

    def delete(self, name: str) -> None:
        self._gcs.remove("ours", f"manifests/{name}")

    def tell(self, seed: int) -> None:
        publish_unkindly(self._gcs, self._pubsub, "changes", seed=seed)


@pytest.fixture(params=["folder", "bucket"])
def place(request, tmp_path, pubsub, monkeypatch) -> Iterator[Place]:
    if request.param == "folder":
        yield Folder(tmp_path / "manifests")
        return
    with running_gcs("ours") as gcs, pointing_at(gcs, monkeypatch):
        yield Bucket(gcs, pubsub)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PubSubServer]:
    with PubSubServer(tmp_path / "pubsub") as running:
        yield running


@pytest.fixture
def pubsub(server: PubSubServer) -> Iterator[PubSub]:
    with PubSub("shop", server.emulator_host) as opened:
        yield opened


class Replicas:
    """Two replicas as processes, each of which comes back when it was killed at a named place."""

    def __init__(self, folder: Path, place: Place, server: PubSubServer, children: Children) -> None:
        self.places = folder / "places"
        self.kills = 0
        self._folder = folder
        self._children = children
        self._environment = plain_environment(
            **place.environment,
            REFEED_HOME=str(folder / "home"),
            REFEED_PROJECT="shop",
            REFEED_MANIFESTS=place.location,
            REFEED_FAILPOINTS=str(self.places),
            PUBSUB_EMULATOR_HOST=server.emulator_host,
        )
        self._running = [self._start(number) for number in range(2)]

    def keep(self) -> None:
        """Start again what was killed."""
        for number, child in enumerate(self._running):
            if not child.is_running:
                assert child.exit_code == -9, child.log_tail()
                self.kills += 1
                self._running[number] = self._start(number)

    def _start(self, number: int) -> Child:
        ready = self._folder / f"ready-{number}-{self.kills}"
        command = [sys.executable, str(SCRIPT), str(ready)]
        log = self._folder / f"replica-{number}.log"
        child = self._children.start(Child(f"replica {number}", command, environment=self._environment, log=log))
        child.wait_until(lambda: ready.exists() or not child.is_running, seconds=60, what="started")
        return child


def walk(place: Place, replicas: Replicas, rng: random.Random) -> dict[str, list[str]]:
    """Upload, spoil and delete at random while replicas are killed; return what each file held, oldest first.

    The content of a file that is not there is empty.
    """
    held: dict[str, list[str]] = {f"{name}.yaml": [""] for name in (*NAMES, "keep")}
    for step in range(STEPS):
        name = rng.choice(NAMES)
        file = f"{name}.yaml"
        what = rng.choices(("good", "bad", "delete"), (6, 2, 2))[0]
        if what == "delete":
            if held[file][-1]:
                place.delete(file)
                held[file].append("")
        else:
            # Each version is another one, as each is to be applied once.
            minute = 2 + step
            more = rng.choice(("skip", "queue")) if what == "good" else "[]"
            held[file].append((GOOD if what == "good" else BAD).format(name, minute, more))
            place.write(file, held[file][-1])
        if rng.random() < 0.5:
            place.tell(step)
        if step % 7 == 3:
            failpoint.arm(replicas.places, rng.choice(("upload.applied", "upload.noted")))
        time.sleep(rng.uniform(0.0, 0.8))
        replicas.keep()
    for file, contents in held.items():
        # One more good one each, so that the end is known of most.
        name = file.removesuffix(".yaml")
        if contents[-1] or name == "keep":
            contents.append(GOOD.format(name, 1, "queue"))
            place.write(file, contents[-1])
    # The others may be mended before anybody has looked at them.
    place.write("spoiled.yaml", BAD.format("spoiled", 1, "[]"))
    place.tell(STEPS)
    return held


def test_what_is_there_in_the_end_is_applied_and_each_version_once(tmp_path, place, server):
    rng = random.Random(20260302)
    with Children() as children:
        replicas = Replicas(tmp_path, place, server, children)
        store = open_store(f"sqlite:///{tmp_path / 'home' / 'jobs.db'}")
        held = walk(place, replicas, rng)
        live = {file.removesuffix(".yaml") for file, contents in held.items() if contents[-1]}
        source = f"upload:{place.location}"
        versions = open_files(place.location).versions()

        def is_settled() -> bool:
            replicas.keep()
            found = {record.name: record.document["cron"] for record in store.list_manifests()}
            noted = {each.file: each for each in store.list_uploads(source)}
            left = {f"{name}.yaml" for name in found.keys() - live}
            return (
                {name: found.get(name) for name in live} == dict.fromkeys(live, "1 3 * * *")
                and {file for file, each in noted.items() if each.gone_at is not None} == left
                and (spoiled := noted.get("spoiled.yaml")) is not None
                and spoiled.fault is not None
                and all(
                    (each := noted.get(f"{name}.yaml")) is not None
                    and (each.fault, each.applied_generation) == (None, versions[f"{name}.yaml"].generation)
                    for name in live
                )
            )

        wait_until(is_settled, seconds=120, every_seconds=0.05, why=f"{sorted(live)} are applied and noted")
        lines = [line for line in store.list_audit(1000) if line.actor == source]
        store.close()
    applied = Counter((line.target, line.why) for line in lines if line.action == "applyManifest")
    assert replicas.kills >= 2, "the walk has to kill"
    assert max(applied.values()) == 1, applied.most_common(3)
    assert {line.outcome for line in lines} == {"done", "refused"}
