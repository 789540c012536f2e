"""What changed lately, in every job store: one list, newest first, page by page without a loss."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from jobs.keys import Keyring
from jobs.store import JobStore
from jobs.store.changes import ChangeCursor, StoredChange
from jobs.store.tables import EVENTS, KEYS, MANIFESTS, STREAM_EVENTS
from model.job import JobState
from model.principal import READ, Principal
from model.stream_options import StreamKind

ANN = Principal("key:ann", frozenset({READ}))


def fill(store: JobStore, insert: Callable[..., str]) -> str:
    job = insert()
    store.move(job, JobState.CANCELLED, actor="key:ann", why="a mistake")
    store.set_verification(job, {"state": "complete"}, actor="refeed", epoch=0, again_seconds=None)
    store.launch_stream("backup", StreamKind.BACKUP, actor="key:ann")
    store.put_manifest("nightly", "Schedule", {}, "digest", source="api", principal=ANN)
    key, _ = Keyring(store).create("ci", [READ])
    store.revoke_key(key.id, datetime.now(UTC))
    return job


def pages(store: JobStore, size: int, since: datetime, **wanted: Any) -> list[StoredChange]:
    found: list[StoredChange] = []
    after = None
    while page := store.list_changes(since, limit=size, after=after, **wanted):
        found += page
        after = ChangeCursor(page[-1].at, page[-1].place)
    return found


def test_every_history_is_in_the_list_and_keys_only_where_they_may_be_seen(store, insert):
    since = datetime.now(UTC) - timedelta(minutes=1)
    job = fill(store, insert)
    found = store.list_changes(since, limit=100, with_keys=True)
    assert [change.at for change in found] == sorted((change.at for change in found), reverse=True)
    assert {(change.resource, change.id, change.type, change.actor) for change in found} == {
        ("backfill", job, "created", "ann"),
        ("backfill", job, "moved", "key:ann"),
        ("stream", "backup", "launched", "key:ann"),
        ("manifest", "nightly", "applied", "key:ann"),
        ("key", "ci", "created", None),
        ("key", "ci", "revoked", None),
    }
    assert {change.resource for change in store.list_changes(since, limit=100)} == {
        "backfill",
        "stream",
        "manifest",
    }
    assert store.list_changes(datetime.now(UTC) + timedelta(hours=1), limit=100) == []


def test_pages_of_any_size_have_each_change_once_also_where_all_are_of_one_moment(store, insert):
    since = datetime.now(UTC) - timedelta(minutes=1)
    for _ in range(3):
        insert()
    fill(store, insert)
    one = datetime.now(UTC)
    with store._database.write() as connection:
        for table in (EVENTS, STREAM_EVENTS):
            connection.execute(table.update().values(at=one))
        connection.execute(MANIFESTS.update().values(changed_at=one))
        connection.execute(KEYS.update().values(created_at=one, revoked_at=one))
        assert connection.execute(sa.select(sa.func.count()).select_from(EVENTS)).scalar() == 6
    whole = store.list_changes(since, limit=100, with_keys=True)
    assert len(whole) == 9
    for size in (1, 2, 4):
        assert pages(store, size, since, with_keys=True) == whole


def test_who_paused_a_manifest_is_not_taken_for_who_applied_it(store: JobStore) -> None:
    store.put_manifest("nightly", "Schedule", {}, "digest", source="api", principal=ANN)
    store.pause_schedule("nightly", "too many failures")
    (change,) = store.list_changes(datetime.now(UTC) - timedelta(minutes=1), limit=9)
    assert (change.type, change.actor, change.why) == ("paused", None, "too many failures")
