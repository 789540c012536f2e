"""A service of two replicas and two agents in this process, over a real store and by a clock that jumps."""

import base64
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Self
from zoneinfo import ZoneInfo

import httpx
import sqlalchemy as sa

from backfill.steer.periodic import backfill_tasks
from inventory.recorder import FigureRecorder
from jobs.disk_files import DiskFiles
from jobs.folder import JobFolders
from jobs.keys import Keyring
from jobs.kinds import JobKind
from jobs.notify import Notifier
from jobs.sessions import SessionDesk
from jobs.steps import StepKind
from jobs.store import RESTORE, JobStore, StoredPlan, UserSession, open_store
from jobs.store.tables import METADATA
from jobs.supervisor import JobSupervisor
from model.change import ChangeRequest
from model.job import new_job_id
from model.principal import READ, SCOPES, UPLOAD_SCOPES, Principal
from model.stream_options import StreamKind
from model.stream_update import UpdateRequest
from rollout.agent import Agent
from rollout.changes import ChangeService
from rollout.check import CheckReason, Remedy, UpdateCheck
from rollout.manifests.cron import Cron, Timing
from rollout.manifests.schedule import read_schedule
from rollout.manifests.scheduler import Scheduler
from rollout.manifests.service import ManifestService
from rollout.manifests.uploads import UploadWatcher
from rollout.snapshot_work import SnapshotWork
from rollout.update_work import UpdateWork
from tests.work import Work, counted
from tests.years.clock import Clock
from tests.years.parts import SNAPSHOTS, AtOnce, Drivers, Jobs, Starter, Taker, stream_info

ANN: Final = Principal("ann", frozenset(SCOPES))
KIND: Final = JobKind(
    "merge", "merges", "mg", "merges", "module", lambda _: lambda _store, _job_id: None, is_forgotten=True
)
# Some slots are in the hour that the clocks of their zone leave out or have twice.
SPARSE: Final = (
    ("30 2 25,29 3,10 *", "Europe/Berlin"),
    ("0 0 1 */2 *", "UTC"),
    ("30 1 1,8 3,11 *", "America/New_York"),
    ("15 4 8 5,8 *", "Asia/Kolkata"),
    ("45 1 4,5 4,10 *", "Australia/Lord_Howe"),
)
# An agent looks at the snapshots of its streams once in such a time.
_MINUTE: Final = timedelta(seconds=61)
_MEASURED: Final = 7
_GO_ON: Final = frozenset({"schedules", "supervisor", "agent"})
_SECRET: Final = "whsec_" + base64.b64encode(b"s" * 24).decode()
_REFUSED: Final = UpdateCheck((CheckReason("type", "sources", "It can't.", Remedy.MAP),), (), ())


class Replica:
    """The loops of one API and of one agent beside it; ``skew`` is how much their machine's clock is off."""

    def __init__(self, service: "Service", skew: timedelta) -> None:
        self.skew = skew
        store, clock, home = service.store, service.clock, service.home
        steady = lambda: clock.seconds  # noqa: E731
        manifests = ManifestService(store)
        self.drivers = Drivers()
        self.supervisor = JobSupervisor(
            KIND,
            store,
            self.drivers,
            JobFolders.at(home / "merges"),
            max_running=1000,
            tasks=backfill_tasks(store),
        )
        self.supervisor._pool = AtOnce()  # type: ignore[assignment]
        self.supervisor._tasks._pool = AtOnce()  # type: ignore[assignment]
        self.notifier = Notifier(store, KIND, "http://hook", _SECRET)
        self.notifier._client = httpx.Client(transport=httpx.MockTransport(service.hear))
        self.notifier._since = store.open_webhook("digest")
        self.figures = FigureRecorder(store, lambda: [stream_info(each) for each in store.list_streams()])
        self.scheduler = Scheduler(store, service.jobs, steady=steady)  # type: ignore[arg-type]
        self.changes = ChangeService(store, {})
        self.uploads = UploadWatcher(
            store, manifests, DiskFiles(home / "uploads"), service.uploader, steady=steady
        )
        self.agent = self._make_agent(service)

    def _make_agent(self, service: "Service") -> Agent:
        store, clock = service.store, service.clock
        snapshots = SnapshotWork(
            store,
            taker=Taker(store),  # type: ignore[arg-type]
            restorer=SimpleNamespace(kind=lambda: StepKind(RESTORE, ())),  # type: ignore[arg-type]
            every_seconds=service.snapshot_every.total_seconds(),
            keep=3,
        )
        snapshots._threads._now = lambda: clock.seconds
        updates = UpdateWork(
            store,
            open_checker=lambda: SimpleNamespace(check=lambda *_, **__: _REFUSED),  # type: ignore[arg-type,return-value]
            read_lag=lambda *_: None,
            now=lambda: clock.seconds,
        )
        updates._threads._now = lambda: clock.seconds
        environment = {**os.environ, "REFEED_HOME": str(service.home)}
        agent = Agent(
            store,
            environment=environment,
            places=10_000,
            now=lambda: clock.seconds,
            snapshots=snapshots,
            updates=updates,
        )
        agent._starter = Starter(environment)
        agent._find = lambda _: None  # type: ignore[method-assign]  # no agent before it left a process
        return agent

    def loops(self) -> dict[str, Any]:
        """Return one turn of each loop, by its name."""
        return {
            "schedules": self.scheduler.tick,
            "changes": self.changes.expire,
            "supervisor": self.supervisor.tick,
            "webhooks": self.notifier._tell_all,
            "figures": self.figures.record,
            "uploads": self.uploads.tick,
            "agent": self._look,
        }

    def _look(self) -> None:
        self.agent.look()
        snapshots, updates = self.agent._snapshots, self.agent._updates
        assert snapshots is not None
        assert updates is not None
        snapshots._threads.join(60)
        updates._threads.join(60)


class Service:
    """Everything that runs in the background, and the people who use it; :meth:`go` lets time pass.

    ``schedules`` manifests are applied, their times taken in turn from ``crons``, and ``streams`` launched.
    Where no slot is due every loop looks each ``longest``.
    """

    def __init__(
        self,
        url: str,
        home: Path,
        *,
        schedules: int,
        streams: int,
        crons: Sequence[tuple[str, str]] = SPARSE,
        longest: timedelta = timedelta(days=45),
        snapshot_every: timedelta = timedelta(days=1),
    ) -> None:
        self.clock = Clock(datetime(2026, 2, 20, 12, tzinfo=UTC))
        self._crons, self._longest = crons, longest
        self._timings = [Timing(Cron.parse(cron), ZoneInfo(zone)) for cron, zone in dict.fromkeys(crons)]
        self.home = home
        self.store: JobStore = open_store(url)
        self.store._database.now = lambda _: self.clock.now  # type: ignore[method-assign]
        self.jobs = Jobs(self.store, home / "merges")
        self.uploader = Principal("upload:folder", UPLOAD_SCOPES)
        self.snapshot_every = snapshot_every
        self.heard: Counter[str] = Counter()
        self.manifests = ManifestService(self.store)
        self.schedules, self.streams = schedules, streams
        self.applied_at: dict[str, datetime] = {}
        self.replicas: list[Replica] = []
        self.looks = 0
        # Called after each turn of a loop.
        self.watch: Callable[[], None] = lambda: None
        self._days = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if not self.store.is_shared:
            # A disk that waits shows nothing here.
            sa.event.listen(self.store._database._engine, "connect", _be_quick)
            self.store._database._engine.dispose()
        self._stack.enter_context(self.clock.is_everybody_s())
        self._stack.callback(self.store.close)
        (self.home / "uploads").mkdir(parents=True)
        self.keyring = Keyring(self.store)
        _, self.token = self.keyring.create("console", [READ])
        self.replicas = [Replica(self, timedelta()), Replica(self, timedelta(minutes=1))]
        for number in range(self.streams):
            self.store.launch_stream(f"stream-{number}", StreamKind.BACKUP, actor="ann")
        for number in range(self.schedules):
            cron, zone = self._crons[number % len(self._crons)]
            of_stream, is_snapshot = number // 7, number % 7 == 6
            name = f"schedule-{number}"
            if is_snapshot and of_stream < self.streams:
                name = f"{SNAPSHOTS}stream-{of_stream}"
            self.apply(name, cron, zone)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def apply(self, name: str, cron: str, zone: str) -> None:
        text = f'kind: Schedule\nname: {name}\ncron: "{cron}"\ntime_zone: {zone}\njob: {{kind: merge}}\n'
        self.manifests.apply(name, text.encode(), principal=ANN)
        self.applied_at[name] = self.clock.now

    def hear(self, _: httpx.Request) -> httpx.Response:
        """Answer a webhook; every fifth is not heard."""
        self.heard["calls"] += 1
        status = 500 if self.heard["calls"] % 5 == 0 else 204
        self.heard[str(status)] += 1
        return httpx.Response(status)

    # -- time

    def go(self, duration: timedelta) -> None:
        """Let time pass; every loop of every replica looks when a slot is due, and now and then."""
        until = self.clock.now + duration
        while True:
            self.look()
            if self.clock.now >= until:
                return
            self.clock.go(min(self._next_due(), until, self.clock.now + self._longest) - self.clock.now)

    def look(self) -> None:
        """Have every loop look until what is due has been done."""
        self.looks += 1
        # Some jobs, streams and snapshots wait for some seconds before they go on; nothing else does.
        for is_first in (True, False):
            for replica in self.replicas:
                with self._as(replica):
                    for name, turn in replica.loops().items():
                        if is_first or name in _GO_ON:
                            turn()
                            self.watch()
            self.clock.go(timedelta(seconds=6))
        for replica in self.replicas:
            # A call that was not heard is made again after ten seconds, and in a day no more.
            self.clock.go(timedelta(seconds=15))
            with self._as(replica):
                replica.notifier._tell_all()
                self.watch()

    def use(self) -> None:
        """Do what people do every few days: sign in, plan, ask for changes and updates, upload, and kill."""
        self._days += 1
        now, store = self.clock.now, self.store
        desk = SessionDesk(store, self.keyring)
        _, token = desk.open(self.token)
        desk.authenticate(token)
        ends = now + timedelta(hours=12)
        digest = f"digest-{self._days}"
        store.put_short_lived(UserSession(digest, ends, "sealed", ends, ends, 1))
        assert store.use_sign_in(digest, expires_at=now + timedelta(minutes=10))
        store.put_short_lived(StoredPlan(f"plan-{self._days}", "same", {}, now + timedelta(minutes=15)))
        body = {"day": self._days}
        store.create_change(ChangeRequest("manifest", "x", "remove", body, "x", 1, READ, requester=ANN))
        store.create_update("stream-0", UpdateRequest("2.0", {}, {}), actor="ann")
        text = f"kind: Schedule\nname: uploaded\ncron: {self._days % 60} 5 1 1 *\njob: {{kind: merge}}\n"
        (self.home / "uploads" / "uploaded.yaml").write_text(text)
        orphan = self.home / "merges" / f"mg_orphan{self._days}"
        orphan.mkdir(parents=True)
        os.utime(orphan, (now.timestamp(), now.timestamp()))
        for replica in self.replicas:
            for process in list(replica.agent):
                process.kill()

    def lose_replicas(self) -> None:
        """Kill both replicas and their agents, which leave what they held, and start others."""
        store = self.store
        for replica in self.replicas:
            with self._as(replica):
                replica.scheduler.tick()
                store.take_over(KIND.name, replica.supervisor._owner, lease_seconds=20)
        job_id = new_job_id("mg")
        JobFolders.at(self.home / "merges").of(job_id).write_specification({})
        store.insert(job_id, KIND.name, {}, actor="ann")
        store.claim(KIND.name, "elsewhere|1|1|boot|token", limit=1000, lease_seconds=20)
        self.replicas = [Replica(self, timedelta()), Replica(self, timedelta(minutes=1))]

    @contextmanager
    def _as(self, replica: Replica) -> Iterator[None]:
        self.clock.skew = replica.skew
        try:
            yield
        finally:
            self.clock.skew = timedelta()

    # -- what there is to see

    def slots(self, name: str, since: datetime, until: datetime) -> list[datetime]:
        timing = read_schedule(self.store.get_manifest(name).document).timing()
        return list(takewhile(lambda slot: slot <= until, timing.after(since)))

    def last_slots(self) -> dict[str, datetime]:
        """Return the newest slot of each schedule that had one."""
        found: dict[str, datetime] = {}
        for name, slot in self.jobs.made:
            found[name] = max(slot, found.get(name, slot))
        return found

    def check_slots(self, since: datetime, until: datetime) -> int:
        """Assert that each slot of that time had one job, and return how many there were."""
        count = 0
        for name, applied_at in self.applied_at.items():
            slots = self.slots(name, max(since, applied_at), until)
            made = {slot: self.jobs.made.get((name, slot), set()) for slot in slots}
            assert {slot: len(ids) for slot, ids in made.items()} == dict.fromkeys(slots, 1), name
            count += len(slots)
        assert all(len(ids) == 1 for ids in self.jobs.made.values()), "no slot ever had two"
        return count

    def count_rows(self) -> dict[str, int]:
        with self.store._database.read() as connection:
            return {
                table.name: connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0
                for table in METADATA.sorted_tables
            }

    def measure(self) -> dict[str, Work]:
        """Return the work of one turn of each loop of a replica, when nothing is due but what is due each minute.

        It is the median of some turns a minute apart: a retry may be due at one of them.
        """
        # What a slot made is deleted a minute later.
        self.look()
        self.look()
        found: dict[str, list[Work]] = {}
        replica = self.replicas[0]
        for _ in range(_MEASURED):
            self.clock.go(_MINUTE)
            with self._as(replica):
                for name, turn in replica.loops().items():
                    with counted(self.store) as work:
                        turn()
                    found.setdefault(name, []).append(work)
        return {name: _median_of(works) for name, works in found.items()}

    def _next_due(self) -> datetime:
        return min(next(timing.after(self.clock.now)) for timing in self._timings)


def _median_of(works: Sequence[Work]) -> Work:
    return Work(*(sorted(counts)[len(works) // 2] for counts in zip(*map(astuple, works), strict=True)))


def _be_quick(connection: Any, _: Any) -> None:
    connection.execute("PRAGMA synchronous = OFF")
