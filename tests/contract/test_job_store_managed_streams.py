"""Streams as records in every job store: who launched them, and histories that do not grow for ever."""

import pytest

from jobs.store import JobStore, events
from model.stream_options import StreamKind
from model.stream_record import Wanted
from tests.work import counted

BACKUP = StreamKind.BACKUP


@pytest.fixture
def launch(store):
    def launch(name="backup", kind=BACKUP, **given):
        return store.launch_stream(name, kind, actor="ann", **given)

    return launch


def lines(store: JobStore, name: str = "backup") -> list[tuple[int | None, str | None, str]]:
    return [(event.generation, event.actor, event.what) for event in store.list_stream_events(name)]


def test_the_record_names_who_launched_this_generation(store):
    first = store.launch_stream("backup", StreamKind.BACKUP, actor="ann")
    assert (first.launched_by, first.launched_at) == ("ann", first.created_at)
    store.end_stream("backup", Wanted.DRAINED, actor="ann")
    again = store.launch_stream("backup", StreamKind.BACKUP, actor="bob")
    assert (again.created_by, again.created_at) == ("ann", first.created_at)
    assert again.launched_by == "bob"
    assert again.launched_at > first.launched_at
    assert [each.launched_by for each in (store.get_stream("backup"), *store.list_streams())] == ["bob", "bob"]


def test_of_a_stream_that_dies_for_years_the_newest_lines_are_kept_and_who_launched_it(store, launch, monkeypatch):
    monkeypatch.setattr(events, "KEPT_LINES", 20)
    launch()
    store.end_stream("backup", Wanted.CANCELLED, actor="ann")
    launch("shop", why="another stream")
    before = lines(store, "shop")
    launch(why="again")
    for number in range(60):
        store.note_stream("backup", actor="agent", what=f"died {number}")
    noted = [(2, "agent", f"died {number}") for number in range(40, 60)]
    assert lines(store) == noted
    assert store.get_stream("backup").launched_by == "ann"
    assert lines(store, "shop") == before


def test_a_look_at_streams_reads_nothing_of_their_histories(store, launch):
    def look():
        with counted(store) as work:
            store.list_streams()
            assert store.get_stream("backup").generation == 2
        return work

    for _ in range(2):
        launch()
        store.end_stream("backup", Wanted.CANCELLED, actor="ann")
    first = look()
    for number in range(300):
        store.note_stream("backup", actor="agent", what=f"died {number}")
    after = look()
    assert (after.statements, after.rows) == (first.statements, first.rows)
    assert after.instructions <= first.instructions + 200, "not one for each line"
