"""A plan over a small archive: what it adds up, what it shows and what it warns of."""

import base64
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from google.pubsub_v1 import types

from backfill.plan.creation import target_of
from backfill.plan.options import SelectionBounds
from backfill.plan.plan import PlanTarget, make_plan, render_data, warn_of_target
from backfill.plan.price import TAGS_BYTES, Billing, price_of
from backfill.plan.request import BackfillRequest
from backfill.plan.settings import BackfillSettings
from backfill.plan.validation import validate_request
from connectors.lake.archive import LakeArchive
from connectors.lake.query import QueryLimits, read_snapshot
from connectors.pubsub.client import SubscriptionInfo
from local.intake import parse_publish
from local.status import StatusError
from model.errors import QueryError, StorageFullError
from model.message import REPLAY_TAGS, replay_filter
from model.settings import read_settings
from sql.validate import Policy, QueryRefusedError
from tests.archive import messages, write_commits
from warehouse.lake.warehouse import LakeWarehouse
from warehouse.open import open_warehouse
from warehouse.queries import QuerySpace, ReplayQuery

ATTRIBUTES = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
START = datetime(2024, 3, 1, 10, 59, 59, 123456, UTC)
TODAY = datetime.now(UTC)
WINDOW = f"_PARTITIONTIME >= TIMESTAMP '{TODAY - timedelta(days=1):%Y-%m-%d}'"
RAW = f"SELECT data, attributes, message_id, topic, publish_time FROM backup.messages WHERE {WINDOW}"


def rows(count, topic, **columns):
    made = {
        "message_id": [f"{topic}-{n}" for n in range(count)],
        "publish_time": [START + timedelta(minutes=30 * n) for n in range(count)],
    }
    return {topic: messages(count, **made, **columns)}


def add(lake, *commits):
    write_commits(LakeArchive(str(lake), "backup.messages"), *commits)


@pytest.fixture
def queries(lake, processes):
    """Over the lake, by the processes of all tests."""
    warehouse = LakeWarehouse(str(lake), "backup.messages", "backup.dead_letters", "day", "500MB")
    queries = warehouse.open_queries(QuerySpace("500MB", lake / "spill"))
    queries._processes = processes
    return queries


@pytest.fixture
def lake(tmp_path):
    add(tmp_path, rows(5, "orders") | rows(2, "members"), rows(1, "orders"))
    return tmp_path


@pytest.fixture
def plan(queries):
    def make(query, *, tables=(), target=None, **known):
        policy = Policy("backup.messages", "shop", datetime.now(UTC), extra_tables=tables, max_window_days=366)
        valid = validate_request(BackfillRequest(query, "replay"), queries.policy(policy), check=queries.check)
        wanted = target or target_with("consumer", "")
        figures = queries.examine(ReplayQuery(valid.query, attributes=wanted.attributes))
        return make_plan(valid, figures, wanted, **known)

    return make


def test_a_plan_warns_of_a_pipeline_that_does_not_run(plan):
    asked = []

    def idle_of(topic, receives):
        asked.append((topic, receives))
        return ["The messages wait."]

    found = plan(RAW, idle_of=idle_of)["warnings"]
    assert asked == [("replay", {"consumer": True})]
    assert {"code": "pipeline_not_running", "message": "The messages wait."} in found


def target_with(name, text, **attributes):
    return PlanTarget("replay", "token", [SubscriptionInfo(name, "replay", text, 60)], attributes)


def codes(plan):
    return [warning["code"] for warning in plan["warnings"]]


def test_a_plan_adds_up_what_would_be_published(plan, lake):
    made = plan(RAW)
    assert (made["rows"], made["rows_by_topic"]) == (8, {"orders": 6, "members": 2})
    assert made["bytes"] == 8 * len(b'{"n": 0}')
    files = LakeArchive(str(lake), "backup.messages").data_files()
    assert made["bytes_scanned"] == sum(file.size_bytes for file in files)
    assert made["rows_by_hour"] == [
        {"hour": "2024-03-01T10:00:00Z", "rows": 3},
        {"hour": "2024-03-01T11:00:00Z", "rows": 3},
        {"hour": "2024-03-01T12:00:00Z", "rows": 2},
    ]
    assert made["first_publish_time"] == "2024-03-01T10:59:59.123456Z"
    assert made["last_publish_time"] == "2024-03-01T12:59:59.123456Z"
    assert (made["price_usd"], made["messages_without_room"], made["warnings"]) == (None, 0, [])
    assert (made["messages_with_refused_attributes"], made["messages_with_rewritten_attributes"]) == (0, 0)
    assert len(made["samples"]) == 8
    assert made["samples"][0]["encoding"] == "json"
    assert set(made) >= {"window", "rows", "bytes_scanned", "price_usd", "rows_by_topic", "rows_by_hour"}


def test_a_plan_warns_of_what_the_query_computes(plan):
    made = plan(
        "SELECT CONCAT(data, b'!') AS data, ARRAY_CONCAT(attributes, [STRUCT('a' AS key, 'b' AS value)]) AS "
        f"attributes, message_id FROM backup.messages WHERE {WINDOW} LIMIT 3"
    )
    assert codes(made) == ["data_rewritten", "attributes_rewritten"]
    assert made["rows"] == 3
    assert (made["samples"][0]["encoding"], made["samples"][0]["data"][-1]) == ("text", "!")


def test_a_look_up_of_missing_columns_has_its_price(plan):
    text = (
        "SELECT ANY_VALUE(data) AS data, ANY_VALUE(attributes) AS attributes, message_id FROM backup.messages "
        f"WHERE {WINDOW} GROUP BY message_id"
    )
    looked_up = plan(text)
    (warning,) = [w for w in looked_up["warnings"] if w["code"] == "columns_looked_up"]
    more = looked_up["bytes_scanned"] - plan(RAW)["bytes_scanned"]
    assert more > 0
    assert f"{more:,} bytes more" in warning["message"]
    # It reads some columns of the files again, not all of them.
    assert more < plan(RAW)["bytes_scanned"]


def test_messages_without_room_for_the_tags_are_counted(plan):
    crowd = (
        "ARRAY(SELECT AS STRUCT CAST(n AS STRING) AS key, 'v' AS value FROM UNNEST(GENERATE_ARRAY(1, {n})) AS n)"
    )
    text = RAW.replace("attributes", crowd + " AS attributes", 1)
    # Six tags and 94 attributes are the 100 that Pub/Sub takes.
    assert plan(text.format(n=94))["messages_without_room"] == 0
    crowded = plan(text.format(n=95))
    assert (crowded["messages_without_room"], crowded["rows"]) == (8, 8)
    assert "no_room_for_tags" in codes(crowded)
    added = target_with("consumer", "", mine="x")
    assert plan(text.format(n=94), target=added)["messages_without_room"] == 8


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("k" * 256, "v"),
        ("k" * 257, "v"),
        ("ü" * 128, "v"),
        ("ü" * 129, "v"),
        ("k", "v" * 1024),
        ("k", "v" * 1025),
        ("k", "ü" * 512),
        ("k", "ü" * 513),
        ("", "v"),
        ("k", ""),
        ("goog-k", "v"),
        ("mine", "v" * 1025),
        ("refeed_topic", "v" * 1025),
    ],
)
def test_messages_with_attributes_that_pubsub_refuses_are_counted(plan, lake, key, value):
    add(lake, rows(2, "odd", attributes=[[{"key": "n", "value": "1"}, {"key": key, "value": value}], []]))
    made = plan(RAW + " AND topic = 'odd'", target=target_with("consumer", "", mine="x"))
    # What a backfill would send: tags and added attributes replace those of their names.
    kept = {} if key in {"mine", "refeed_topic"} else {key: value}
    refused = 0 if is_taken_by_pubsub({"n": "1", **kept}) else 1
    assert made["messages_with_refused_attributes"] == refused
    assert ("attributes_refused" in codes(made)) == bool(refused)


def test_messages_whose_own_attributes_the_replay_replaces_are_counted(plan, lake):
    own = [
        *([{"key": name, "value": "mine"}] for name in REPLAY_TAGS),
        [{"key": "refeed_topic", "value": "a"}, {"key": "refeed_row", "value": "b"}],
        [{"key": "env", "value": "live"}],
        [{"key": "env", "value": "repair"}],
        [{"key": "refeed_target", "value": "theirs"}, {"key": "Refeed_topic", "value": "a"}],
        [],
    ]
    add(lake, rows(len(own), "odd", attributes=own))
    text = RAW + " AND topic = 'odd'"
    plain, added = plan(text), plan(text, target=target_with("consumer", "", env="repair"))
    assert (plain["messages_with_rewritten_attributes"], codes(plain)) == (7, ["attributes_rewritten"])
    assert "7 messages" in plain["warnings"][0]["message"]
    # An attribute that is added where it is already, with the same value, changes nothing.
    assert (added["messages_with_rewritten_attributes"], codes(added)) == (8, ["attributes_rewritten"])


def is_taken_by_pubsub(attributes):
    request = types.PublishRequest(topic="projects/p/topics/t", messages=[{"attributes": attributes}])
    try:
        parse_publish(types.PublishRequest.serialize(request))
    except StatusError:
        return False
    return True


@pytest.mark.parametrize(("size", "count"), [(9_990_000, 0), (10_000_000, 1)])
def test_messages_too_large_for_the_tags_are_counted(plan, lake, size, count):
    add(lake, rows(1, "large", data=[b"x" * size]))
    made = plan(RAW + " AND topic = 'large'")
    assert (made["messages_without_room"], made["bytes"], len(made["samples"][0]["data"])) == (count, size, 4096)


def test_payloads_are_shown_as_what_they_are_and_large_ones_cut(plan):
    def sample(expression):
        made = plan(RAW.replace("data", f"{expression} AS data", 1) + " AND topic = 'members' LIMIT 1")
        return made["samples"][0]["data"], made["samples"][0]["encoding"]

    assert sample("b'[1, null]'") == ([1, None], "json")
    assert sample("b'NaN'") == ("NaN", "text")
    assert sample("b'plain'") == ("plain", "text")
    assert sample(r"b'\xff\x00'") == ("/wA=", "base64")
    assert sample("b''") == ("", "text")
    text, encoding = sample("CAST(REPEAT('åa', 5000) AS BYTES)")
    assert (encoding, len(text.encode())) == ("text", 4095)


@pytest.mark.parametrize("payload", [b"1\x00\x00\x00", "[1]".encode("utf-16"), b"\xef\xbb\xbf[1]"])
def test_bytes_that_only_python_takes_for_json_are_not_shown_as_a_value(payload):
    shown, encoding = render_data(payload, None)
    back = base64.b64decode(shown) if encoding == "base64" else shown.encode()
    assert (encoding == "json", back) == (False, payload)


def test_subscriptions_say_whether_a_replay_reaches_them(plan):
    backup = SubscriptionInfo("refeed-backup.replay", "replay", replay_filter("token"), 60)
    eu = SubscriptionInfo("eu", "replay", 'attributes.region = "eu"', 60)
    made = plan(RAW, target=PlanTarget("replay", "token", [backup, eu]))
    assert [(s["name"], s["receives_replay"]) for s in made["subscriptions"]] == [
        ("refeed-backup.replay", False),
        ("eu", True),
    ]
    assert codes(plan(RAW, target=PlanTarget("replay", "token", [backup]))) == ["nobody_receives"]
    detached = SubscriptionInfo("left", "replay", "", 60, detached=True)
    assert codes(plan(RAW, target=PlanTarget("replay", "token", [backup, detached]))) == ["nobody_receives"]


def test_ordering_keys_through_the_global_endpoint_are_warned_of(tmp_path):
    request = BackfillRequest("SELECT 1", topic="replay", ordering="by_key")
    listener = SubscriptionInfo("listener", "replay", "", 60)

    def warned(address, **changes):
        settings = read_settings({}, home=tmp_path)
        deployment = replace(
            BackfillSettings.from_settings(settings, open_warehouse(settings)), emulator_host=address
        )
        found = target_of(replace(request, **changes), [listener], "token", deployment)
        return [warning["code"] for warning in warn_of_target(found)]

    assert warned(None) == ["endpoint_is_global"]
    assert warned("https://europe-west1-pubsub.googleapis.com:443") == []
    assert warned("127.0.0.1:8085") == []
    assert warned(None, ordering="none") == []


def test_a_plan_does_not_show_the_token_that_keeps_a_message_out_of_the_backup(plan):
    other = 'hasPrefix(attributes."refeed_replay", "s3cret") OR attributes.refeed_replay != "s3cret"'
    subscriptions = [
        SubscriptionInfo("refeed-backup.replay", "replay", replay_filter("s3cret"), 60),
        SubscriptionInfo("own", "replay", other, 60),
    ]
    made = plan(RAW, target=PlanTarget("replay", "s3cret", subscriptions))
    assert "s3cret" not in str(made)
    assert made["subscriptions"][0]["filter"] == 'NOT attributes.refeed_replay = "<token>"'


def test_a_plan_names_backfills_under_way(plan):
    made = plan(RAW, overlapping=["bf_1"])
    assert [(w["code"], "bf_1" in w["message"]) for w in made["warnings"]] == [("backfill_overlaps", True)]


def test_a_selection_without_rows_is_a_plan_too(plan):
    made = plan(RAW + " AND topic = 'nobody'")
    assert (made["rows"], made["bytes"], made["samples"], made["first_publish_time"]) == (0, 0, [], None)
    assert codes(made) == ["nothing_selected"]


def test_a_query_that_fails_is_an_error_of_the_plan(plan):
    with pytest.raises(QueryError, match="not this one"):
        plan(RAW.replace("data", "IF(ERROR('not this one') > 1, data, data) AS data", 1))


def test_messages_of_a_table_beside_the_archive_can_be_replayed(plan, lake):
    dead = pa.table(
        {
            "data": pa.array([b"a", b"bc"], pa.binary()),
            "attributes": pa.array([[], [{"key": "k", "value": "v"}]], ATTRIBUTES),
            "message_id": ["d1", "d2"],
            "reason": ["late", "late"],
        }
    )
    write_deltalake(str(lake / "ops" / "dead"), dead)
    made = plan("SELECT * FROM ops.dead WHERE reason = 'late'", tables=("ops.dead",))
    assert (made["rows"], made["bytes"], made["rows_by_topic"], made["rows_by_hour"]) == (2, 3, {}, [])
    assert made["window"]["from"] == "1970-01-01T00:00:00.000000Z"
    assert codes(made) == ["not_from_archive"]
    assert sorted(s["message_id"] for s in made["samples"]) == ["d1", "d2"]
    joined = plan(
        f"SELECT m.* FROM backup.messages AS m JOIN ops.dead AS d ON m.message_id = d.message_id WHERE m.{WINDOW}",
        tables=("ops.dead",),
    )
    assert joined["rows"] == 0


def test_a_table_that_the_lake_does_not_have_is_refused_by_name(plan):
    with pytest.raises(QueryRefusedError) as refused:
        plan("SELECT data, attributes, message_id FROM ops.dead", tables=("ops.dead",))
    assert [(v.code, "ops.dead" in v.message) for v in refused.value.violations] == [("table_missing", True)]


def test_a_replay_from_a_lake_is_billed_by_pubsub_alone_and_with_its_tags(plan):
    detached = SubscriptionInfo("old", "replay", "", 60, detached=True)
    subscriptions = [SubscriptionInfo("consumer", "replay", "", 60), detached]
    target = PlanTarget("replay", "token", subscriptions)
    made = plan(RAW, target=target, billing=Billing(6.25, is_pubsub_billed=True))
    sizes = {part["what"]: part["bytes"] for part in made["replay_price"]["parts"]}
    assert sizes.keys() == {"publish", "delivery to consumer"}
    assert sizes["publish"] == sizes["delivery to consumer"] > made["bytes"] + 8 * TAGS_BYTES
    assert plan(RAW, target=target)["replay_price"] is None


@pytest.mark.parametrize(
    ("scanned", "per_tib", "price"), [(2**40, 6.25, 6.25), (0, 6.25, 0.0), (None, 6.25, None), (2**40, None, None)]
)
def test_a_price_is_known_or_it_is_not(scanned, per_tib, price):
    assert price_of(scanned, per_tib) == price


def test_a_plan_shows_the_bounds_of_a_selection_and_warns_beyond(plan):
    small = plan(RAW, bounds=SelectionBounds(max_rows=8, max_bytes=10**6))
    assert small["bounds"] == {"rows": 8, "bytes": 10**6}
    assert "selection_too_large" not in {warning["code"] for warning in small["warnings"]}
    for bounds in (SelectionBounds(max_rows=7), SelectionBounds(max_bytes=20)):
        large = plan(RAW, bounds=bounds)
        assert large["rows"] == 8
        assert "selection_too_large" in {warning["code"] for warning in large["warnings"]}


def test_no_query_runs_where_the_disk_has_too_little_room(lake, processes):
    snapshot = read_snapshot(str(lake), "backup.messages", "day", window=None)
    limits = QueryLimits("500MB", lake / "spill", min_free_bytes=10**15)
    with pytest.raises(StorageFullError, match="REFEED_MIN_FREE_DISK_BYTES"):
        processes.run(snapshot, [], limits)
