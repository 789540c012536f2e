"""A backup as a record that agents look after, with releases of another code beside it."""

from collections import Counter
from contextlib import closing

import pytest

from jobs.store import JobStore, open_store
from model.principal import STREAMS_OPERATE, STREAMS_READ, Principal
from model.stream_record import StreamState
from model.stream_update import StreamUpdate, UpdateRequest, UpdateState
from rollout.child import Child
from rollout.process import StreamProcess
from rollout.releases import Releases
from rollout.request import StreamLaunch
from rollout.service import StreamService
from rollout.updates import UpdateService
from streams.folder import StreamFolder, read_newest_status
from tests.acceptance.conftest import Backyard
from tests.rollout.wheels import build_release
from tests.waiting import wait_until

ANN = Principal("ann", frozenset({STREAMS_READ, STREAMS_OPERATE}))
# In the workers: what they make of a message. In the driver: what it counts.
ROWS = """\
        return self._write(pa.Table.from_batches(batches, schema=FILE_SCHEMA), now)
"""
OTHER_ROWS = """\
        table = pa.Table.from_batches(batches, schema=FILE_SCHEMA)
        data = pc.binary_join_element_wise(table["data"], b"by the release", b" ")
        place = table.schema.get_field_index("data")
        return self._write(table.set_column(place, FILE_SCHEMA.field("data"), data), now)
"""
COUNT = '        totals["replays"] += sum('
CHANGES = {
    "connectors/lake/files.py": (ROWS, OTHER_ROWS),
    "backup/archiving.py": (COUNT, f'        totals["by_the_release"] += len(outputs)\n{COUNT}'),
}
# It commits, and ends before it acknowledges: everything that it had comes again.
CRASH = {"backup/archiving.py": (COUNT, f'        raise RuntimeError("The release is broken.")\n{COUNT}')}


class Rollout:
    """A backyard's stream by the service's calls, with agents and releases."""

    def __init__(self, yard: Backyard, store: JobStore, name: str = "backup") -> None:
        self.yard = yard
        self.store = store
        self.name = name
        self.streams, self.updates = StreamService(store), UpdateService(store)

    def start_agent(self, **environment: str) -> Child:
        self.agent = self.yard.start_agent(**environment)
        return self.agent

    def launch(self, kind: str = "backup", **environment: str) -> None:
        """Start an agent, in ``environment`` too, and launch the stream."""
        self.start_agent(**environment)
        self.streams.launch(StreamLaunch(name=self.name, kind=kind), principal=ANN)
        self.wait_for_stream(StreamState.RUNNING)

    def update(self, release: str | None, **given: float) -> StreamUpdate:
        request = UpdateRequest(release, {}, {}, **{"validate_seconds": 15, "min_messages": 50} | given)
        return self.updates.create(self.name, request, principal=ANN)

    def living(self) -> StreamUpdate:
        return self.store.list_updates(self.name)[0]

    def wait_for_update(self, *states: UpdateState) -> StreamUpdate:
        def is_there() -> bool:
            found = self.living()
            assert not found.state.is_ended or found.state in states, f"{found}: {self.logs()}"
            return found.state in states

        wait_until(is_there, seconds=240, why=f"{states}: {self.agent.log_tail(40)}")
        return self.living()

    def wait_for_stream(self, state: StreamState) -> None:
        is_there = lambda: self.store.get_stream(self.name).state is state  # noqa: E731
        wait_until(is_there, seconds=180, why=f"it is {state}: {self.logs()}")

    def wait_until_archived(self) -> None:
        wait_until(
            lambda: self.yard.unacked() == 0,
            seconds=180,
            every_seconds=0.05,
            why=f"all is acknowledged: {self.logs()}",
        )

    def logs(self) -> str:
        found = sorted((self.yard.home / "logs").glob("*.log"))
        ends = [f"--- {path.name}\n" + "\n".join(path.read_text().splitlines()[-15:]) for path in found]
        return "\n".join(ends)

    def totals(self) -> dict[str, float]:
        """Return what the stream that runs says of itself."""
        return dict((read_newest_status(self.yard.home, self.name) or {})["totals"])

    def drain(self) -> None:
        self.streams.drain(self.name, principal=ANN, timeout_seconds=60)
        self.wait_for_stream(StreamState.DRAINED)
        assert self.agent.stop() == 0
        assert self.processes() == []

    def processes(self) -> list[StreamProcess]:
        folders = (self.yard.home / "streams" / self.name / "instances").glob("*")
        found = [StreamProcess.find(StreamFolder.of(self.yard.home, self.name, each.name)) for each in folders]
        return [each for each in found if each is not None]

    def check_each_message_once(self) -> Counter[str]:
        """Nothing is lost, nothing is there twice; return how many rows each release has written."""
        rows = self.yard.archived()
        twice = {key: n for key, n in Counter((row["topic"], row["message_id"]) for row in rows).items() if n > 1}
        assert twice == {}
        assert {(row["topic"], row["message_id"]) for row in rows} == set(self.yard.published)
        writers: Counter[str] = Counter()
        for row in rows:
            data = self.yard.published[row["topic"], row["message_id"]].data
            is_changed = row["data"] == data + b" by the release"
            assert is_changed or row["data"] == data
            writers["new" if is_changed else "old"] += 1
        return writers


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    changes = {"changed": CHANGES, "broken": CRASH}
    return {name: build_release(folder / name, f"0.1.0+{name}", made) for name, made in changes.items()}


@pytest.fixture
def rollout(backyard, wheels):
    for name, wheel in wheels.items():
        Releases(backyard.home).add(wheel, name=name)
    with closing(open_store(backyard.settings.job_store)) as store:
        backyard.attach("orders")
        backyard.publish("orders", 200)
        found = Rollout(backyard, store)
        yield found
        for process in found.processes():
            process.kill()
