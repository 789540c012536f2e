"""The roles of docs/iam.md and of Terraform are those that the recorded calls of each component need."""

import asyncio
import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.cloud import bigquery

from app.backfills import assemble_backfills, open_queries
from backfill.job import select
from backfill.plan.options import RunOptions
from backfill.plan.request import BackfillRequest
from backfill.plan.settings import BackfillSettings
from backfill.run.folder import BackfillFolder
from backup.archiving import ArchiveTarget, Archiving
from backup.source import BackupSource
from cli.main import main
from collector.delivery import DirectDelivery, TopicDirectory
from collector.door import Door
from collector.http import Collector
from collector.settings import CollectorSettings
from connectors.pubsub import channel as pubsub_channel
from connectors.pubsub.backlog import MonitoredBacklog, MonitoredBacklogs
from connectors.pubsub.client import PubSub
from connectors.pubsub.publish import Message, Publisher
from connectors.pubsub.source import PullOptions, TaskResult, _process_puller
from inventory.service import Inventory
from jobs.folder import Control, Order
from jobs.store import JobStore
from local.server import PubSubServer
from model.job import new_job_id
from model.message import BACKUP_SUBSCRIPTION_PREFIX, replay_token
from model.principal import LOCAL
from model.settings import Settings, read_settings
from pipeline.group import Group
from pipeline.plan import PlanFile
from pipeline.registry import Registry
from pipeline.source import StagingSource
from pipeline.staged_ids import open_journal
from pipeline.staging import StagingWork
from reporting.merge import merge_source
from streams.ack_leases import AckLeases
from streams.commit_worker import CommitWorker
from streams.committer import StreamCommitter
from streams.journal import ONLY_TABLE, Journal
from streams.lease import hold_lease, refuse_held
from streams.status import StatusFile
from tests.deploy.permissions import CALLS, KINDS, ROLES, Need, granted, needs_of_call, needs_of_job
from tests.pipeline.conftest import frame
from tests.reporting.shops import RULES, SCHEMA, START, order
from tests.standin.fixture import StandIn
from warehouse.bigquery.merger import BigQueryMerger
from warehouse.merges import MergeSource
from warehouse.open import open_warehouse
from warehouse.queries import QuerySpace

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[2]
SOURCES = b"sources:\n  orders: {topic: orders, schema: inferred}\n"
QUERY = "SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01'"


class Recorder(grpc.UnaryUnaryClientInterceptor):
    """Notes every call to Pub/Sub that leaves this process."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        if details.method.startswith("/google.pubsub.v1."):
            self.methods.append(details.method.removeprefix("/google.pubsub.v1."))
        return continuation(details, request)


class World:
    """A project of its own in the stand-ins, and what is called in it."""

    def __init__(
        self, standin: StandIn, server: PubSubServer, folder: Path, project: str, recorder: Recorder
    ) -> None:
        self.standin = standin
        self.folder = folder
        self.project = project
        self.recorder = recorder
        self.environment = {
            **standin.environment,
            "REFEED_HOME": str(folder / "home"),
            "REFEED_PROJECT": project,
            "REFEED_WAREHOUSE": "bigquery",
            "REFEED_SECRET": "s3cret",
            "PUBSUB_EMULATOR_HOST": server.emulator_host,
        }
        self.settings: Settings = read_settings(self.environment)
        self.server = server

    def prepare(self) -> None:
        """Make what Terraform makes, with messages in the archive's topic."""
        client = self.standin.client(self.project)
        for name in KINDS:
            client.create_dataset(bigquery.Dataset(f"{self.project}.{name}"), exists_ok=True)
        with closing(open_warehouse(self.settings).open_archive()) as archive:
            archive.create()
        with PubSub(self.project, self.server.emulator_host) as pubsub:
            pubsub.create_topic("orders")
            pubsub.attach_backup("orders", token=replay_token("s3cret", "orders"), ack_deadline_seconds=60)

    def publish(self, *payloads: bytes) -> None:
        with PubSub(self.project, self.server.emulator_host) as pubsub:
            Publisher(pubsub.channel, pubsub.topic_path("orders")).publish(
                [Message(payload, {}) for payload in payloads]
            )

    def needs(self, act: Callable[[], None]) -> set[Need]:
        """Return what the calls of ``act`` need, by the stand-ins' own records."""
        self.standin.clear_log()
        self.recorder.methods.clear()
        client = self.standin.client(self.project)
        before = {job.job_id for job in client.list_jobs(all_users=True)}
        act()
        calls = [call for call in self.standin.calls() if call["method"] != "jobs.list"]
        methods = {call["method"] for call in calls}
        assert methods <= CALLS.keys()
        # docs/bigquery.md lists every call with its quota.
        assert methods - documented_calls() == set()
        needed = set().union(*(needs_of_call(call["method"], call["resource"]) for call in calls))
        needed |= set().union(*(needs_of_call(method, "") for method in self.recorder.methods))
        for job in client.list_jobs(all_users=True):
            if job.job_id not in before:
                needed |= needs_of_job(job)
        return needed


def documented_calls() -> set[str]:
    """The calls of docs/bigquery.md's table of calls and quotas."""
    page = (ROOT / "docs" / "bigquery.md").read_text()
    section = page.split("## Every call, its quota", 1)[1].split("\n## ", 1)[0]
    cells = re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)
    return {
        name for cell in cells for name in re.findall(r"(?:[a-z]+\.)?[A-Za-z]+", re.sub(r"\([^)]*\)", "", cell))
    }


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """What calls Pub/Sub from this process, from before its channels are opened."""
    recorder = Recorder()
    plain = grpc.insecure_channel
    monkeypatch.setattr(
        pubsub_channel.grpc,
        "insecure_channel",
        lambda *given, **more: grpc.intercept_channel(plain(*given, **more), recorder),
    )
    pubsub_channel.process_channel.cache_clear()
    return recorder


@pytest.fixture
def world(shared_standin: StandIn, tmp_path: Path, recorder: Recorder) -> Iterator[World]:
    project = f"p{uuid.uuid4().hex[:12]}"
    with PubSubServer(tmp_path / "pubsub") as server:
        yield World(shared_standin, server, tmp_path, project, recorder)
    pubsub_channel.process_channel.cache_clear()


def table() -> dict[str, list[tuple[str, str]]]:
    """What docs/iam.md's table grants: by component, (what it is granted on, role)."""
    page = (ROOT / "docs" / "iam.md").read_text()
    found: dict[str, list[tuple[str, str]]] = {}
    component = ""
    for named, roles, where in re.findall(r"^\|([^|]*)\|([^|]*`roles/[^|]*)\|([^|]+)\|", page, re.MULTILINE):
        component = named.strip() or component
        for role in re.findall(r"`(roles/[\w.]+)`", roles):
            found.setdefault(component, []).extend((place.strip(), role) for place in where.split(","))
    return found


PLACES = {
    "project": "project",
    "the archive's dataset": "archive",
    "staging's datasets": "staging",
    "reporting's datasets": "reporting",
    "the backup subscriptions": "subscription",
    "the topics that may be filled": "topic",
    "the topics of REFEED_COLLECTOR_TOPICS": "topic",
}


def on_the_page(component: str) -> set[tuple[str, str]]:
    """What the page grants a component; what only tagged columns need is left out."""
    return {(PLACES[where], role) for where, role in table()[component] if where in PLACES}


def in_terraform(component: str) -> set[tuple[str, str]]:
    """What Terraform grants a component: its roles.json, and the members of single resources in iam.tf."""
    given = json.loads((ROOT / "deploy" / "terraform" / "roles.json").read_text())[component]
    found = {("project", role) for role in given["project"]} | set(given["datasets"].items())
    code = (ROOT / "deploy" / "terraform" / "iam.tf").read_text()
    for kind in ("subscription", "topic"):
        block = (
            rf'"google_pubsub_{kind}_iam_member" "\w+" {{[^}}]*?role +\= "([^"]+)"[^}}]*component\["{component}"\]'
        )
        found |= {(kind, role) for role in re.findall(block, code)}
    return found


def check(needed: set[Need], grants: set[tuple[str, str]]) -> None:
    """Every permission that is needed is granted, and no role could be left out."""
    assert needed - granted(grants) == set()
    for grant in grants:
        assert needed - granted(grants - {grant}), f"{grant} is there for nothing"


# -- the components


def refeed(world: World, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    with monkeypatch.context() as patched:
        for name, value in world.environment.items():
            patched.setenv(name, value)
        patched.setattr("sys.argv", ["refeed", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code


def pull(reader: Any) -> list[Any]:
    """Return the result rows of one batch, as Spark would have the tasks make them."""
    start = reader.initialOffset()
    end = reader.latestOffset(start, None)
    assert end != start
    return [TaskResult(*row) for part in reader.partitions(start, end) for row in reader.read(part)]


def settle(world: World) -> None:
    """Give back now what Pulls in flight brought, not two seconds later, when another component is looked at."""
    _process_puller(world.server.emulator_host).give_back()


def pull_options(world: World, prefix: str, plan_file: Path | None = None) -> PullOptions:
    return PullOptions(
        project=world.project,
        emulator_host=world.server.emulator_host,
        prefix=prefix,
        slots=1,
        idle_seconds=5.0,
        linger_seconds=0.2,
        backlog_seconds=0.2,
        max_bytes=1 << 20,
        stop_file=str(world.folder / "stop"),
        plan_file=None if plan_file is None else str(plan_file),
    )


def run_backup(world: World) -> None:
    """Do what the backup stream does, Spark aside: one batch from the subscription to the acknowledgement."""
    warehouse = open_warehouse(world.settings)
    with closing(warehouse.open_archive()) as archive:
        archive.check()
        leases = archive.leases()
        refuse_held(leases, "backup", "s")
        with hold_lease(leases, "backup", "s") as held:
            committer = StreamCommitter(
                work=Archiving(archive.parse_part),
                targets=ArchiveTarget(archive, stream="s", lease="backup", epoch=held.epoch),
                names=[ONLY_TABLE],
                journal=Journal(world.folder / "journal", keep_seconds=600),
                ack_leases=AckLeases(pubsub_channel.open_channel(world.server.emulator_host), world.project),
                status=StatusFile(world.folder / "status.json"),
            )
            committer.recover()
            task = {"warehouse": warehouse.to_json(), "writer": archive.writer().as_json()}
            options = pull_options(world, BACKUP_SUBSCRIPTION_PREFIX)
            source = BackupSource({"pull": options.as_json(), "task": json.dumps(task), "secret": "s3cret"})
            reader = source.streamReader(None)
            batch = committer.open_batch(pull(reader))
            with committer.hold(batch):
                committer.commit_batch(batch)
            assert batch.ids().num_rows
            reader.stop()
            settle(world)
    MonitoredBacklogs(Monitoring(world.recorder), world.project).read_prefixed(BACKUP_SUBSCRIPTION_PREFIX)


def run_pipeline(world: World) -> None:
    """Do what a group's stream does, Spark aside: its subscription, a batch that makes its table, one of rows."""
    plan_file = world.folder / "plan.json"
    warehouse = open_warehouse(world.settings)
    tables = warehouse.open_row_tables(stream="s", lease="l")
    status = StatusFile(world.folder / "status.json")
    with closing(tables), PubSub(world.project, world.server.emulator_host) as pubsub:
        group = Group(
            "default",
            registry=Registry(str(world.folder / "registry")),
            plan_file=PlanFile(plan_file, warehouse),
            tables=tables,
            pubsub=pubsub,
            is_embedded=False,
            ack_deadline_seconds=10,
            dead_letter_table="backup.dead_letters",
            max_bytes=100_000,
            status=status,
            secret="secret",
        )
        names = group.start()
        with hold_lease(tables.leases(), "l", "s"):
            committer = StreamCommitter(
                work=StagingWork(tables.parse_part, group.learn),
                targets=tables,
                names=names,
                journal=open_journal(
                    world.folder / "journal", keep_seconds=600, dead_letter_table="backup.dead_letters"
                ),
                ack_leases=AckLeases(pubsub.channel, world.project),
                status=status,
            )
            committer.recover()
            group.follow(committer)
            world.publish(b'{"id": 1}', b"nope")
            options = pull_options(world, "", plan_file)
            for _ in range(2):  # the first one makes the table, the second one fills it
                source = StagingSource({"pull": options.as_json(), "secret": "s3cret"})
                reader = source.streamReader(None)
                rows = pull(reader)
                with CommitWorker(committer) as worker:
                    worker.take_batch(frame([row.result for row in rows], errors=[row.error for row in rows]), 1)
                    worker.finish()
                reader.stop()
            settle(world)
    subscriptions = status.fields()["subscriptions"]
    assert subscriptions
    MonitoredBacklogs(Monitoring(world.recorder), world.project).read_named(subscriptions)


def run_collector(world: World, pubsub: PubSub) -> None:
    """Do what a collector does at Google: look for the topics that a pattern lets in, and publish."""
    settings = CollectorSettings(("orders", "ord*"))

    async def work() -> None:
        directory, door = TopicDirectory(pubsub), Door(settings, is_open=True)
        app = Collector(
            settings, delivery=DirectDelivery(pubsub, give_up_seconds=10), directory=directory, door=door
        )
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            assert (await client.get("/readyz")).status_code == 200
            assert (await client.post("/orders", content=b"{}")).status_code == 200

    asyncio.run(work())


def settings_of(world: World) -> BackfillSettings:
    return BackfillSettings(
        home=world.folder,
        project=world.project,
        emulator_host=world.server.emulator_host,
        replay_secret="s3cret",
        warehouse=open_warehouse(world.settings),
        max_window_days=36_600,
        query_memory="500MB",
    )


def create_backfill(world: World) -> BackfillFolder:
    """Plan a backfill dry and exactly and create it; return its folder."""
    settings = settings_of(world)
    with (
        closing(JobStore(world.folder / "jobs.db")) as store,
        PubSub(world.project, world.server.emulator_host) as pubsub,
        closing(open_queries(settings)) as queries,
    ):
        service = assemble_backfills(
            settings, store=store, pubsub=pubsub, queries=queries, launcher=NoLauncher(), max_running=1
        )
        request = BackfillRequest(QUERY, topic="orders")
        service.plan(request, principal=LOCAL)
        assert service.plan(request, principal=LOCAL, exact=True)["rows"]
        backfill = service.create(request, principal=LOCAL)
    folder = BackfillFolder(world.folder / "backfills" / backfill.id)
    folder.write_control(Control(1, Order.RUN))
    return folder


def run_driver(world: World, folder: BackfillFolder) -> None:
    """Select a backfill's rows and publish, yielding to a subscription."""
    specification = folder.read_specification()
    assert select(folder, 1, specification, RunOptions.from_specification(specification)).rows
    world.publish(b"a replay")
    MonitoredBacklog(Monitoring(world.recorder), "projects/p/subscriptions/s").read_oldest_unacked_seconds()


def look_around(world: World) -> None:
    """Ask for what the API shows of topics."""
    queries = open_warehouse(world.settings).open_queries(QuerySpace("500MB", world.folder / "spill"))
    with PubSub(world.project, world.server.emulator_host) as pubsub, closing(queries):
        inventory = Inventory(
            pubsub, queries, home=world.folder, replay_secret="s3cret", reports=list, groups=lambda: None
        )
        assert inventory.list_topics(principal=LOCAL)
        inventory.histogram("orders", principal=LOCAL, step="day")


class NoLauncher:
    """Starts nothing: the test does what drivers would."""

    def prepare(self) -> None: ...

    def close(self) -> None: ...


class Monitoring:
    """Cloud Monitoring's client, of which only the call is of interest here."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def list_time_series(self, **_: Any) -> list[Any]:
        self._recorder.methods.append("MetricService/ListTimeSeries")
        return []


def run_merge(world: World, source: MergeSource) -> None:
    with closing(BigQueryMerger(world.project, "backup.merge_audits", world.settings.bigquery)) as merger:
        assert merge_source(source, warehouse=merger).changed


def revert(world: World, source: MergeSource) -> None:
    """Count what a backfill brought to staging, and take it out again."""
    staging = open_warehouse(world.settings).open_staging([source.staging], source.reporting)
    backfill = new_job_id("bf")
    assert list(staging.landed_rows(backfill)) is not None
    assert staging.merged_rows(backfill) == 0
    assert staging.delete_rows(backfill) == 0


def stage(world: World) -> MergeSource:
    """Stage one order, and return its source."""
    source = MergeSource("orders", "staging.orders", "reporting.orders", RULES)
    with closing(open_warehouse(world.settings).open_row_tables(stream="s", lease="l")) as tables:
        staging = tables.open(source.staging)
        staging.evolve(SCHEMA)
    row = {"ingest_time": START, **order(1)}
    ready = {
        key: value if isinstance(value, str | int | list) else value.isoformat() for key, value in row.items()
    }
    assert world.standin.client(world.project).insert_rows_json(f"{world.project}.staging.orders", [ready]) == []
    return source


# -- what they need


def test_the_page_and_terraform_grant_the_same() -> None:
    for component in ("backup", "pipeline", "agent", "api", "collector"):
        name = {"pipeline": "`refeed pipeline run`"}.get(component, f"`refeed {component}`")
        assert on_the_page(name) == in_terraform(component), component


def test_an_agent_has_what_its_streams_and_their_snapshots_need() -> None:
    snapshots = "`refeed agent` and `refeed up` for snapshots of streams and rollbacks"
    by_hand = on_the_page(f"{snapshots}; `refeed backup snapshot`, `restore`, `forget`")
    needed = granted(in_terraform("backup") | in_terraform("pipeline") | by_hand)
    check(needed, in_terraform("agent"))


def test_init_needs_what_the_page_says(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = world.needs(partial(refeed, world, monkeypatch, "init"))
    check(needed, on_the_page("`refeed init`"))


def test_attaching_needs_what_the_page_says(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with PubSub(world.project, world.server.emulator_host) as pubsub:
        pubsub.create_topic("orders")

    def act() -> None:
        refeed(world, monkeypatch, "attach", "orders")
        refeed(world, monkeypatch, "detach", "orders", "--yes")

    check(world.needs(act), on_the_page("`refeed attach`, `detach`"))


def test_snapshots_need_what_the_page_says(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.prepare()

    def act() -> None:
        for command in (("snapshot", "one"), ("snapshots",), ("restore", "one", "--yes"), ("forget", "one")):
            refeed(world, monkeypatch, "backup", *command)

    streams = "`refeed agent` and `refeed up` for snapshots of streams and rollbacks"
    check(world.needs(act), on_the_page(f"{streams}; `refeed backup snapshot`, `restore`, `forget`"))


def test_the_backup_needs_what_terraform_grants(world: World) -> None:
    world.prepare()
    world.publish(b"one", b"two")
    check(world.needs(partial(run_backup, world)), in_terraform("backup"))


def test_the_pipeline_needs_what_terraform_grants(world: World) -> None:
    world.prepare()
    (world.folder / "registry").mkdir()
    (world.folder / "registry" / "sources.yaml").write_bytes(SOURCES)
    needed = world.needs(partial(run_pipeline, world))
    # What publishes is the test.
    check(needed - {("topic", "pubsub.topics.publish")}, in_terraform("pipeline"))


def test_a_collector_needs_what_terraform_grants(world: World) -> None:
    with PubSub(world.project, world.server.emulator_host) as pubsub:
        pubsub.create_topic("orders")
        needed = world.needs(partial(run_collector, world, pubsub))
    check(needed, in_terraform("collector"))


def test_backfills_and_merges_need_what_is_granted_to_the_api_to_drivers_and_by_hand(world: World) -> None:
    """One test, because it takes the stand-in seconds to run each of them."""
    world.prepare()
    world.publish(b"one", b"two")
    run_backup(world)
    source = stage(world)
    created: list[BackfillFolder] = []
    service = world.needs(lambda: created.append(create_backfill(world)))
    driver = world.needs(partial(run_driver, world, created[0]))
    merge = world.needs(partial(run_merge, world, source))
    looks = world.needs(partial(look_around, world))
    verification = world.needs(partial(revert, world, source))

    check(merge, on_the_page("`refeed merge`"))
    check(driver | merge, on_the_page("the drivers' account (`REFEED_DATAPROC_SERVICE_ACCOUNT`)"))
    check(service | driver | merge | looks | verification, in_terraform("api"))


def test_a_query_needs_what_the_page_says(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.prepare()
    query = "SELECT COUNT(*) AS n FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01'"
    check(world.needs(partial(refeed, world, monkeypatch, "query", query)), on_the_page("`refeed query`"))


def test_every_call_of_bigquery_s_table_is_one_that_a_stand_in_knows() -> None:
    assert documented_calls() - {"call"} <= CALLS.keys()


def test_every_role_of_the_page_that_is_google_s_data_s_is_in_the_table() -> None:
    named = {role for grants in table().values() for _, role in grants}
    data = {role for role in named if role.startswith(("roles/bigquery.", "roles/pubsub.", "roles/monitoring."))}
    assert data <= ROLES.keys()
