"""Manifests that come by upload, as records in every job store."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from jobs.store import JobStore, open_store
from model.errors import LeaseLostError
from model.principal import RUN, SCHEDULES_APPLY, Principal

SOURCE = "upload:gs://ours/manifests"
UPLOADER = Principal(SOURCE, frozenset({RUN, SCHEDULES_APPLY}))


def hold(store: JobStore, holder: str = "a", **given: object) -> bool:
    return store.hold_source(SOURCE, holder, lease_seconds=30, **given)  # type: ignore[arg-type]


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
        lambda: store.remove_manifest("nightly", source=SOURCE, holder="a"),
        lambda: store.note_upload(SOURCE, "nightly.yaml", "2", None, holder="a"),
        lambda: store.note_gone(SOURCE, "nightly.yaml", holder="a"),
        lambda: store.note_removed(SOURCE, "nightly.yaml", "gone", holder="a"),
        lambda: store.forget_upload(SOURCE, "nightly.yaml", holder="a"),
        lambda: store.set_grant(SOURCE, UPLOADER, holder="a"),
        lambda: store.set_source_problem(SOURCE, "away", holder="a"),
    ):
        with pytest.raises(LeaseLostError):
            call()
    (upload,) = store.list_uploads(SOURCE)
    assert (upload.generation, upload.gone_at, upload.removed_at) == ("1", None, None)
    assert [record.name for record in store.list_manifests()] == ["nightly"]
    assert store.list_upload_sources()[0].problem is None


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
    store.note_gone(SOURCE, "a.yaml", holder="a", waits="ask ann")
    (second,) = store.list_uploads(SOURCE)
    assert (second.gone_at, second.waits) == (first.gone_at, "ask ann")
    store.note_upload(SOURCE, "a.yaml", "1", None, holder="a")
    (back,) = store.list_uploads(SOURCE)
    assert (back.gone_at, back.waits, back.noted_at) == (None, None, first.noted_at)
    store.note_removed(SOURCE, "a.yaml", "the file has gone", holder="a")
    assert store.list_uploads(SOURCE)[0].removed_at is not None
    assert [line.outcome for line in store.list_audit(10)] == ["done", "refused", "done"]
    store.forget_upload(SOURCE, "a.yaml", holder="a")
    assert store.list_uploads(SOURCE) == []


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
    for problem in ("away", "still away"):
        store.set_source_problem(SOURCE, problem, holder="a")
    (source,) = store.list_upload_sources()
    assert (source.problem, source.problem_at is not None) == ("still away", True)
    store.set_source_problem(SOURCE, None, holder="a")
    assert store.list_upload_sources()[0].problem_at is None
