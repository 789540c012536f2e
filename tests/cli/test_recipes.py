"""Each command of docs/recipes.md, sent as the terminal sends it and run on a lake whose answer is known."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import TypeAdapter

from backfill.plan.create import BackfillCreate
from client.api import RefeedApi
from client.jobs import JobCalls, KindCalls
from connectors.lake.files import FILE_SCHEMA
from tests.archive import entries, write_archived, write_table
from tests.recipes import Recipe, read_recipes
from tests.worlds.selecting import select_rows

MOMENT = pa.timestamp("us", "UTC")
DAY = datetime(2026, 1, 10, tzinfo=UTC)
RECIPES = {recipe.title: recipe for recipe in read_recipes()}

# message id: topic, published, archived how much later, attributes, data
MESSAGES: dict[str, tuple[str, datetime, timedelta, dict[str, str], bytes]] = {
    "a": ("orders", DAY.replace(hour=13, minute=59), timedelta(seconds=2), {"version": "1"}, b'{"total": 1.5}'),
    "b": ("orders", DAY.replace(hour=14), timedelta(seconds=2), {"version": "2", "region": "ue"}, b'{"total": 2}'),
    "c": ("orders", DAY.replace(hour=14, minute=30), timedelta(hours=12), {}, b'{"total": 3, "currency": "EUR"}'),
    "d": ("orders", DAY.replace(hour=15), timedelta(seconds=2), {"region": "us", "version": "2"}, b"\xff\x00"),
    "e": (
        "members",
        DAY.replace(hour=14, minute=10),
        timedelta(0),
        {"version": "2", "region": "ue"},
        b'{"id": 5}',
    ),
    "8123456789012345": ("orders", DAY - timedelta(hours=3), timedelta(0), {"version": "1"}, b"[]"),
    **{
        f"s{n}": ("orders", DAY.replace(hour=9), timedelta(0), {"version": "1"}, b'{"currency": "SEK"}')
        for n in range(200)
    },
}
ON_THE_DAY = {name for name, (topic, *_) in MESSAGES.items() if topic == "orders" and name != "8123456789012345"}
# Whose fingerprints a hundred divides, as Google's reference engine has them.
SAMPLE = {"s5", "s195"}
WANTED: Mapping[str, set[str]] = {
    "The hour with the hole": {"b", "c"},
    "One version's events": {"b", "d"},
    "Repair a field of the payload": {"a", "b"},
    "Repair an attribute": {"b"},
    "To one consumer": ON_THE_DAY,
    "From dead letters": {"failed", "failed twice"},
    "One message by its id": {"8123456789012345"},
    "A sample": SAMPLE,
}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive, dead letters of a pipeline, and the staging table with what was repaired of them."""
    lake = tmp_path_factory.mktemp("lake")
    archive = [
        {
            "data": data,
            "attributes": entries(attributes),
            "message_id": name,
            "publish_time": published,
            "topic": topic,
            "ingest_time": published + later,
        }
        for name, (topic, published, later, attributes, data) in MESSAGES.items()
    ]
    write_archived(lake, archive)
    letters = [
        {
            "data": name.encode(),
            "message_id": name,
            "topic": "orders",
            "source": source,
            "error_code": code,
            "publish_time": DAY,
            "ingest_time": DAY + timedelta(hours=hours),
        }
        for name, source, code, hours in (
            ("failed", "orders", "wrong_type", 1),
            ("failed twice", "orders", "wrong_type", 1),
            ("failed twice", "orders", "wrong_type", 2),
            ("repaired", "orders", "wrong_type", 1),
            ("no JSON", "orders", "not_json", 1),
            ("another's", "billing", "wrong_type", 1),
            ("too old", "orders", "wrong_type", -1),
        )
    ]
    schema = pa.schema([*FILE_SCHEMA, ("source", pa.string()), ("error_code", pa.string())])
    write_table(lake, "backup.dead_letters", letters, schema)
    staged = [
        {"id": 1, "_topic": "orders", "_message_id": "repaired", "ingest_time": DAY + timedelta(hours=30)},
        {"id": 2, "_topic": "members", "_message_id": "failed", "ingest_time": DAY + timedelta(hours=30)},
    ]
    names = [("id", pa.int64()), ("_topic", pa.string()), ("_message_id", pa.string()), ("ingest_time", MOMENT)]
    write_table(lake, "staging.orders", staged, pa.schema(names))
    return lake


@pytest.fixture
def sent(refeed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[[Recipe], dict[str, Any]]:
    """Run a recipe's command and return what it asks of the API."""
    asked: list[dict[str, Any]] = []

    def plan(self: RefeedApi, request: Mapping[str, Any], *, exact: bool = False) -> dict[str, Any]:
        asked.append(dict(request))
        raise KeyboardInterrupt

    monkeypatch.setattr(RefeedApi, "plan_backfill", plan)

    def run(recipe: Recipe) -> dict[str, Any]:
        assert "--dry-run" in recipe.words
        assert refeed(*recipe.words[1:]).code == 130
        return asked.pop()

    return run


def test_every_recipe_is_tried_here() -> None:
    assert set(RECIPES) == {*WANTED, "Only what failed"}


@pytest.mark.parametrize("title", WANTED)
def test_a_recipe_selects_the_messages_that_its_title_names(title, sent, lake, tmp_path):
    wanted = TypeAdapter(BackfillCreate).validate_python(sent(RECIPES[title]))
    environment = {"REFEED_LAKE": str(lake), "REFEED_QUERY_TABLES": "staging.orders"}
    rows = select_rows(wanted, environment, tmp_path / "home")
    found = [row["message_id"] for row in rows]
    assert len(found) == len(set(found))
    assert set(found) == WANTED[title]
    for row in rows:
        if row["message_id"] not in MESSAGES:
            continue
        topic, published, _, attributes, data = MESSAGES[row["message_id"]]
        assert (row["topic"], row["publish_time"]) == (topic, published)
        carried = [(pair["key"], pair["value"]) for pair in row["attributes"]]
        if title == "Repair an attribute":
            assert carried == [("version", "2"), ("region", "eu")]
        else:
            assert carried == list(attributes.items())
        if title == "Repair a field of the payload":
            assert json.loads(row["data"]) == {**json.loads(data), "currency": "SEK"}
        else:
            assert row["data"] == data


def test_a_replay_to_one_consumer_names_it(sent: Callable[..., Any]) -> None:
    asked = sent(RECIPES["To one consumer"])
    assert (asked["source_topic"], asked["target_subscription"]) == ("orders", "billing-replay")


def test_a_sample_goes_to_another_topic(sent: Callable[..., Any]) -> None:
    assert sent(RECIPES["A sample"])["topic"] == "orders-trial"


def test_only_what_failed_is_a_retry(refeed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def act(self: JobCalls, *given: Any) -> dict[str, Any]:
        asked.append(given)
        raise KeyboardInterrupt

    monkeypatch.setattr(JobCalls, "act", act)
    assert refeed(*RECIPES["Only what failed"].words[1:]).code == 130
    assert asked == [("bf_01M7Z1H20HKNZ6PGKRYCX6J210", "retry", {"only": "failed"})]


def test_a_create_takes_a_recipe_as_it_stands_with_its_plan(refeed, sent, monkeypatch):
    asked: list[Mapping[str, Any]] = []

    def create(self: KindCalls, request: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        asked.append(request)
        raise KeyboardInterrupt

    monkeypatch.setattr(KindCalls, "create", create)
    recipe = RECIPES["Repair an attribute"]
    planned = sent(recipe)
    words = ["--plan=pl_1" if word == "--dry-run" else word for word in recipe.words[1:]]
    assert refeed(*words).code == 130
    assert asked == [{**planned, "plan_id": "pl_1"}]


def test_the_help_of_backfill_and_the_readme_lead_to_the_recipes(refeed: Callable[..., Any]) -> None:
    assert "docs/recipes.md" in refeed("backfill", "--help").out
    assert "(docs/recipes.md)" in (Path(__file__).parents[2] / "README.md").read_text()
