"""A deployment with everything that a console shows: streams, jobs in each state, an archive with a hole."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from backfill.plan.request import BackfillRequest
from backfill.run.progress import Progress
from connectors.lake.archive import LakeArchive
from jobs.keys import Keyring
from model.fault import FaultRecord
from model.job import JobState, new_job_id
from model.principal import SCOPES
from streams.status import StatusFile
from tests.archive import entries, messages, write_commits

# What a hostile producer, caller or operator may put into every text there is.
EVIL = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
BIG = b'{"id": 9007199254740993, "evil": "</pre><script>document.title=3</script>"}'
QUERY = "SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = @day"


@dataclass
class Yard:
    """The API with its data; ``key`` may do everything, ``places`` are the addresses that :mod:`places` found."""

    api: Any
    key: str
    running: str
    failed: str
    done: str
    places: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"{self.api.url}/console"

    def report(self, name: str, *, seconds_ago: float = 0.0, **fields: Any) -> None:
        path = self.api.home / "streams" / name / "status.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        StatusFile(path).write(**fields)
        written = json.loads(path.read_text())
        path.write_text(json.dumps({**written, "at": written["at"] - seconds_ago}))

    def backfill(self, state: JobState, progress: Progress, *, error: FaultRecord | None = None) -> str:
        # One of the same messages that succeeded would make up for the one that failed.
        day = "2026-01-02" if state is JobState.SUCCEEDED else "2026-01-01"
        request = BackfillRequest(
            query=QUERY,
            topic="orders",
            parameters={"day": {"type": "DATE", "value": day}},
            description=f"repair of the shop's hole {EVIL}",
            labels={"ticket": "OPS-17"},
        )
        window = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}
        asked = {**request.to_json(), "window": window, "source_topics": None}
        job = self.api.store.insert(new_job_id("bf"), "backfill", asked, actor="key:ann", state=JobState.PAUSED).id
        self.api.store.set_progress(job, progress.to_json())
        if state is not JobState.PAUSED:
            self.api.store.move(job, state, actor="key:ann", error=error)
        return str(job)


def make_yard(start_api: Callable[..., Any], *, with_key: bool = True, **environment: str) -> Yard:
    """Start an API with data and these variables; without a key it is open to this machine."""
    api = start_api(**environment)
    key = Keyring(api.store).create("ann", list(SCOPES))[1] if with_key else ""
    _fill_archive(api)
    yard = Yard(api, key, "", "", "")
    yard.report(
        "backup", state="running", totals={"messages": 120_000, "bytes": 5_000_000}, rates={"messages": 512.5}
    )
    yard.report("pipeline-shop", state="running", seconds_ago=3600, totals={"messages": 7})
    yard.running = yard.backfill(JobState.PAUSED, Progress(selected=1000, published=250))
    error = FaultRecord("driver_died", f"It died. {EVIL}")
    yard.failed = yard.backfill(JobState.FAILED, Progress(selected=1000, published=990, failed=10), error=error)
    yard.done = yard.backfill(JobState.SUCCEEDED, Progress(selected=30, published=30))
    return yard


def _fill_archive(api: Any) -> None:
    rows = messages(
        30,
        data=[BIG, *[b'{"n": 1}'] * 29],
        attributes=[entries({"note": EVIL})] * 30,
        publish_time=[datetime.now(UTC) - timedelta(minutes=n) for n in range(30)],
    )
    write_commits(LakeArchive(str(api.home / "lake"), "backup.messages"), {"orders": rows})


def open_client(yard: Yard, **headers: str) -> httpx.Client:
    return httpx.Client(base_url=yard.api.url, timeout=20, verify=False, headers=headers)


def token_of(page: httpx.Response) -> str:
    found = re.search(r'name="form_token" value="([0-9a-f]{64})"', page.text)
    assert found is not None, page.text[:500]
    return found[1]


def sign_in(client: httpx.Client, key: str, back: str = "/console") -> httpx.Response:
    page = client.get("/console/sign-in", params={"return": back})
    return client.post("/console/sign-in", data={"key": key, "return": back, "form_token": token_of(page)})
