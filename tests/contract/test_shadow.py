"""A shadow compares alike in the lake, in BigQuery (the stand-in) and in memory, and leaves no trace."""

import json
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from model.errors import QueryTooLargeError
from model.message import (
    BACKFILL_ID_ATTRIBUTE,
    MESSAGE_ID_ATTRIBUTE,
    PUBLISH_TIME_ATTRIBUTE,
    REPLAY_ATTRIBUTE,
    ROW_ATTRIBUTE,
    replay_token,
)
from model.read_budget import ReadBudget
from model.settings import read_settings
from model.window import Window
from pipeline.shadow_report import ShadowState
from tests.pipeline.shadowed import BUDGET, NOON, SECRET, ShadowedWorld, order


@pytest.fixture(params=["lake", "bigquery", "memory"])
def world(request, tmp_path, shared_standin):
    dataset = f"d{uuid.uuid4().hex[:12]}"
    settings = read_settings(
        {
            **shared_standin.environment,
            "REFEED_WAREHOUSE": "lake" if request.param == "memory" else request.param,
            "REFEED_PROJECT": "shop",
            "REFEED_ARCHIVE_TABLE": f"{dataset}.messages",
            "REFEED_DEAD_LETTER_TABLE": f"{dataset}.dead_letters",
        },
        home=tmp_path / "home",
    )
    found = ShadowedWorld(request.param, settings, tmp_path)
    yield found
    found.close()


def test_rows_and_dead_letters_of_the_same_code_are_equal_cell_by_cell(world):
    payloads = {f"m{number}": order(number) for number in range(1, 5)} | {"m5": b"no JSON", "m6": b"{}"}
    hooks = {"h1": b'{"a":1,"b":{"c":[1.5]}}', "h2": b'{"a":"x","d":null}', "h3": b"no JSON"}
    world.run("orders", **payloads)
    world.run("hooks", **hooks)
    # A replay of a message is a row of its own, and not what the stream made of the message.
    tags = {
        REPLAY_ATTRIBUTE: replay_token(SECRET, "orders"),
        BACKFILL_ID_ATTRIBUTE: "bf_1",
        ROW_ATTRIBUTE: "1",
        MESSAGE_ID_ATTRIBUTE: "m1",
        PUBLISH_TIME_ATTRIBUTE: NOON.isoformat(),
    }
    world.stage("orders", tags, r1=order(9))
    report = world.shadow().look()
    assert report.examples == []
    assert (report.rows_equal, report.rows_different, report.rows_missing) == (9, 0, 0)
    assert (report.messages_read, report.messages_compared, report.rows_waiting) == (9, 9, 0)
    assert (report.state, report.has_differences) == (ShadowState.FOLLOWING, False)


def test_cells_that_differ_are_shown_and_may_differ_where_it_is_said(world):
    world.keep("orders", m1=order(1, weight=2.5, raw={"a": 2}), m2=order(2), m3=b"no JSON", m4=order(4))
    world.stage("orders", m1=order(1, raw={"a": 3}), m2=order(2), m3=order(3), m4=b"no JSON")
    report = world.shadow().look()
    shown = {(one.message_id, one.column): (one.running, one.new) for one in report.examples}
    assert (report.rows_equal, report.rows_different, report.rows_missing) == (1, 3, 0)
    assert shown[("m1", "weight")] == ("0.1", "2.5")
    assert shown[("m3", "error_code")] == (None, "not_json")
    assert shown[("m4", "error_code")] == ("not_json", None)
    assert {json.dumps(json.loads(text)) for text in shown[("m1", "raw")]} == {'{"a": 3}', '{"a": 2}'}
    assert len(shown) == 4
    meant = frozenset({"weight", f"{world.dataset}.orders.raw", "error_code"})
    allowed = world.shadow(may_differ=meant).look()
    assert (allowed.rows_equal, allowed.rows_different) == (4, 0)


def test_a_row_that_is_not_staged_waits_and_is_missing_a_bounded_time_later(world):
    world.keep("orders", m1=order(1), m2=order(2))
    world.stage("orders", m1=order(1))
    shadow = world.shadow(wait_seconds=3600)
    report = shadow.look()
    assert (report.state, report.rows_equal, report.rows_waiting) == (ShadowState.CATCHING_UP, 1, 1)
    # It follows the archive meanwhile.
    world.run("orders", m3=order(3))
    report = shadow.look()
    assert (report.rows_equal, report.rows_waiting, report.rows_missing) == (2, 1, 0)
    missing = world.shadow().look()
    assert (missing.rows_missing, missing.rows_waiting) == (1, 0)
    (example,) = missing.examples
    assert (example.message_id, example.column, example.running) == ("m2", None, None)
    assert '"sku": "ключ"' in example.new


def test_a_new_column_differs_and_rows_of_an_older_schema_are_not_compared(world):
    world.run("orders", m1=order(1, more="x"))
    # The registry has a column that the running release does not write yet.
    world.publish("string more = 10;")
    shadow = world.shadow()
    report = shadow.look()
    assert {(one.column, one.running, one.new) for one in report.examples} >= {("more", None, "x")}
    assert report.rows_different == 1
    assert world.shadow(may_differ=frozenset({"more", "_unknown"})).look().rows_different == 0
    # From now on it writes it; what it wrote before says nothing of the new release.
    world.plan()
    skipped = world.shadow().look()
    assert (skipped.rows_skipped, skipped.messages_compared) == (1, 0)


def test_reading_is_bounded_and_changes_nothing(world):
    world.run("orders", m1=order(1), m2=b"no JSON")
    before = rows_of(world)
    shadow = world.shadow()
    assert shadow.look().rows_equal == 2
    assert rows_of(world) == before
    window = Window(NOON, NOON + timedelta(seconds=1))
    later = Window(window.end, window.end + timedelta(days=1))
    assert published(world, "orders", window) == ["m1"]
    assert published(world, "orders", later) == published(world, "none", window) == []
    if world.warehouse.name == "bigquery":
        assert shadow.report.bytes_billed > 0
        with pytest.raises(QueryTooLargeError):
            world.shadow(max_bytes=1).look()


def published(world: ShadowedWorld, table: str, window: Window) -> list[str]:
    read = world.tables.read_published(
        f"{world.dataset}.{table}", ["_message_id"], "_publish_time", window, ReadBudget(BUDGET)
    )
    return [row["_message_id"] for batch in read for row in batch.to_pylist()]


def rows_of(world: ShadowedWorld) -> dict[str, list]:
    names = [f"{world.dataset}.orders", world.settings.dead_letter_table]
    found: dict[str, list] = {name: sorted(map(str, world.tables.open(name).read_rows())) for name in names}
    during = Window(datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC) + timedelta(hours=1))
    read = world.archive.read_messages(["orders"], during, ReadBudget(BUDGET))
    found["archive"] = sorted(str(row) for batch in read for row in batch.to_pylist())
    found["plan"] = [world.plan_file.read_text()]
    found["files"] = sorted(str(path) for path in (world.folder / "home").rglob("*"))
    return found
