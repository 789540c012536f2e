import json
import re
from contextlib import closing

import pytest

from cli.registry import source_to_entry
from connectors.lake.rows import LakeRowTable
from jobs.store import JobStore
from model.settings import read_settings
from pipeline.entries import SourceEntry
from pipeline.registry import Registry, Source
from tests.pipeline.conftest import compile_protos

SOURCES = """
sources:
  orders: {topic: orders, message: shop.Order, key: id}
  hooks: {topic: hooks, schema: inferred}
"""


@pytest.fixture
def files(tmp_path):
    """Return what writes the files of a registry into a folder of the caller's and returns their paths."""

    def write(fields: str = "int64 id = 1; string name = 2;", sources: str = SOURCES) -> list[str]:
        folder = tmp_path / "mine"
        folder.mkdir(exist_ok=True)
        (tmp_path / "shop.proto").write_text(f'syntax = "proto3";\npackage shop;\nmessage Order {{ {fields} }}\n')
        (folder / "shop.desc").write_bytes(compile_protos(tmp_path, "shop.proto"))
        (folder / "sources.yaml").write_text(sources)
        return [str(folder / "shop.desc"), str(folder / "sources.yaml")]

    return write


@pytest.fixture
def settings(home):
    return read_settings({"REFEED_HOME": str(home)})


def test_files_are_checked_as_if_they_were_published_and_are_not(refeed, files, settings):
    result = refeed("source", "check", *files())
    assert result.code == 0
    assert "shop.Order" in result.out
    assert "inferred" in result.out
    assert "no binary protobuf messages" in result.out
    inferred = files(sources="sources: {hooks: {topic: hooks, schema: inferred}}")[1]
    assert "protobuf" not in refeed("source", "check", inferred).out
    for command in ("check", "publish"):
        said = " ".join(refeed("source", command, "--help").out.split())
        assert "no binary protobuf messages" in said
    assert Registry(settings.registry).read_files() == {}


def test_an_inferred_source_is_named_although_nothing_of_it_can_be_compared(refeed, files):
    (path,) = files(sources="sources: {hooks: {topic: hooks, schema: inferred}}")[1:]
    for command in ("diff", "publish"):
        result = refeed("source", command, path)
        assert (result.code, "hooks: a new source. Its schema is inferred" in result.out) == (0, True)
    assert "hooks: no change of its entry." in refeed("source", "diff", path).out
    (path,) = files(sources="sources: {hooks: {topic: calls, schema: inferred}}")[1:]
    assert "hooks: its entry changes." in refeed("source", "diff", path).out
    assert '  topic: "hooks" -> "calls"' in refeed("source", "diff", path).out


@pytest.mark.parametrize(
    ("field", "before", "after"),
    [
        ("topic", "orders", "sales"),
        ("subscription", "refeed-pipeline.orders", "mine"),
        ("scalars_as_text", False, True),
        ("staging", "staging.orders", "staging.sales"),
        ("reporting", "reporting.orders", "reporting.sales"),
        ("key", ["id"], ["id", "name"]),
        ("event_time", None, "name"),
        ("partition", None, "ingest_time"),
        ("dedup_order", [], ["id"]),
        ("group", "default", "shop"),
        ("variant", "plain", "change_data"),
        ("publish", None, "rows"),
    ],
)
def test_a_change_of_every_field_of_a_source_is_a_difference(refeed, files, field, before, after):
    sources = {"sources": {"orders": {"topic": "orders", "message": "shop.Order", "key": "id"}}}
    assert refeed("source", "publish", *files(sources=json.dumps(sources))).code == 0
    sources["sources"]["orders"][field] = after
    changed = files(sources=json.dumps(sources))
    found = json.loads(refeed("source", "diff", "--json", *changed).out)["sources"][0]["entry"]
    assert {"pointer": f"/{field}", "before": before, "after": after} in found
    said = refeed("source", "diff", *changed).out
    assert f"  {field}: {'nothing' if before is None else json.dumps(before)} -> {json.dumps(after)}" in said
    assert "no change" not in said


@pytest.mark.parametrize(
    ("field", "given", "after"),
    [
        ("delete", {"variant": "change_data"}, "soft"),
        ("publish_ordering", {"publish": "rows"}, "key"),
        ("event_type_attribute", {"schema": "inferred", "message": None, "key": []}, "type"),
    ],
)
def test_a_change_of_a_field_that_needs_another_is_a_difference(refeed, files, field, given, after):
    first = {"topic": "orders", "message": "shop.Order", "key": "id", **given}
    for entry in (first, {**first, field: after}):
        changed = files(sources=json.dumps({"sources": {"orders": entry}}))
        said = refeed("source", "diff", *changed).out
        assert refeed("source", "publish", *changed).code == 0
    assert f"  {field}: " in said
    assert f' -> "{after}"' in said


def test_every_field_of_a_source_is_compared():
    compared = {name for name in SourceEntry.model_fields if name != "schema_"}
    source = Source("orders", "orders", "s", "t.o", "r.o", "default", "plain")
    assert compared <= source_to_entry(source).keys()


def test_a_descriptor_that_changes_no_column_is_a_difference(refeed, files):
    assert refeed("source", "publish", *files("int64 id = 1; string name = 2;")).code == 0
    said = refeed("source", "diff", *files("int64 id = 1; string name = 3;")).out
    assert "schema_version: " in said
    assert "orders -> staging.orders: no change" not in said


def test_a_source_that_is_left_out_is_a_difference(refeed, files):
    assert refeed("source", "publish", *files()).code == 0
    said = refeed("source", "diff", *files(sources="sources: {hooks: {topic: hooks, schema: inferred}}")).out
    assert "orders: removed. The pipeline reads its topic no longer" in said


def test_what_is_published_is_in_the_history_of_each_source(refeed, files, settings):
    def last(name):
        with closing(JobStore(settings.job_store)) as store:
            found = store.list_last_events(limit=9, of=("source", name))
        return [(each.type.value, each.what, each.fields) for each in found]

    for sources in (SOURCES, SOURCES, SOURCES.replace("topic: hooks", "topic: calls")):
        assert refeed("source", "publish", *files(sources=sources)).code == 0
    changed, made = last("hooks")
    assert made == ("applied", "published", {})
    assert changed[:2] == ("applied", "published again")
    assert {"pointer": "/topic", "before": "hooks", "after": "calls"} in changed[2]["changes"]
    assert [what for _, what, _ in last("orders")] == ["published"]
    alone = files(sources="sources: {hooks: {topic: calls, schema: inferred}}")[1]
    assert refeed("source", "publish", alone).code == 0
    assert last("orders")[0] == ("removed", "removed", {})


def test_the_help_shows_a_whole_file_and_the_words_for_other_sources(refeed, files):
    said = " ".join(refeed("source", "publish", "--help").out.split())
    example, message = (re.search(f"`({words})`", said).group(1) for words in ("sources: .*?", "message: .*?"))
    descriptors, path = files(sources=example)
    assert refeed("source", "check", path).code == 0
    named = re.search(r"The fields of a source are (.*?)\.", said).group(1).replace(" and ", ", ")
    assert named.split(", ") == [field.alias or name for name, field in SourceEntry.model_fields.items()]
    with_message = example.replace("schema: inferred", f"{message}, key: id")
    files(sources=with_message)
    checked = refeed("source", "check", descriptors, path)
    assert (with_message != example, checked.code, "shop.Order" in checked.out) == (True, 0, True), checked.err


INFERRED = """
sources:
  orders: {topic: orders, message: shop.Order, key: id}
  visits: {topic: visits, schema: inferred, key: id, partition: at}
  hooks: {topic: hooks, schema: inferred, key: id, partition: _publish_time}
  calls: {topic: calls, schema: inferred, key: id, partition: ingest_time}
"""


def test_what_can_never_be_merged_is_a_finding_and_no_fault(refeed, files, settings):
    given = files("optional int64 id = 1;", INFERRED)
    checked = refeed("source", "check", *given)
    assert checked.code == 0
    (line,) = [line for line in checked.out.splitlines() if line.startswith("note: ")]
    assert line.startswith("note: visits.partition: 'at' is ")
    assert "_publish_time" in line
    found = json.loads(refeed("source", "check", "--json", *given).out)["findings"]
    assert [(each["source"], each["field"]) for each in found] == [("visits", "partition")]
    assert refeed("source", "publish", *given).code == 0
    snapshot = Registry(settings.registry).read_valid()
    assert [source.name for source in snapshot.sources] == ["orders", "visits", "hooks", "calls"]


def test_an_order_that_is_text_is_a_finding(refeed, files):
    text = """
sources:
  orders: {topic: orders, message: shop.Order, key: id, event_time: at, dedup_order: [n, code, _message_id]}
  visits: {topic: visits, schema: inferred, key: id, event_time: at, dedup_order: [n]}
  hooks: {topic: hooks, schema: inferred, event_time: at}
"""
    given = files("optional int64 id = 1; string at = 2; int64 n = 3; string code = 4;", text)
    found = json.loads(refeed("source", "check", "--json", *given).out)["findings"]
    assert [(each["source"], each["field"], each["message"].split(" is ")[0][:13]) for each in found] == [
        ("orders", "event_time", "'at'"),
        ("orders", "dedup_order", "'code'"),
        ("visits", "event_time", "'at'"),
        ("visits", "dedup_order", "'n' may becom"),
    ]
    assert all("rules_unfit" in each["message"] for each in found)


def test_a_key_that_messages_without_it_share_is_a_finding(refeed, files):
    sources = "sources: {orders: {topic: orders, message: shop.Order, key: [id, shop, name]}}"
    given = files("int64 id = 1; optional int64 shop = 2; string name = 3;", sources)
    found = json.loads(refeed("source", "check", "--json", *given).out)["findings"]
    assert [(each["source"], each["field"], each["message"].split(" ")[0]) for each in found] == [
        ("orders", "key", "'id'"),
        ("orders", "key", "'name'"),
    ]
    # Without reporting there is nothing that becomes one row.
    files("int64 id = 1;", "sources: {orders: {topic: orders, message: shop.Order}}")
    assert json.loads(refeed("source", "check", "--json", *given).out)["findings"] == []


def test_every_fault_is_printed_with_its_place(refeed, files):
    result = refeed("source", "check", *files(sources="sources:\n  orders: {topic: x, message: shop.Nope}"))
    assert result.code == 1
    assert "registry_invalid" in result.err
    assert "sources.yaml.sources.orders.topic" in result.err
    assert "sources.yaml.sources.orders.message" in result.err


def test_a_fault_of_a_given_file_names_that_file_the_line_and_the_field_that_was_meant(refeed, files):
    (path,) = files(sources="sources:\n  orders:\n    topic: orders\n    shema: inferred\n")[1:]
    result = refeed("source", "check", path)
    said = " ".join(result.err.split())
    assert (result.code, f"{path} has 1 fault." in said) == (1, True), said
    assert "registry" not in said.replace("registry_invalid", "").replace(path, "")
    assert f"{path}.sources.orders.shema: line 4, column 5: " in said
    assert "Did you mean schema?" in said
    assert refeed("source", "publish", path).err == result.err


def test_a_fault_of_the_registry_itself_is_not_one_of_the_given_file(refeed, files, settings):
    refeed("source", "publish", *files())
    Registry(settings.registry).publish({"sources.yaml": b"sources: []"})
    result = refeed("source", "check", files()[0])
    assert result.code == 1
    assert f"The registry {settings.registry} has" in " ".join(result.err.split())


def test_a_new_source_is_published_with_how_earlier_messages_come_in(refeed, files):
    first = refeed("source", "publish", *files()).out
    assert "The pipeline begins to read orders, hooks within about a minute, if it runs." in first
    assert "next: refeed backfill orders --from 24h" in first
    assert "next: refeed backfill hooks --from 24h" in first
    more = SOURCES + "  visits: {topic: seen, schema: inferred}\n"
    second = refeed("source", "publish", *files(sources=more)).out
    assert [line for line in second.splitlines() if "next:" in line] == [
        "next: refeed backfill seen --from 24h   replays earlier messages, if they are archived"
    ]
    assert "gets a second row, which stays, as visits has no key." in second
    assert "gets a second row in staging.orders. A merge keeps the new one." in first
    assert "next:" not in refeed("source", "publish", *files(sources=more)).out


def test_a_changed_source_is_published_with_how_its_dead_letters_are_sent_again(refeed, files):
    assert "redrive" not in refeed("source", "publish", *files("int64 id = 1;")).out
    said = refeed("source", "publish", *files("int64 id = 1; string name = 2;")).out
    assert [line for line in said.splitlines() if "next:" in line] == [
        "next: refeed redrive --source orders --dry-run   shows the plan to send its dead letters again"
    ]


def test_a_difference_is_shown_and_a_refused_one_fails(refeed, files, settings):
    assert refeed("source", "publish", *files()).code == 0
    source = Registry(settings.registry).read().sources[0]
    LakeRowTable(settings.lake, "staging.orders").evolve(source.row_schema)
    added = refeed("source", "diff", *files("int64 id = 1; string name = 2; bool late = 3;"))
    assert added.code == 0
    assert "late is new: BOOL NULLABLE" in added.out
    refused = refeed("source", "diff", "--json", *files("string id = 1; string name = 2;"))
    assert refused.code == 1
    (found,) = json.loads(refused.out)["sources"]
    assert found["refused"] == [{"path": "id", "text": "is INT64, but must be STRING"}]
    assert "add fields with new names" in " ".join(refeed("source", "diff", *files("string id = 1;")).out.split())


def test_what_a_table_can_t_become_is_not_published(refeed, files, settings):
    refeed("source", "publish", *files())
    registry = Registry(settings.registry)
    LakeRowTable(settings.lake, "staging.orders").evolve(registry.read().sources[0].row_schema)
    before = registry.read().version
    result = refeed("source", "publish", *files("int64 id = 1;"))
    assert result.code == 1
    assert "orders.name: was STRING and is gone" in result.err
    assert "add fields with new names" in " ".join(result.err.split())
    assert registry.read().version == before
    assert refeed("source", "publish", *files("int64 id = 1; string name = 2; int64 n = 3;")).code == 0
    assert registry.read().version != before


def test_the_registry_itself_is_checked_without_files(refeed, files, settings):
    assert refeed("source", "check").code == 1
    refeed("source", "publish", *files())
    found = json.loads(refeed("source", "check", "--json").out)
    assert [source["name"] for source in found["sources"]] == ["orders", "hooks"]
    assert found["sources"][0]["staging"] == "staging.orders"


def test_a_file_that_is_neither_is_refused(refeed, tmp_path):
    (tmp_path / "shop.proto").write_text("")
    result = refeed("source", "check", str(tmp_path / "shop.proto"))
    assert result.code == 2
    assert "neither sources.yaml nor a descriptor set" in result.err
    assert "must have the name sources.yaml: rename it" in " ".join(result.err.split())


def test_two_files_of_one_name_are_refused(refeed, files, tmp_path):
    first, sources = files()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "shop.desc").write_bytes(b"another")
    result = refeed("source", "publish", first, sources, str(tmp_path / "other" / "shop.desc"))
    assert result.code == 2
    assert "Two files have the name shop.desc" in result.err
