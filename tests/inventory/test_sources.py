"""Sources with their figures and the versions of their tables, over a registry and a lake of their own."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from inventory import sources
from inventory.sources import MAX_LISTED, SourceCatalog, SourceFigures
from jobs.store import JobStore
from model.errors import ForbiddenError, RequestInvalidError, SourceNotFoundError, WarehouseError
from model.event import HistoryEventType
from model.moment import render_time
from model.principal import LOCAL, MESSAGES, Principal
from model.settings import Settings, read_settings
from model.stream_options import StreamKind
from model.volume import HourVolumes, Volume
from model.window import Window
from pipeline.dead_letters import DEAD_LETTER_SCHEMA
from pipeline.inferred import EventType, Variation
from pipeline.registry import Registry
from pipeline.repository import SchemaRepository, repository_table
from pipeline.shapes import Shape, variation_hash
from tests.pipeline.conftest import compile_protos
from tests.worlds.restores import end_restore
from tests.worlds.snapshot_jobs import complete_snapshot
from warehouse.open import open_warehouse

SOURCES = """
sources:
  orders: {topic: orders, message: shop.Order, key: id, group: shop}
  hooks: {topic: hooks, schema: inferred, event_type_attribute: type}
  broken: {topic: broken, message: shop.Missing, group: shop}
"""
MESSAGE = 'syntax = "proto3"; package shop; message Order { int64 id = 1; }'
NARROW = Shape("RECORD", fields={"id": Shape("INT", column="id"), "old": Shape("BOOL", column="old")})
WIDE = Shape(
    "RECORD",
    fields={"id": Shape("TEXT", column="id"), "old": Shape("BOOL", column="old"), "at": Shape("INT", column="at")},
)
HOUR = timedelta(hours=1)


class World:
    """A registry and a lake in a home; what streams, merges and the archive tell is given by the test."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.statuses: list[dict[str, Any]] = []
        self.merged: list[dict[str, Any]] = []
        self.unknown: tuple[Window, ...] = ()
        self.store = JobStore(settings.home / "jobs.db")
        self.catalog = SourceCatalog(
            settings.registry,
            SourceFigures(self, lambda: self.statuses, self.merged_since),  # type: ignore[arg-type]
            self.open_tables,
            settings.dead_letter_table,
            self.store,
        )

    def open_tables(self) -> Any:
        return open_warehouse(self.settings).open_row_tables(stream="", lease="")

    def hours(self, window: Window) -> HourVolumes:
        assert timedelta(hours=24) <= window.width <= timedelta(hours=25)
        return HourVolumes(
            {window.start + HOUR: {"orders": Volume(3, 30)}, window.start: {"x": Volume(9, 9)}}, self.unknown
        )

    def merged_since(self, since: datetime) -> Sequence[Mapping[str, Any]]:
        assert since < datetime.now(UTC) - timedelta(days=13)
        return self.merged

    def note(self, source: str, event_type: str, number: int, shape: Shape, table: str) -> None:
        with closing(open_warehouse(self.settings).open_row_tables(stream="s", lease="l")) as tables:
            tables.create()
            tables.open(self.settings.dead_letter_table).evolve(DEAD_LETTER_SCHEMA)
            tables.leases().take_lease("l")
            repository = SchemaRepository(tables, repository_table(self.settings.dead_letter_table))
            variation = Variation(source, event_type, variation_hash(shape), shape, '{"id": 1}')
            repository.append([EventType(event_type, table, number, shape)], [variation])

    def discard(self, rows: Mapping[str, int]) -> None:
        """Restore a stream, as an agent does that discards rows of its staging tables."""
        if not self.store.list_streams():
            self.store.launch_stream("shop", StreamKind.PIPELINE, actor="ann", options={"group": "shop"})
        taken = self.store.create_snapshot("shop", with_source=False, actor="ann")
        complete_snapshot(self.store, taken.id, taken_at=datetime.now(UTC))
        asked = self.store.create_restore("shop", taken.id, actor="ann", discard_staged=True)
        end_restore(self.store, asked.id, discarded_rows=rows)

    def find(self, name: str) -> dict[str, Any]:
        return self.catalog.show_source(name, principal=LOCAL)


@pytest.fixture(scope="module")
def descriptors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("protos")
    (folder / "shop.proto").write_text(MESSAGE)
    return compile_protos(folder, "shop.proto")


@pytest.fixture
def world(tmp_path, descriptors):
    settings = read_settings({}, home=tmp_path)
    Registry(settings.registry).publish({"shop.desc": descriptors, "sources.yaml": SOURCES.encode()})
    with closing((made := World(settings)).store):
        yield made


def test_every_source_has_its_topic_and_tables_and_nothing_that_nobody_told(world):
    broken, hooks, orders = world.catalog.list_sources(principal=LOCAL)
    assert (orders["topic"], orders["tables"]) == ("orders", ["staging.orders"])
    assert (orders["reporting"], orders["key"]) == ("reporting.orders", ["id"])
    assert orders["archived"]["messages"] == 3
    assert (orders["staged"], orders["merged"], orders["fault"]) == (None, None, None)
    assert (hooks["is_inferred"], hooks["tables"], hooks["archived"]["messages"]) == (True, [], 0)
    assert (broken["group"], broken["topic"], broken["archived"]) == ("shop", None, None)
    assert "shop.Missing" in broken["fault"]["message"]
    world.unknown = (Window(datetime.now(UTC) - HOUR, datetime.now(UTC)),)
    assert world.find("orders")["archived"]["messages"] is None


def test_what_is_counted_of_a_source_is_that_of_the_newest_stream(world):
    unknown = {f"f{number:02d}": number + 1 for number in range(MAX_LISTED + 5)}
    counts = {"rows": {"staged": 7}, "unknown": unknown, "missing": {"id": 2}, "refused": {"not_json": 4}}
    world.statuses = [
        {"at": 20.0, "started_at": 10.0, "sources": {"orders": counts}},
        {"at": 15.0, "started_at": 1.0, "sources": {"orders": {"rows": {"staged": 900}}, "hooks": {}}},
        {"at": 30.0, "started_at": 1.0, "totals": {}},
    ]
    found = world.find("orders")["staged"]
    assert (found["rows"], found["since"]) == (7, "1970-01-01T00:00:10.000000Z")
    assert found["at"] == "1970-01-01T00:00:20.000000Z"
    assert found["refused"] == {"total": 4, "largest": [{"what": "not_json", "count": 4}]}
    assert found["missing_fields"]["total"] == 2
    assert (found["unknown_fields"]["total"], len(found["unknown_fields"]["largest"])) == (120, 15)
    listed = world.catalog.list_sources(principal=LOCAL)[2]["staged"]["unknown_fields"]
    assert (listed["total"], len(listed["largest"])) == (120, MAX_LISTED)
    assert listed["largest"][0] == {"what": "f14", "count": 15}
    hooks = world.find("hooks")["staged"]
    assert (hooks["rows"], hooks["refused"]) == (0, {"total": 0, "largest": []})


def test_a_process_that_has_counted_nothing_yet_is_not_shown_with_the_rows_of_the_one_before(world):
    names = ["refeed-pipeline.orders"]
    before = {"rows": {"staged": 7}, "refused": {"not_json": 4}}
    world.statuses = [
        {"at": 20.0, "started_at": 10.0, "subscriptions": names, "sources": {"orders": before}},
        {"at": 30.0, "started_at": 25.0, "subscriptions": names, "sources": {}},
        # Of a process that has not said yet what it reads, and of another group's.
        {"at": 40.0, "started_at": 35.0},
        {"at": 50.0, "started_at": 45.0, "subscriptions": ["refeed-pipeline.others"], "sources": {}},
    ]
    found = world.find("orders")["staged"]
    assert (found["rows"], found["since"]) == (0, "1970-01-01T00:00:25.000000Z")
    assert found["refused"]["total"] == 0


def test_rows_that_a_restore_has_discarded_do_not_count(world):
    now = datetime.now(UTC).timestamp()
    counted = {"rows": {"staged": 7}}
    world.statuses = [{"at": now, "started_at": now - 60, "sources": {"orders": counted, "hooks": counted}}]
    world.note("hooks", "push", 1, NARROW, "staging.hooks_push")
    world.note("hooks", "pull", 1, NARROW, "staging.hooks_pull")
    world.discard({"staging.orders": 3, "staging.hooks_push": 1, "staging.hooks_pull": 1})
    assert [world.find(name)["staged"]["rows"] for name in ("orders", "hooks")] == [4, 5]
    # The rows of a process before this one were discarded too.
    world.discard({"staging.orders": 900})
    assert world.find("orders")["staged"]["rows"] == 0
    world.statuses = [{"at": now + 120, "started_at": now + 60, "sources": {"orders": counted}}]
    assert world.find("orders")["staged"]["rows"] == 7, "the process began after the restores"


def test_the_newest_merge_of_a_source_is_shown(world):
    line = {"source": "orders", "state": "merged", "until": None, "changed": 5, "newer": 4, "without_key": 2}
    line |= {"rows_before": 1, "rows_after": 5, "error": None, "finished_at": datetime(2026, 1, 2, tzinfo=UTC)}
    world.merged = [{**line, "merge_id": "mg_2"}, {**line, "merge_id": "mg_1", "newer": 9}]
    merged = world.find("orders")["merged"]
    assert (merged["merge_id"], merged["newer"], merged["finished_at"][:10]) == ("mg_2", 4, "2026-01-02")
    assert merged["without_key"] == 2
    assert world.find("hooks")["merged"] is None


def test_the_versions_of_an_inferred_table_are_compared(world):
    world.note("hooks", "push", 1, NARROW, "staging.hooks_push")
    world.note("hooks", "push", 2, WIDE, "staging.hooks_push")
    world.note("hooks", "pull", 1, NARROW, "staging.hooks_pull")
    # Of another source that had the name before.
    world.note("hooks", "push", 3, NARROW, "staging.others_push")

    def ask(**options):
        return world.catalog.list_versions("hooks", principal=LOCAL, **options)

    every = ask()
    assert [(each["event_type"], each["number"], each["table"]) for each in every["versions"]] == [
        ("pull", 1, "staging.hooks_pull"),
        ("push", 1, "staging.hooks_push"),
        ("push", 2, "staging.hooks_push"),
    ]
    assert every["diff"] is None, "several types have versions"
    diff = ask(event_type="push")["diff"]
    assert diff == {
        "event_type": "push",
        "from": 1,
        "to": 2,
        "added": [{"path": "at", "type": "INT64"}],
        "removed": [],
        "changed": [{"path": "id", "before": "INT64", "after": "STRING", "is_wider": True}],
    }
    back = ask(event_type="push", before=2, after=1)["diff"]
    assert (back["removed"], back["changed"][0]["is_wider"]) == ([{"path": "at", "type": "INT64"}], False)
    assert ask(event_type="pull")["diff"] is None, "there is one version alone"
    for options in ({"event_type": "none"}, {"before": 1}, {"event_type": "push", "after": 3}):
        with pytest.raises(RequestInvalidError):
            ask(**options)
    hooks = world.find("hooks")
    assert hooks["tables"] == ["staging.hooks_pull", "staging.hooks_push"]
    change = hooks["last_type_change"]
    assert (change["event_type"], change["table"], change["number"]) == ("push", "staging.hooks_push", 2)
    assert (change["changed"], change["columns"]) == (diff["changed"], every["versions"][2]["columns"])
    assert change["noted_at"] == every["versions"][2]["noted_at"]
    assert world.catalog.list_versions("orders", principal=LOCAL)["versions"] == []


def test_a_new_column_is_no_change_of_a_type_and_the_newest_change_is_shown(world):
    wider = Shape("RECORD", fields={**WIDE.fields, "old": Shape("JSON", column="old")})
    more = Shape("RECORD", fields={**wider.fields, "new": Shape("INT", column="new")})
    for number, shape in enumerate((NARROW, WIDE, wider, more), 1):
        world.note("hooks", "push", number, shape, "staging.hooks_push")
    world.note("hooks", "pull", 1, NARROW, "staging.hooks_pull")
    change = world.find("hooks")["last_type_change"]
    assert (change["table"], change["number"]) == ("staging.hooks_push", 3)
    assert change["changed"] == [{"path": "old", "before": "BOOL", "after": "JSON", "is_wider": True}]
    assert world.find("orders")["last_type_change"] is None


def test_a_type_change_is_in_the_history_once_and_in_the_inbox_until_somebody_publishes_the_source(world):
    world.note("hooks", "push", 1, NARROW, "staging.hooks_push")
    world.note("hooks", "push", 2, WIDE, "staging.hooks_push")
    for _ in range(2):
        world.catalog.note_type_changes()
    (event,) = world.store.list_last_events(limit=9, of=("source", "hooks"))
    assert (event.type, event.actor, event.fields["table"]) == ("changed", "pipeline", "staging.hooks_push")
    assert event.fields["changes"] == [{"pointer": "/id", "before": "INT64", "after": "STRING"}]
    assert render_time(event.at) == world.find("hooks")["last_type_change"]["noted_at"]
    assert world.store.list_last_events(limit=9) == [event]
    (item,) = world.catalog.list_inbox(principal=LOCAL)
    assert (item.kind, item.resource, item.id, item.since) == ("type_change", "source", "hooks", event.at)
    assert item.message == "Columns of staging.hooks_push have another type: id was INT64 and is STRING."
    world.store.note_event("source", "hooks", "published again", actor="ann", kind=HistoryEventType.APPLIED)
    assert world.catalog.list_inbox(principal=LOCAL) == []


def test_a_type_change_of_long_ago_is_no_news(world, monkeypatch):
    world.note("hooks", "push", 1, NARROW, "staging.hooks_push")
    world.note("hooks", "push", 2, WIDE, "staging.hooks_push")
    monkeypatch.setattr(sources, "_CHANGED_WITHIN", timedelta(0))
    world.catalog.note_type_changes()
    assert world.store.list_last_events(limit=9) == []


def test_type_changes_that_can_not_be_read_stop_nothing(world, monkeypatch):
    def fail():
        raise WarehouseError("The warehouse is away.")

    monkeypatch.setattr(world.catalog, "_open_tables", fail)
    world.catalog.note_type_changes()
    assert world.catalog.list_inbox(principal=LOCAL) == []


def test_a_source_that_the_registry_lacks_is_not_found(world, tmp_path):
    with pytest.raises(SourceNotFoundError, match="orders"):
        world.find("ordres")
    with pytest.raises(SourceNotFoundError):
        world.catalog.list_versions("broken", principal=LOCAL)
    with pytest.raises(ForbiddenError):
        world.catalog.list_sources(principal=Principal("key:x", frozenset({MESSAGES})))
    empty = World(read_settings({}, home=tmp_path / "other"))
    with closing(empty.store):
        assert empty.catalog.list_sources(principal=LOCAL) == []


def test_the_registry_is_read_again_when_it_changes(world):
    Registry(world.settings.registry).publish({"sources.yaml": b"sources: {new: {topic: new, schema: inferred}}"})
    assert [each["name"] for each in world.catalog.list_sources(principal=LOCAL)] == ["new"]
