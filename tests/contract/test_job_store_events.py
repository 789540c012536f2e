"""Who did what and when, in every job store: one list, newest first, page by page without a loss."""

from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from jobs.keys import Keyring
from jobs.store import open_store
from jobs.store.tables import EVENTS
from model.job import JobState
from model.principal import READ, Principal
from model.stream_options import StreamKind
from tests.worlds.migrations import AT, insert, insert_stream, migrate_to

ANN = Principal("key:ann", frozenset({READ}))


def fill(store, insert):
    job = insert()
    store.move(job, JobState.CANCELLED, actor="key:ann", why="a mistake")
    store.set_verification(job, {"state": "complete"}, actor="refeed", epoch=0, again_seconds=None)
    store.launch_stream("backup", StreamKind.BACKUP, actor="key:ann")
    store.put_manifest("nightly", "Schedule", {}, "digest", source="api", principal=ANN)
    key, _ = Keyring(store).create("ci", [READ])
    store.revoke_key(key.id, datetime.now(UTC))
    return job


def pages(store, size, since, **wanted):
    found = []
    before = None
    while page := store.list_last_events(since, limit=size, before=before, **wanted):
        found += page
        before = (page[-1].at, page[-1].number)
    return found


def test_every_history_is_in_the_list_and_keys_only_where_they_may_be_seen(store, insert):
    since = datetime.now(UTC) - timedelta(minutes=1)
    job = fill(store, insert)
    found = store.list_last_events(since, limit=100, with_keys=True)
    assert [event.at for event in found] == sorted((event.at for event in found), reverse=True)
    assert {(event.resource, event.id, event.type, event.actor) for event in found} == {
        ("backfill", job, "created", "ann"),
        ("backfill", job, "moved", "key:ann"),
        ("stream", "backup", "launched", "key:ann"),
        ("manifest", "nightly", "applied", "key:ann"),
        ("key", "ci", "created", None),
        ("key", "ci", "revoked", None),
    }
    assert {event.resource for event in store.list_last_events(since, limit=100)} == {
        "backfill",
        "stream",
        "manifest",
    }
    assert store.list_last_events(datetime.now(UTC) + timedelta(hours=1), limit=100) == []
    first, *later = sorted(event.number for event in store.list_last_events(since, limit=100))
    newer = store.list_last_events(since, limit=100, after=first)
    assert sorted(event.number for event in newer) == later


def test_what_happened_to_a_topic_or_a_source_is_its_history_and_in_the_list(store, insert):
    at = datetime.now(UTC) - timedelta(hours=1)
    for _ in range(2):
        store.note_event("source", "orders", "types changed", actor="pipeline", at=at, table="staging.orders")
    store.note_event("topic", "orders", "attached", actor="ann")
    store.note_event("topic", "orders", "attached", actor="ann")
    insert()
    (event,) = store.list_last_events(limit=9, of=("source", "orders"))
    assert (event.type, event.at, event.actor) == ("noted", at, "pipeline")
    assert event.fields == {"table": "staging.orders"}
    assert [each.what for each in store.list_last_events(limit=9, of=("topic", "orders"))] == ["attached"] * 2
    assert store.list_last_events(limit=9, of=(None, "orders")) == [], "neither is a job"
    listed = [each.resource for each in store.list_last_events(at, limit=9)]
    assert sorted(listed) == ["backfill", "source", "topic", "topic"]


def test_pages_of_any_size_have_each_line_once_also_where_all_are_of_one_moment(store, insert):
    since = datetime.now(UTC) - timedelta(minutes=1)
    for _ in range(3):
        insert()
    fill(store, insert)
    with store._database.write() as connection:
        connection.execute(EVENTS.update().values(at=datetime.now(UTC)))
    whole = store.list_last_events(since, limit=100, with_keys=True)
    assert len(whole) == 9
    for size in (1, 2, 4):
        assert pages(store, size, since, with_keys=True) == whole


def test_an_object_s_history_is_its_own_also_beside_another_kind_s_of_the_same_name(store, insert):
    job = fill(store, insert)
    store.launch_stream("nightly", StreamKind.BACKUP, actor="bob")
    Keyring(store).create("nightly", [READ])

    def history(resource, name, **given):
        return [event.type.value for event in store.list_last_events(limit=9, of=(resource, name), **given)]

    assert history(None, job) == ["found", "moved", "created"], "a job's verdicts are in its own history"
    assert history("stream", "nightly") == ["launched"]
    assert history("manifest", "nightly") == ["applied"]
    assert history("key", "nightly") == []
    assert history("key", "nightly", with_keys=True) == ["created"]
    assert history(None, "nightly") == []
    (newest,) = store.list_last_events(limit=1, of=(None, job))
    assert history(None, job, before=(newest.at, newest.number)) == ["moved", "created"]


def test_a_manifest_s_history_says_who_changed_paused_resumed_and_removed_it(store):
    store.put_manifest("nightly", "Schedule", {}, "digest", source="api", principal=ANN)
    store.put_manifest("nightly", "Schedule", {}, "digest", source="api", principal=ANN)
    store.put_manifest("nightly", "Schedule", {"at": 2}, "other", source="api", principal=ANN)
    store.pause_schedule("nightly", "too many failures")
    store.pause_schedule("nightly", None, actor="bob")
    store.pause_schedule("nightly", None, actor="bob")
    store.remove_manifest("nightly", source="api", actor="cem")
    found = store.list_last_events(limit=99, of=("manifest", "nightly"))
    assert [(event.type, event.actor, event.what, event.why) for event in reversed(found)] == [
        ("applied", "key:ann", "applied, version 1", None),
        ("applied", "key:ann", "changed, version 2", None),
        ("paused", "schedule:nightly", "paused", "too many failures"),
        ("resumed", "bob", "resumed", None),
        ("removed", "cem", "removed", None),
    ]
    applied = [event.fields for event in reversed(found) if event.type == "applied"]
    changes = [{"pointer": "/at", "before": None, "after": 2}]
    assert applied == [{"version": 1}, {"version": 2, "changes": changes}]


@pytest.mark.usefixtures("migrations")
def test_the_histories_of_an_earlier_refeed_are_one_with_what_was_known_of_manifests_and_keys(empty):
    engine = migrate_to(empty, "0029")
    with engine.begin() as connection:
        facts = {"kind": "backfill", "state": "RUNNING", "request": {}, "progress": {}, "epoch": 0, "version": 1}
        insert(connection, "jobs", id="bf_1", created_by="ann", created_at=AT, **facts)
        line = {"at": AT, "actor": "ann", "what": "done", "why": "so", "fields": {"options": ["rate"]}}
        for number in (3, 8):
            insert(connection, "events", number=number, job_id="bf_1", type="changed", **line)
        for name in ("backup", "shop"):
            insert_stream(connection, name)
        for number, generation, kind, actor in (
            (1, 1, "launched", "ann"),
            (2, 2, "launched", "bob"),
            (4, 2, "noted", "cem"),
        ):
            at = f"2026-01-02T03:04:0{number}+00:00"
            row = {"stream": "backup", "number": number, "generation": generation, "type": kind, "actor": actor}
            insert(connection, "stream_events", **{**line, **row, "at": at})
        manifest = {"kind": "Schedule", "digest": "d", "source": "api", "version": 4, "document": {}, "scopes": []}
        manifest |= {"settled_until": AT, "changed_at": AT, "applied_by": "ann", "created_at": AT}
        for name, more in (
            ("applied", {}),
            ("paused", {"paused": "bob paused it."}),
            ("removed", {"removed_at": AT}),
        ):
            insert(connection, "manifests", name=name, **manifest, **more)
        key = {"digest": "d", "name": "ci", "scopes": [], "created_at": AT, "revoked_at": AT, "prefix": "abc"}
        insert(connection, "keys", id="key_1", **key)
    engine.dispose()

    with closing(open_store(empty)) as store:
        lines = store.list_events("bf_1")
        assert [(each.number, each.actor, each.why, each.has_changed("rate")) for each in lines] == [
            (3, "ann", "so", True),
            (8, "ann", "so", True),
        ], "a caller who reads on from a number goes on there"
        lines = store.list_stream_events("backup")
        assert [(each.generation, each.type, each.actor) for each in lines] == [
            (1, "launched", "ann"),
            (2, "launched", "bob"),
            (2, "noted", "cem"),
        ]
        backup, shop = store.list_streams()
        assert (backup.launched_by, backup.launched_at) == ("bob", datetime(2026, 1, 2, 3, 4, 2, tzinfo=UTC))
        assert (shop.launched_by, shop.launched_at) == ("ann", shop.created_at), "its launch was not kept"

        def last(resource, name):
            found = store.list_last_events(limit=9, of=(resource, name), with_keys=True)
            return [(each.type.value, each.actor, each.what) for each in found]

        assert last("manifest", "applied") == [("applied", "ann", "applied, version 4")]
        assert last("manifest", "paused") == [("paused", None, "paused, version 4")]
        assert last("manifest", "removed") == [("removed", None, "removed, version 4")]
        assert last("key", "ci") == [("revoked", None, "revoked"), ("created", None, "created")]
        newest = max(each.number for each in store.list_last_events(limit=99, with_keys=True))
        store.change("bf_1", actor="ann", what="changed")
        assert store.list_events("bf_1")[-1].number > newest
