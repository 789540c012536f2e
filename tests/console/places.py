"""Every page of the console at an address that shows something."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from console.actions import ACTIONS
from console.pages import PAGES
from jobs.store import JobFilter
from model.change import ChangeRequest
from model.job import JobState, new_job_id
from model.principal import SCOPES, STREAMS_OPERATE, Principal
from model.stream_options import StreamKind
from model.stream_update import UpdateRequest, UpdateState
from tests.console.past import run_backfill
from tests.console.works import fill_sources
from tests.console.yard import EVIL, Yard
from tests.contract.test_job_store_snapshots import complete
from tests.worlds.update_jobs import advance_update

LAST_DAYS = {
    name: (datetime.now(UTC) + days * timedelta(days=1)).isoformat() for name, days in (("from", -2), ("to", 1))
}
# What stands after a path by itself would be a page without its main part.
_SHOWN = {
    "/topics/{topic}": "?show=messages&step=minute",
    "/backfills/new": "?source=orders",
    "/manifests:apply": "?name=yearly&do=plan",
    "/sources/{name}": "?type=push",
    "/sources/{name}/dead-letters": "?code=wrong_type",
}


def find_places(yard: Yard) -> Iterator[str]:
    """Yield an address below /console for each page and each action, all of things that are there."""
    known = fill_yard(yard)
    yield "/sign-in"
    yield "/nowhere"
    yield known["/jobs/{id}/dead-letters"].removesuffix("/dead-letters")
    yield f"/backfills/new?{urlencode({'source': 'orders', 'topic': 'replay', 'do': 'plan', 'from': '2d'})}"
    for kind in ("merge", "compaction", "update"):
        (job,) = yard.api.store.list_jobs(JobFilter(kinds=(kind,)), limit=1)
        yield f"/jobs/{job.id}"
        for verb in {"merge": ("retry", "rerun"), "compaction": ("cancel", "rerun"), "update": ()}[kind]:
            yield f"/jobs/{job.id}/{verb}"
    for path in (*(page.path for page in PAGES), *(action.path for action in ACTIONS)):
        place = known.get(path, path)
        for pattern, address in known.items():
            if "{" in place and path.startswith(f"{pattern}/"):
                place = address + path.removeprefix(pattern)
        assert "{" not in place, f"{path} has no address here: name a thing that it can show"
        yield place + _SHOWN.get(path, "")


def fill_yard(yard: Yard) -> dict[str, str]:
    """Make one thing of each kind that has a page, once, and return the address of each by its page's path."""
    if not yard.places:
        store = yard.api.store
        yard.api.pubsub.create_topic("hooks")
        fill_sources(yard)
        store.launch_stream("backup", StreamKind.BACKUP, actor="key:ann")
        request = UpdateRequest(release=None, options={}, mapping={}, reason=EVIL)
        update = store.create_update("backup", request, actor="key:ann")
        advance_update(store, update, UpdateState.WATCHING)
        past = run_backfill(yard)
        tables = {"tables": ["archive", f"staging.{EVIL}"]}
        compaction = store.insert(new_job_id("cp"), "compaction", tables, actor=EVIL, state=JobState.PAUSED)
        store.change(compaction.id, actor="driver", what=EVIL, findings={"tables": {f"staging.{EVIL}": 7}})
        message = {"id": "m0", "at": _ingest_time(yard, "m0")}
        asked = ChangeRequest(
            resource="stream",
            name="backup",
            verb="cancel",
            body={"reason": EVIL},
            what=f"Cancel backup. {EVIL}",
            version=1,
            scope=STREAMS_OPERATE,
            requester=Principal("key:bob", frozenset(SCOPES)),
        )
        yard.places |= {
            "/topics/{topic}": "/topics/orders",
            "/topics/{topic}/message": f"/topics/orders/message?{urlencode(message)}",
            "/streams/{name}": "/streams/backup",
            "/jobs/{id}": f"/jobs/{yard.failed}",
            **{f"/jobs/{{id}}/{verb}": f"/jobs/{yard.running}/{verb}" for verb in ("resume", "rate", "cancel")},
            "/jobs/{id}/dead-letters": f"/jobs/{past}/dead-letters",
            "/jobs/{id}/missing": f"/jobs/{past}/missing",
            "/sources/{name}": "/sources/hooks",
            "/snapshots/{id}": f"/snapshots/{complete(store).id}",
            "/schedules/{name}": f"/schedules/{apply_schedule(yard)}",
            "/manifests/{name}": "/manifests/yearly",
            "/manifests/{name}/launch": f"/manifests/{apply_template(yard)}/launch",
            "/jobs/{id}/approve": f"/jobs/{store.create_change(asked).id}/approve",
            "/jobs/{id}/revert": f"/jobs/{update.id}/revert",
        }
    return yard.places


def apply_schedule(yard: Yard) -> str:
    manifest = {
        "kind": "Schedule",
        "name": "yearly",
        "description": f"Once a year {EVIL}",
        "cron": "15 0 1 1 *",
        "time_zone": "Europe/Stockholm",
        "job": {"kind": "snapshot", "request": {"stream": "backup"}},
    }
    with yard.api.client(yard.key) as client:
        client.post("/manifests:apply", content=json.dumps(manifest)).raise_for_status()
    return "yearly"


def apply_template(yard: Yard) -> str:
    manifest = {
        "kind": "Template",
        "name": "again",
        "description": f"Again {EVIL}",
        "parameters": {"source": {"required": True, "help": EVIL}},
        "launch": {"kind": "merge", "request": {"source": "${source}"}},
    }
    with yard.api.client(yard.key) as client:
        client.post("/manifests:apply", content=json.dumps(manifest)).raise_for_status()
    return "again"


def _ingest_time(yard: Yard, message_id: str) -> str:
    with yard.api.client(yard.key) as client:
        found = client.get("/messages", params={"topic": "orders", "message_id": message_id, **LAST_DAYS})
    return str(found.json()["messages"][0]["ingest_time"])
