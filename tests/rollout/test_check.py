"""The check before an update: every reason at once with what to do, and the way back."""

from dataclasses import replace

import pytest

from model.format import Format
from model.schema import Field, RowSchema
from rollout.check import CheckedSource, Remedy, StreamSide, check_update
from rollout.formats import ReleaseFormats, own_formats

SCHEMA = RowSchema((Field("id", "INT64"), Field("total", "FLOAT64")))
ORDERS = CheckedSource("orders", "orders", "refeed-pipeline.orders", "default", "staging.orders", SCHEMA)
MEMBERS = CheckedSource("members", "members", "refeed-pipeline.members", "default", "staging.members", None)
ELSEWHERE = CheckedSource("carts", "carts", "refeed-pipeline.carts", "other", "staging.carts", None)
RUNNING = StreamSide(
    release=None,
    formats=own_formats(),
    options={"group": "default", "slots": 2},
    warehouse="lake",
    project="shop",
    address={"lake": "/lake", "archive": "backup.messages"},
    home="here:/home",
    sources=(ORDERS, MEMBERS),
)
# The registry, as the wanted release reads it, has every group.
WANTED = replace(RUNNING, release="next", sources=(ORDERS, MEMBERS, ELSEWHERE))


def check(mapping=None, **wanted):
    return check_update(RUNNING, replace(WANTED, **wanted), mapping or {})


def found(result):
    return [(reason.code, reason.about, reason.remedy) for reason in result.reasons]


def formats(version="9.0", warehouses=None, **state):
    own = own_formats()
    merged = {name: each for name, each in {**own.state, **state}.items() if each is not None}
    return ReleaseFormats(version, merged, {**own.warehouses, **(warehouses or {})})


def test_leaving_a_release_for_the_installed_version_is_a_change_even_of_the_same_version():
    result = check_update(replace(RUNNING, release="next"), replace(WANTED, release=None), {})
    assert result.passes
    assert result.changes == ("the release next becomes the installed version",)
    stays = check_update(replace(RUNNING, release="next"), WANTED, {})
    assert stays.changes == ()


def test_more_slots_than_tasks_that_can_run_take_longer():
    for threads, slots, rounds in ((2, 999, 500), (2, 3, 2), (2, 2, None), (None, 999, None)):
        changes = check(options={"group": "default", "slots": slots}, threads=threads).changes
        said = [each for each in changes if "(REFEED_SPARK_MASTER)" in each]
        assert [f"up to {rounds} times as long" in each for each in said] == ([True] if rounds else [])
    assert check(threads=1).changes == ()


def test_a_release_that_can_t_read_what_runs_is_refused_format_by_format():
    result = check(
        formats=formats(
            journal=Format(3, (2, 3)), plan=None, warehouses={"lake": {"parts": Format(2)}, "bigquery": {}}
        )
    )
    assert found(result) == [
        ("format_unreadable", "formats.journal", Remedy.SNAPSHOT_AND_REPLAY),
        ("format_unreadable", "formats.plan", Remedy.SNAPSHOT_AND_REPLAY),
        # Parts wait for one commit: none is left by a stream that drained. The other warehouse is not this one's.
        ("format_unreadable", "formats.lake parts", Remedy.DRAIN_AND_RELAUNCH),
    ]
    assert result.reasons[0].message == "0.1.0 writes journal in format 1, and 9.0 reads formats 2 3."
    assert result.reasons[1].message == "0.1.0 writes plan in format 2, and 9.0 reads no format of it."


def test_a_newer_format_that_the_old_release_can_t_read_leaves_no_way_back_and_passes():
    result = check(formats=formats(journal=Format(2, (1, 2)), watermarks=Format(1)))
    assert result.passes
    assert result.no_way_back == (
        "0.1.0 can't read the journal that 9.0 writes",
        "0.1.0 can't read the watermarks that 9.0 writes",
    )
    assert result.changes == ("version 0.1.0 becomes 9.0",)


def test_a_renamed_source_s_reporting_table_that_changes_with_its_name_is_said_with_what_keeps_it():
    before = replace(ORDERS, reporting="reporting.orders")
    renamed = replace(before, name="sales", reporting="reporting.sales")
    running = replace(RUNNING, sources=(before,))
    result = check_update(running, replace(WANTED, sources=(renamed,)), {"orders": "sales"})
    assert result.passes
    assert result.changes == (
        "orders becomes sales",
        (
            "the reporting table of orders changes from reporting.orders to reporting.sales, which is empty "
            "at first. To keep the merged rows, write 'reporting: reporting.orders' in the registry"
        ),
    )
    kept = replace(renamed, reporting="reporting.orders")
    unknown = replace(renamed, reporting=None)
    for source in (kept, unknown):
        wanted = replace(WANTED, sources=(source,))
        assert check_update(running, wanted, {"orders": "sales"}).changes == ("orders becomes sales",)


def test_another_home_project_warehouse_table_or_group_is_no_update():
    result = check(
        project="mall",
        home="there:/home",
        address={"lake": "/pond", "archive": "backup.messages"},
        options={"group": "other", "slots": 2},
        sources=None,
    )
    assert found(result) == [
        (f"{name}_changed", name, Remedy.DRAIN_AND_RELAUNCH) for name in ("project", "home", "group", "lake")
    ]
    # Tables of another kind of warehouse are not compared by their names as well.
    other = check(warehouse="bigquery", address={"project": "shop"})
    assert [reason.code for reason in other.reasons] == ["warehouse_changed"]


@pytest.mark.parametrize(
    ("sources", "code", "words"),
    [
        ((MEMBERS,), "source_removed", "map it to nothing (orders=)"),
        ((MEMBERS, replace(ORDERS, name="sales")), "source_renamed", "If orders was renamed, map orders=sales."),
        ((MEMBERS, replace(ORDERS, group="other")), "source_moved", "is in the group other now"),
        ((MEMBERS, replace(ORDERS, topic="sales")), "topic_changed", "from orders to sales"),
        ((MEMBERS, replace(ORDERS, subscription="mine")), "subscription_changed", "to mine"),
        ((MEMBERS, replace(ORDERS, staging="staging.sales")), "table_changed", "write 'staging: staging.orders'"),
        ((MEMBERS, replace(ORDERS, schema=None)), "schema_changed", "schema in only one of the two releases"),
        (
            (MEMBERS, replace(ORDERS, schema=RowSchema((Field("id", "INT64"),)))),
            "schema_changed",
            "staging.orders.total: was FLOAT64 and is gone",
        ),
    ],
)
def test_what_became_of_a_source_is_a_reason(sources, code, words):
    (reason,) = check(sources=sources).reasons
    assert (reason.code, reason.about) == (code, "sources.orders")
    assert words in reason.message


def test_a_mapping_says_that_a_source_was_renamed_or_is_to_end():
    renamed = check({"orders": "sales"}, sources=(MEMBERS, replace(ORDERS, name="sales")))
    assert (renamed.reasons, renamed.changes) == ((), ("orders becomes sales",))
    ended = check({"orders": None}, sources=(MEMBERS,))
    assert ended.passes
    assert ended.changes[0].startswith("orders ends. Its pending messages stay in refeed-pipeline.orders")


def test_a_renamed_source_keeps_its_table_and_subscription_or_is_refused():
    sales = replace(ORDERS, name="sales", staging="staging.sales", subscription="refeed-pipeline.sales")
    assert [reason.code for reason in check({"orders": "sales"}, sources=(MEMBERS, sales)).reasons] == [
        "subscription_changed",
        "table_changed",
    ]


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"ordres": "sales"}, "the stream has no source ordres. Did you mean orders?"),
        ({"orders": "sale"}, "the registry has no sale in this group. Did you mean sales?"),
        ({"orders": None}, "the registry still has this source"),
        ({"orders": "members"}, "another source becomes members too"),
        ({"orders": "members", "members": "orders"}, "members is renamed too"),
        ({"orders": "sales", "members": "sales"}, "another source becomes sales too"),
    ],
)
def test_a_mapping_that_leads_nowhere_is_a_reason(mapping, words):
    sources = (ORDERS, MEMBERS, replace(ELSEWHERE, name="sales", group="default"))
    result = check(mapping, sources=sources)
    wrong = [reason for reason in result.reasons if reason.code == "mapping_invalid"]
    assert words in wrong[0].message
    assert {reason.remedy for reason in wrong} == {Remedy.MAP}


def test_a_stream_without_sources_takes_no_mapping():
    running, wanted = replace(RUNNING, sources=None), replace(WANTED, sources=None)
    assert check_update(running, wanted, {}).passes
    (reason,) = check_update(running, wanted, {"orders": "sales"}).reasons
    assert reason.code == "mapping_invalid"


def test_a_new_source_and_a_wider_table_are_changes():
    wider = RowSchema((*SCHEMA.fields, Field("note", "STRING")))
    result = check(sources=(replace(ORDERS, schema=wider), MEMBERS, replace(ELSEWHERE, group="default")))
    assert result.reasons == ()
    assert result.changes == ("staging.orders.note is new: STRING NULLABLE", "carts is new")


def test_another_topic_for_the_rows_is_stated_and_no_reason_against_an_update():
    result = check(sources=(replace(ORDERS, publish="rows"), MEMBERS))
    assert result.passes
    assert result.changes == (
        "orders publishes its rows to rows instead of no topic. Earlier rows are not published again",
    )
