"""A deployment of two people: actions that wait for one of them, and sources with all that is known of them."""

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from jobs.folder import JobFolder
from jobs.keys import Keyring
from model.audit import Audit
from model.job import JobState, new_job_id
from model.principal import SCOPES
from model.settings import read_settings
from model.stream_options import StreamKind
from pipeline.dead_letters import DEAD_LETTER_SCHEMA
from pipeline.inferred import EventType, Variation
from pipeline.registry import Registry
from pipeline.repository import SchemaRepository, repository_table
from pipeline.shapes import Shape, variation_hash
from reporting.kind import MERGE
from reporting.request import MergeRequest
from reporting.view import describe_failure, describe_report
from tests.archive import write_letters
from tests.console.yard import BIG, EVIL, QUERY, Yard
from warehouse.merges import MergeReport
from warehouse.open import open_warehouse

SOURCES = b"""
sources:
  hooks: {topic: hooks, schema: inferred, event_type_attribute: type}
  odd: {topic: odd, schema: inferred, message: m}
  quiet: {topic: orders, schema: inferred}
"""
COUNTS = {
    "rows": {"staged": 1234567},
    "unknown": {f"a.{EVIL}": 21, "b": 4},
    "missing": {"id": 2},
    "refused": {"wrong_type": 3, "not_json": 1},
}
NARROW = Shape("RECORD", fields={"id": Shape("INT", column="id"), "old": Shape("BOOL", column="old")})
WIDE = Shape("RECORD", fields={"id": Shape("TEXT", column="id"), "at": Shape("INT", column="at")})


class Works(Yard):
    """The API with its data; ``key`` is ann's and ``bob`` another person's, and both may do everything."""

    bob: str
    large: str
    canary: str

    def ask(self, verb: str, stream: str = "backup", body: Any = None, key: str | None = None) -> str:
        """Ask for an action on a stream, and return the change that waits for approval."""
        with self.api.client(key or self.key) as client:
            answer = client.post(f"/streams/{stream}:{verb}", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])


def make_works(start_api: Callable[..., Any]) -> Works:
    """Start the API with its data: a launched stream, a backfill above the limit and a canary, both ann's."""
    api = start_api(REFEED_APPROVE_STREAMS="drain,cancel,rollback,update", REFEED_APPROVAL_ROWS="100")
    keyring = Keyring(api.store)
    found = Works(api, keyring.create("ann", list(SCOPES))[1], "", "", "")
    found.bob = keyring.create("bob", list(SCOPES))[1]
    api.store.launch_stream("backup", StreamKind.BACKUP, actor="key:ann")
    api.store.take_streams("agent", limit=1, lease_seconds=60)
    found.large = _insert(api, 5000)
    found.canary = _insert(api, 50)
    JobFolder(api.home / "backfills" / found.canary).write_pause(0, "canary")
    return found


def fill_sources(works: Yard) -> None:
    """Fill the registry, a stream's counts, versions of tables, dead letters and two nights of merges."""
    api = works.api
    Registry(str(api.home / "registry")).publish({"sources.yaml": SOURCES})
    works.report("pipeline-default", state="running", started_at=1_790_000_000.0, sources={"hooks": COUNTS})
    settings = read_settings({}, home=api.home)
    with closing(open_warehouse(settings).open_row_tables(stream="s", lease="l")) as tables:
        tables.create()
        tables.open(settings.dead_letter_table).evolve(DEAD_LETTER_SCHEMA)
        tables.leases().take_lease("l")
        repository = SchemaRepository(tables, repository_table(settings.dead_letter_table))
        for number, shape in ((1, NARROW), (2, WIDE)):
            variation = Variation("hooks", "push", variation_hash(shape), shape, '{"id": 1}')
            repository.append([EventType("push", "staging.hooks_push", number, shape)], [variation])
    now = datetime.now(UTC)
    row = {"data": BIG, "publish_time": now, "topic": "hooks", "source": "hooks", "ordering_key": ""}
    rows = [
        {**row, "message_id": f"m{n}", "error_code": code, "error_message": f"{place}: {EVIL}", "ingest_time": now}
        for n, (code, place) in enumerate(
            [("wrong_type", f"lines[{n}].count") for n in range(3)] + [("not_json", "it")]
        )
    ]
    write_letters(api.home / "lake", rows)
    until = datetime(2026, 1, 3, tzinfo=UTC)
    passed, failed = (Audit("keys_unique", found == 90, 90, found, {}) for found in (90, 91))
    report = MergeReport(
        "hooks", None, until, changed=1200, newer=900, rows_before=80, rows_after=90, audits=(passed,)
    )
    for found in (describe_failure("hooks", "audit_failed", EVIL, [failed.to_json()]), describe_report(report)):
        request = {**MergeRequest().to_json(), "sources": ["hooks"], "dry_run": False}
        # The API would launch one that is pending, and no look at it may come between these lines.
        job = api.store.insert(new_job_id("mg"), MERGE.name, request, actor="ann", state=JobState.PAUSED)
        api.store.change(job.id, actor="driver", what="hooks merged", findings={"sources": {"hooks": found}})
        api.store.move(job.id, JobState.CANCELLED, actor="ann")


def _insert(api: Any, rows: int) -> str:
    window = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}
    request = {"query": QUERY, "topic": "orders", "parameters": {}, "description": f"Hole {EVIL}", "labels": {}}
    job = api.store.insert(
        new_job_id("bf"),
        "backfill",
        {**request, "window": window, "source_topics": None},
        actor="key:ann",
        state=JobState.PAUSED,
        approval={"required": rows > 100, "above_rows": 100, "rows": rows, "by": None, "at": None},
    )
    JobFolder(api.home / "backfills" / job.id).write_specification({})
    return str(job.id)
