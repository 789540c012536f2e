"""Manifests that come by upload, as records in every job store."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from jobs.store import JobStore, open_store
from model.errors import LeaseLostError, ManifestOwnedError
from model.principal import RUN, SCHEDULES_APPLY, Principal
from tests.worlds.migrations import insert, migrate_to

SOURCE = "upload:gs://ours/manifests"
UPLOADER = Principal(SOURCE, frozenset({RUN, SCHEDULES_APPLY}))


def hold(store: JobStore, holder: str = "a", **given: object) -> bool:
    return store.hold_source(SOURCE, holder, lease_seconds=30, **given)  # type: ignore[arg-type]


def problem_of(store: JobStore) -> tuple[str | None, datetime | None]:
    found = store.find_source(SOURCE)
    return found.fault, None if found.fault is None else found.noted_at


def put(store: JobStore, holder: str, principal: Principal = UPLOADER) -> int:
    return store.put_manifest(
        "nightly", "Schedule", {}, "1", source=SOURCE, principal=principal, holder=holder
    ).version


def test_of_replicas_that_ask_at_once_one_holds_the_source_until_its_lease_is_over(store, url):
    other = open_store(url)
    with ThreadPoolExecutor(8) as pool:
        held = list(pool.map(lambda number: hold((store, other)[number % 2], f"replica {number}"), range(16)))
    assert sorted(held) == [False] * 15 + [True]
    holder = f"replica {held.index(True)}"
    assert hold(other, holder), "a renewal"
    assert not hold(store, "b", is_dead=lambda found: found != holder)
    assert hold(store, "b", is_dead=lambda found: found == holder)
    store.release_source(SOURCE, holder)
    assert not hold(other, "c")
    store.release_source(SOURCE, "b")
    assert hold(other, "c")
    later = datetime.now(UTC) + timedelta(seconds=31)
    store._database.now = lambda _: later  # type: ignore[method-assign]
    assert hold(store, "d")
    other.close()


def test_who_holds_a_source_no_longer_changes_nothing_of_it(store: JobStore) -> None:
    hold(store)
    put(store, "a")
    store.note_upload(SOURCE, "nightly.yaml", "1", None, holder="a")
    store.release_source(SOURCE, "a")
    hold(store, "b")
    for call in (
        lambda: put(store, "a"),
        lambda: store.note_upload(SOURCE, "nightly.yaml", "2", None, holder="a"),
        lambda: store.note_gone(SOURCE, "nightly.yaml", holder="a"),
        lambda: store.forget_upload(SOURCE, "nightly.yaml", holder="a"),
        lambda: store.set_grant(SOURCE, UPLOADER, holder="a"),
        lambda: store.set_source_problem(SOURCE, "away", holder="a"),
    ):
        with pytest.raises(LeaseLostError):
            call()
    (upload,) = store.list_uploads(SOURCE)
    assert (upload.generation, upload.gone_at) == ("1", None)
    assert [record.name for record in store.list_manifests()] == ["nightly"]
    assert problem_of(store) == (None, None)


def test_a_version_is_noted_once_with_one_line_of_audit_and_its_last_good_one_stays(store: JobStore) -> None:
    hold(store)
    for generation, fault in (("1", None), ("1", None), ("2", "wrong"), ("2", "wrong"), ("2", "worse")):
        store.note_upload(SOURCE, "a.yaml", generation, fault, holder="a")
    (upload,) = store.list_uploads(SOURCE)
    assert (upload.generation, upload.fault, upload.applied_generation) == ("2", "worse", "1")
    lines = [(line.actor, line.action, line.target, line.outcome, line.why) for line in store.list_audit(10)[::-1]]
    assert lines == [
        (SOURCE, "applyManifest", "/manifests/a", "done", "generation 1"),
        (SOURCE, "applyManifest", "/manifests/a", "refused", "generation 2: wrong"),
        (SOURCE, "applyManifest", "/manifests/a", "refused", "generation 2: worse"),
    ]


def test_a_file_that_has_gone_keeps_when_it_was_missed_and_comes_back_without_it(store: JobStore) -> None:
    hold(store)
    store.note_upload(SOURCE, "a.yaml", "1", None, holder="a")
    store.note_gone(SOURCE, "a.yaml", holder="a")
    (first,) = store.list_uploads(SOURCE)
    store.note_gone(SOURCE, "a.yaml", holder="a")
    (second,) = store.list_uploads(SOURCE)
    assert (second, second.gone_at is None) == (first, False)
    store.note_upload(SOURCE, "a.yaml", "1", None, holder="a")
    (back,) = store.list_uploads(SOURCE)
    assert (back.gone_at, back.noted_at) == (None, first.noted_at)
    assert [line.outcome for line in store.list_audit(10)] == ["done"]
    store.forget_upload(SOURCE, "a.yaml", holder="a")
    assert store.list_uploads(SOURCE) == []


def test_what_an_upload_left_behind_another_source_may_remove_and_nothing_else(store: JobStore) -> None:
    hold(store)
    put(store, "a")
    store.note_upload(SOURCE, "nightly.yaml", "1", None, holder="a")
    store.note_upload(SOURCE, "other.yaml", "1", None, holder="a")
    with pytest.raises(ManifestOwnedError):
        store.remove_manifest("nightly", source="api")
    store.note_gone(SOURCE, "other.yaml", holder="a")
    with pytest.raises(ManifestOwnedError):
        store.remove_manifest("nightly", source="api")
    store.note_gone(SOURCE, "nightly.yaml", holder="a")
    assert store.remove_manifest("nightly", source="api").name == "nightly"
    assert [each.file for each in store.list_uploads(SOURCE)] == ["other.yaml"]
    put(store, "a")
    store.note_upload(SOURCE, "nightly.yaml", "2", None, holder="a")
    with pytest.raises(ManifestOwnedError):
        store.remove_manifest("nightly", source="api")
    later = datetime.now(UTC) + timedelta(seconds=31)
    store._database.now = lambda _: later  # type: ignore[method-assign]
    assert store.remove_manifest("nightly", source="api").name == "nightly", "nobody watches"
    store.put_manifest("mine", "Schedule", {}, "1", source="REFEED_MERGE_AT", principal=UPLOADER)
    with pytest.raises(ManifestOwnedError):
        store.remove_manifest("mine", source="api")


def test_a_source_s_grant_is_that_of_its_principal_now_and_of_no_other_source(store: JobStore) -> None:
    hold(store)
    put(store, "a")
    store.put_manifest("other", "Schedule", {}, "1", source="api", principal=UPLOADER)
    less = Principal(SOURCE, frozenset({SCHEDULES_APPLY}), ("orders",))
    store.set_grant(SOURCE, less, holder="a")
    found = {record.name: (record.scopes, record.topics) for record in store.list_manifests()}
    assert found == {"nightly": (less.scopes, ("orders",)), "other": (UPLOADER.scopes, None)}


def test_a_problem_that_goes_on_keeps_its_time(store: JobStore) -> None:
    hold(store)
    times = []
    for problem in ("away", "still away"):
        store.set_source_problem(SOURCE, problem, holder="a")
        found = problem_of(store)
        assert found[0] == problem
        times.append(found[1])
    assert times[0] == times[1] is not None
    store.set_source_problem(SOURCE, None, holder="a")
    assert problem_of(store)[0] is None
    assert store.list_uploads(SOURCE) == [], "the source is no file"


AT = "2026-01-02T03:04:05+00:00"


@pytest.mark.usefixtures("migrations")
def test_uploads_of_before_go_on_and_removals_that_waited_expire_with_a_sentence(empty: str) -> None:
    engine = migrate_to(empty, "0027")
    with engine.begin() as connection:
        for source, problem in ((SOURCE, None), ("upload:/old", "away")):
            times = {"problem": problem, "problem_at": problem and AT, "lease_until": AT}
            insert(connection, "upload_sources", source=source, lease_owner="a", **times)
        facts = {"kind": "Schedule", "digest": "d", "source": SOURCE, "version": 1, "document": {}}
        facts |= {"scopes": [], "settled_until": AT, "changed_at": AT, "applied_by": SOURCE, "created_at": AT}
        for name in ("stays", "gone", "waits"):
            insert(connection, "manifests", name=name, **facts)
        noted = {"source": SOURCE, "generation": "1", "noted_at": AT}
        for name, given in {
            "stays": {"applied_generation": "1"},
            "faulty": {"fault": "It is wrong."},
            "gone": {"applied_generation": "1", "gone_at": AT},
            "waits": {"applied_generation": "1", "gone_at": AT, "waits": "Ask.", "approval_id": "ap_1"},
            "removed": {"applied_generation": "1", "gone_at": AT, "removed_at": AT},
        }.items():
            insert(connection, "manifest_uploads", file=f"{name}.yaml", **noted, **given)
        until = (datetime.now(UTC) + timedelta(hours=12)).isoformat()
        asked = {"scope": SCHEDULES_APPLY, "requested_by": SOURCE, "scopes": [], "requested_at": AT, "version": 1}
        for number, kind, state in (
            (1, "manifest", "WAITING"),
            (2, "manifest", "REJECTED"),
            (3, "stream", "WAITING"),
        ):
            what = {"kind": kind, "name": "waits", "action": "remove", "what": "Remove it.", "state": state}
            insert(connection, "approvals", id=f"ap_{number}", request={}, expires_at=until, **what, **asked)
    engine.dispose()
    with closing(open_store(empty)) as store:
        found = {
            each.file: (each.applied_generation, each.fault, each.gone_at) for each in store.list_uploads(SOURCE)
        }
        moment = datetime.fromisoformat(AT)
        assert found == {
            "faulty.yaml": (None, "It is wrong.", None),
            "gone.yaml": ("1", None, moment),
            "stays.yaml": ("1", None, None),
            "waits.yaml": ("1", None, moment),
        }
        old = store.find_source("upload:/old")
        assert (old.fault, old.noted_at) == ("away", moment)
        changes = [store.get(f"ap_{number}") for number in (1, 2, 3)]
        assert [change.state for change in changes] == ["FAILED", "CANCELLED", "PENDING"]
        assert "Nothing was removed" in str(changes[0].error)
        assert hold(store, "b"), "the lease of before is over"
        with pytest.raises(ManifestOwnedError):
            store.remove_manifest("stays", source="api")
        assert store.remove_manifest("waits", source="api").name == "waits"
        assert {each.name for each in store.list_manifests()} == {"gone", "stays"}
