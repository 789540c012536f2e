import os
from contextlib import ExitStack
from datetime import UTC, datetime
from threading import Barrier

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from model.errors import RegistryError
from pipeline.registry import Registry
from tests.pipeline.conftest import compile_protos
from tests.worlds.bucket import SCHEMES
from tests.worlds.folders import bucket_folder

SOURCES = """
sources:
  orders:
    topic: orders
    message: shop.Order
    scalars_as_text: true
    key: id
    event_time: updated_at
    dedup_order: [version]
  changes:
    topic: changes
    subscription: my-subscription
    message: shop.Order
    variant: change_data
    delete: soft
    key: [id]
    staging: raw.changes
    reporting: clean.changes
    group: slow
  hooks:
    topic: hooks
    schema: inferred
    event_type_attribute: event
"""


@pytest.fixture
def shop(tmp_path):
    return compile_protos(tmp_path, "registered.proto")


@pytest.fixture
def registry(tmp_path, shop):
    found = Registry(str(tmp_path / "registry"))
    found.publish({"shop/v1.desc": shop, "sources.yaml": SOURCES.encode()})
    return found


def faults_of(registry):
    with pytest.raises(RegistryError) as caught:
        registry.read()
    return {fault["pointer"]: fault for fault in caught.value.details["errors"]}


def test_a_source_is_what_it_says_and_has_defaults_for_the_rest(registry):
    snapshot = registry.read()
    orders, changes, hooks = snapshot.sources
    assert (orders.subscription, orders.staging) == ("refeed-pipeline.orders", "staging.orders")
    assert (orders.reporting, orders.group) == ("reporting.orders", "default")
    assert (orders.key, orders.event_time, orders.dedup_order) == (("id",), "updated_at", ("version",))
    assert orders.schema.names()[:4] == ["id", "updated_at", "version", "tags"]
    assert changes.subscription == "my-subscription"
    assert (changes.staging, changes.is_soft_delete) == ("raw.changes", True)
    assert (orders.scalars_as_text, changes.scalars_as_text) == (True, False)
    assert hooks.is_inferred
    assert not orders.is_inferred
    assert snapshot.groups() == ["default", "slow"]
    assert [source.name for source in snapshot.of_group("slow")] == ["changes"]


@pytest.mark.parametrize("scheme", ["memory", *SCHEMES])
def test_a_bucket_and_any_path_that_fsspec_opens_is_a_registry(shop, scheme, request):
    with ExitStack() as stack:
        if scheme == "memory":
            place = "memory://bucket"
        else:
            place = stack.enter_context(bucket_folder(scheme, request)).location
        registry = Registry(f"{place}/registry")
        with pytest.raises(RegistryError):
            registry.read()
        registry.publish({"below/shop.desc": shop, "sources.yaml": SOURCES.encode()})
        before = registry.fingerprint()
        assert registry.fingerprint() == before
        assert sorted(registry.read_files()) == ["below/shop.desc", "sources.yaml"]
        assert len(registry.read().sources) == 3
        # Of the same size, and in the same second.
        registry.publish({"sources.yaml": SOURCES.replace("slow", "fast").encode()})
        assert registry.fingerprint() != before
        assert registry.read().groups() == ["default", "fast"]


class Meeting(MemoryFileSystem):
    """Answers a read when a second one is under way."""

    protocol = "meeting"
    barrier = Barrier(2)

    def cat_file(self, *given, **options):
        self.barrier.wait(10)
        return super().cat_file(*given, **options)


def test_several_files_are_read_at_once(shop):
    fsspec.register_implementation("meeting", Meeting, clobber=True)
    registry = Registry("meeting://bucket/registry")
    registry.publish({"shop.desc": shop, "sources.yaml": SOURCES.encode()})
    assert list(registry.read_files()) == ["shop.desc", "sources.yaml"]


def test_a_bucket_that_is_not_there_is_a_fault_of_the_registry(request):
    with (
        bucket_folder("gs", request),
        pytest.raises(RegistryError, match="gs://no-such-bucket/shop can't be used"),
    ):
        Registry("gs://no-such-bucket/shop").read_files()


def test_the_fingerprint_and_the_version_change_with_the_files_and_only_then(registry, shop):
    before, version = registry.fingerprint(), registry.read().version
    assert registry.fingerprint() == before
    registry.publish({"sources.yaml": SOURCES.replace("raw.", "new.").encode()})
    assert registry.fingerprint() != before
    assert registry.read().version != version


def test_files_of_an_overlay_are_read_in_the_place_of_the_registry_s_and_nothing_is_written(registry):
    before = registry.fingerprint()
    snapshot = registry.read({"sources.yaml": b"sources: {}"})
    assert snapshot.sources == ()
    assert registry.fingerprint() == before


def test_every_fault_is_reported_at_once_with_its_place(registry):
    registry.publish(
        {
            "sources.yaml": b"""
policy_tag_pattern: "("
sources:
  a: {topic: "no topic", message: shop.Order, key: tags, event_time: version, staging: nope, group: Big}
  b: {topic: bbb, message: shop.Tree}
  c: {topic: ccc, message: shop.Nope}
  d: {topic: ddd}
  e: {topic: eee, schema: inferred, message: shop.Order, variant: change_data}
  ek: {topic: eek, schema: inferred, event_type_attribute: event, key: id, scalars_as_text: true}
  f: {topic: fff, message: shop.Order, variant: change_data}
  fk: {topic: ffk, message: shop.Order, key: [id, id]}
  g: {topic: ggg, message: shop.Order, subscription: same-one}
  h: {topic: hhh, message: shop.Order, subscription: same-one, staging: staging.G}
  "1x": {topic: iii, message: shop.Order}
"""
        }
    )
    assert [place.removeprefix("sources.yaml.") for place in faults_of(registry)] == [
        *("policy_tag_pattern", "sources.a.topic", "sources.a.staging", "sources.a.group", "sources.a.key"),
        *("sources.a.event_time", "sources.b.message", "sources.c.message", "sources.d.message"),
        *("sources.e.message", "sources.e.variant", "sources.ek.scalars_as_text", "sources.ek.key"),
        *("sources.f.key", "sources.fk.key", "sources.g.staging", "sources.g.subscription"),
        *("sources.h.staging", "sources.h.subscription", "sources.1x"),
    ]


def test_what_a_source_may_not_say_is_named(registry):
    registry.publish({"sources.yaml": b"sources:\n  a: {topics: x, message: [x]}\nmore: 1"})
    found = faults_of(registry)
    assert set(found) == {
        "sources.yaml.sources.a.topic",
        "sources.yaml.sources.a.topics",
        "sources.yaml.sources.a.message",
        "sources.yaml.more",
    }
    assert (found["sources.yaml.more"]["line"], found["sources.yaml.more"]["column"]) == (3, 1)
    assert found["sources.yaml.sources.a.topics"]["message"].endswith("Did you mean topic?")


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ({"sources.yaml": b"sources: ["}, "sources.yaml, line 1"),
        ({"sources.yaml": b"\xff\xfe\xff"}, "sources.yaml, line 1"),
        ({"shop/v1.desc": b"\xff\xff"}, "shop/v1.desc"),
    ],
)
def test_a_file_that_can_t_be_read_is_named(registry, files, place):
    registry.publish(files)
    assert next(iter(faults_of(registry))) == place


def test_an_empty_registry_says_what_is_missing(tmp_path):
    assert list(faults_of(Registry(str(tmp_path / "nothing")))) == ["sources.yaml"]


def test_a_path_that_needs_another_package_says_so():
    with pytest.raises(RegistryError, match=r"can't be used|not installed"):
        Registry("nosuch://bucket").read()


def test_faults_of_one_source_leave_the_others_as_they_are(registry):
    registry.publish(
        {
            "garbage.desc": b"\xff\xff",
            "sources.yaml": b"""
sources:
  a: {topic: aaa, message: shop.Order}
  b: {topic: bbb, message: shop.Nope, group: slow}
  c: {topics: ccc}
  d: 5
  e: {topic: eee, message: shop.Order, staging: x.same}
  f: {topic: fff, message: shop.Order, reporting: x.same}
  g: {topic: ggg, message: shop.Order, staging: x.own, reporting: x.OWN}
""",
        }
    )
    snapshot = registry.read_valid()
    assert [source.name for source in snapshot.sources] == ["a"]
    assert [(broken.name, broken.group) for broken in snapshot.broken] == [
        ("b", "slow"),
        ("c", "default"),
        ("d", None),
        ("e", "default"),
        ("f", "default"),
        ("g", "default"),
    ]
    assert "shop.Nope" in snapshot.broken[0].error.message
    assert snapshot.groups() == ["default"]
    assert [fault["pointer"] for fault in snapshot.error.details["errors"]] == ["garbage.desc"]
    with pytest.raises(RegistryError, match="9 faults"):
        registry.read()


def test_words_of_yaml_are_the_names_that_they_look_like_and_a_name_comes_once(registry):
    registry.publish({"sources.yaml": b"sources:\n  on: {topic: yes, message: shop.Order, subscription: null}"})
    (source,) = registry.read().sources
    assert (source.name, source.topic, source.subscription) == ("on", "yes", "refeed-pipeline.yes")
    registry.publish({"sources.yaml": b"sources:\n  a: {topic: 2024-99-99, message: shop.Order, key: 1.50}"})
    found = faults_of(registry)
    assert list(found) == ["sources.yaml.sources.a.topic", "sources.yaml.sources.a.key"]
    assert "'1.50'" in found["sources.yaml.sources.a.key"]["message"]
    registry.publish({"sources.yaml": b"sources:\n  a: {topic: aaa}\n  a: {topic: bbb}"})
    assert list(faults_of(registry)) == ["sources.yaml, line 3"]


def test_anchors_and_merges_of_yaml_are_what_they_are(registry):
    registry.publish(
        {
            "sources.yaml": b"""
sources:
  a: &base {topic: aaa, message: shop.Order, key: id}
  b: {<<: *base, topic: bbb}
"""
        }
    )
    assert [(source.topic, source.key) for source in registry.read().sources] == [
        ("aaa", ("id",)),
        ("bbb", ("id",)),
    ]


@pytest.mark.parametrize(
    "content", [b"sources: &a {x: *a}", b"sources: " + b"[" * 5000, b"? [a]\n: b", b"- 1", b""]
)
def test_no_yaml_is_more_than_a_fault(registry, content):
    registry.publish({"sources.yaml": content})
    with pytest.raises(RegistryError):
        registry.read()


def test_a_registry_without_sources_is_one(registry):
    registry.publish({"sources.yaml": b"sources:\n"})
    assert registry.read().sources == ()


def test_descriptor_sets_of_two_teams_mind_each_other_only_where_they_define_the_same_message(tmp_path, registry):
    # Either team has a file options.proto of its own, and its compiler's google/protobuf.
    sets = {}
    for team, field in (("one", "int64 id = 1;"), ("two", "string id = 1;")):
        folder = tmp_path / team
        folder.mkdir()
        (folder / "common.proto").write_text(f'syntax = "proto3"; package {team}; message Id {{ {field} }}')
        text = f'syntax = "proto3"; package {team}; import "common.proto"; message M {{ Id id = 1; }}'
        (folder / f"{team}.proto").write_text(text)
        sets[f"{team}.desc"] = compile_protos(folder, f"{team}.proto")
    registry.publish(
        {**sets, "sources.yaml": b"sources:\n  a: {topic: aaa, message: one.M}\n  b: {topic: bbb, message: two.M}"}
    )
    assert [source.row_schema.fields[0].fields[0].type for source in registry.read().sources] == [
        "INT64",
        "STRING",
    ]
    (tmp_path / "two" / "two.proto").write_text('syntax = "proto3"; package one; message M { int64 x = 1; }')
    registry.publish({"two.desc": compile_protos(tmp_path / "two", "two.proto")})
    assert "one.M is defined differently in one.desc and two.desc" in str(faults_of(registry))


def test_a_table_reference_that_is_no_table_is_a_fault(tmp_path, registry):
    (tmp_path / "odd.proto").write_text(
        """
        syntax = "proto3";
        import "refeed/options.proto";
        message Odd { option (refeed.table_reference) = "../../etc/x"; int64 id = 1; }
        """
    )
    odd = compile_protos(tmp_path, "odd.proto")
    registry.publish({"odd.desc": odd, "sources.yaml": b"sources:\n  a: {topic: aaa, message: Odd}"})
    assert "does not have the form dataset.table" in str(faults_of(registry))
    registry.publish({"sources.yaml": b"sources:\n  a: {topic: aaa, message: Odd, staging: s.t}"})
    assert registry.read().sources[0].staging == "s.t"


def test_a_sources_yaml_in_a_folder_below_is_somebody_s_copy(registry):
    registry.publish({"old/sources.yaml": b"nonsense: ["})
    assert len(registry.read().sources) == 3


@pytest.mark.parametrize(
    ("sources", "wrong"),
    [
        (["aaa, publish: aaa, message: shop.Order"], ["s0"]),
        (
            [
                "aaa, publish: bbb, message: shop.Order",
                "bbb, publish: ccc, schema: inferred, group: other",
                "ccc, publish: aaa, schema: inferred",
                "ccc, subscription: ddd, publish: eee, schema: inferred",
                "eee, schema: inferred",
            ],
            ["s0", "s1", "s2"],
        ),
        (["aaa, publish: ccc, message: shop.Order", "bbb, publish: ccc, schema: inferred"], []),
    ],
)
def test_sources_whose_rows_come_back_to_their_own_topic_are_faults(registry, sources, wrong):
    entries = "".join(f"  s{number}: {{topic: {entry}}}\n" for number, entry in enumerate(sources))
    registry.publish({"sources.yaml": f"sources:\n{entries}".encode()})
    found = registry.read_valid()
    assert [broken.name for broken in found.broken] == wrong
    assert all("return to the source's own topic" in broken.error.message for broken in found.broken)
    if wrong:
        assert list(faults_of(registry)) == [f"sources.yaml.sources.{name}.publish" for name in wrong]


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ("publish: goog-x", "publish"),
        ("publish_ordering: key, key: id", "publish_ordering"),
        ("publish: rows, publish_ordering: key", "publish_ordering"),
        ("publish: rows, publish_ordering: time", "publish_ordering"),
    ],
)
def test_a_topic_that_rows_can_t_be_published_to_is_a_fault(registry, more, place):
    registry.publish({"sources.yaml": f"sources:\n  a: {{topic: aaa, message: shop.Order, {more}}}\n".encode()})
    assert list(faults_of(registry)) == [f"sources.yaml.sources.a.{place}"]


def test_a_source_names_the_topic_of_its_rows_and_their_order(registry):
    entry = "{topic: aaa, message: shop.Order, key: id, publish: rows, publish_ordering: key}"
    registry.publish({"sources.yaml": f"sources:\n  a: {entry}\n".encode()})
    (source,) = registry.read().sources
    assert (source.publish, source.is_published_by_key) == ("rows", True)


def test_a_registry_says_when_its_newest_file_was_written(tmp_path):
    registry = Registry(str(tmp_path))
    assert registry.changed_at() is None
    for name, at in (("a.desc", 1_700_000_000), ("sources.yaml", 1_700_000_060)):
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (at, at))
    assert registry.changed_at() == datetime.fromtimestamp(1_700_000_060, UTC)
