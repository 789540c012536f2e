"""Every query that stands in the README or a page, over an archive where the right rows are known."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from app.backfills import open_queries
from backfill.plan.create import BackfillCreate
from backfill.plan.planner import policy_of
from backfill.plan.settings import BackfillSettings
from client.api import RefeedApi
from model.plain_yaml import read_yaml
from model.settings import read_settings
from sql.validate import QueryRefusedError, parse_parameters, validate_query
from tests.archive import entries, write_archived
from tests.recipes import words_of
from warehouse.open import open_warehouse

ROOT = Path(__file__).parents[2]
# The recipes are commands, and have tests of their own.
FOLDERS = [ROOT / "docs", ROOT / "docs" / "how-to"]
PAGES = [ROOT / "README.md"] + [
    page for folder in FOLDERS for page in sorted(folder.glob("*.md")) if page.name != "recipes.md"
]
# From SELECT to the quote, the blank line, the fence, the end of a shell's document or a YAML file's next field.
QUERY = re.compile(
    r"\bSELECT\b[^\"`]*?\bFROM\s+(?:backup|staging|reporting)\.\w+(?:(?!\n\n|\"|```|\nSQL\n|\n\s*[a-z_]+: ).)*",
    re.DOTALL,
)
CONDITION = re.compile(r"^```sql\n(WHERE .*?)^```$", re.DOTALL | re.MULTILINE)
DAY = datetime(2026, 1, 1, tzinfo=UTC)
NOW = datetime.now(UTC)
# As a slot from 15:00 in Berlin to 03:30 of the next day has them.
TIMES: dict[str, Any] = {
    "from": {"type": "TIMESTAMP", "value": "2026-01-01T14:00:00Z"},
    "to": {"type": "TIMESTAMP", "value": "2026-01-02T02:30:00Z"},
    "since": {"type": "TIMESTAMP", "value": "2026-01-01T14:00:00Z"},
    "day": {"type": "DATE", "value": "2026-01-01"},
    "topic": {"type": "STRING", "value": "orders"},
}
# message id: topic, archived, region, data
MESSAGES: dict[str, tuple[str, datetime, str, bytes]] = {
    "eve": ("orders", DAY - timedelta(seconds=1), "eu", b'{"total": 1}'),
    "early": ("orders", DAY + timedelta(hours=2), "us", b'{"total": 2}'),
    "noon": ("orders", DAY + timedelta(hours=14), "eu", b'{"total": 3}'),
    "members": ("members", DAY + timedelta(hours=14), "eu", b'{"id": 4}'),
    "late": ("orders", DAY + timedelta(hours=23, minutes=59, seconds=59), "eu", b""),
    "night": ("orders", DAY + timedelta(hours=26), "us", b'{"total": 5}'),
    "after": ("orders", DAY + timedelta(hours=26, minutes=30), "eu", b'{"total": 6}'),
    "today": ("members", NOW - timedelta(seconds=1), "eu", b'{"total": 7}'),
    "recent": ("orders", NOW - timedelta(seconds=1), "eu", b'{"total": 8}'),
}
OF_THE_DAY = {"early", "noon", "late"}
OF_THE_SLOT = {"noon", "late", "night"}
# By page and line: what a query selects, as often as one stands there.
WANTED: dict[str, list[set[str]]] = {
    "README.md": [set(MESSAGES)],
    "api.md": [OF_THE_DAY],
    "bigquery.md": [OF_THE_DAY],
    "manifests.md": [OF_THE_SLOT],
    "replay.md": [OF_THE_SLOT],
    "sql.md": [{"noon"}, OF_THE_SLOT | {"members"}, OF_THE_SLOT | {"members"}],
    "start.md": [set(MESSAGES)],
}
# What a command with a topic and a range selects, and what a request with one does.
OF_RANGES: dict[str, list[set[str]]] = {
    "README.md": [{"recent"}],
    "api.md": [OF_THE_DAY],
    "manifests.md": [OF_THE_SLOT],
    "replay.md": [{"noon"}, {"noon"}],
    "start.md": [{"recent"}, {"recent"}, {"recent"}, {"recent"}],
    "templates.md": [OF_THE_SLOT],
}
COMMAND = re.compile(r"^ *(refeed backfill \w+ --from (?:.*\\\n)*.*)$", re.MULTILINE)
REQUEST = re.compile(
    r"\{\s*\"source_topic\"(?:[^{}]|\{[^{}]*\})*\}|^( +)source_topic: .*\n(?:\1.*\n)+", re.MULTILINE
)
SLOT = {
    **{f"{{{{ slot.{name} }}}}": TIMES[of]["value"] for name, of in (("start", "from"), ("end", "to"))},
    **{f"${{{name}}}": value["value"] for name, value in TIMES.items()},
}
REFUSED = {"api.md": ["SELECT data FROM backup.messages"]}
# These are over what pipelines and merges wrote, or count the archive of their page, and say nothing of a window.
OTHERS = {"pipeline.md": 1, "reporting.md": 2, "security.md": 1, "update.md": 1}


def find_queries(page: Path) -> list[str]:
    """Return the queries of a page in their order; a condition alone becomes one over the archive."""
    text = page.read_text()
    found = [(match.start(), match.group()) for match in QUERY.finditer(text)]
    found += [
        (match.start(), f"SELECT data, attributes, message_id FROM backup.messages {match.group(1)}")
        for match in CONDITION.finditer(text)
    ]
    return [query.strip() for _, query in sorted(found)]


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """A deployment whose archive has the messages."""
    home = tmp_path_factory.mktemp("home")
    rows = [
        {
            "data": data,
            "attributes": entries({"region": region}),
            "message_id": name,
            "publish_time": at,
            "topic": topic,
            "ingest_time": at,
        }
        for name, (topic, at, region, data) in MESSAGES.items()
    ]
    write_archived(home / "lake", rows)
    read = read_settings({"REFEED_HOME": str(home)})
    return BackfillSettings.from_settings(read, open_warehouse(read))


@pytest.fixture(scope="module")
def queries(settings):
    found = open_queries(settings)
    yield found
    found.close()


@pytest.fixture
def select(settings, queries):
    """Return the ids that a query selects; a replay's query has to pass as one."""

    def run(text):
        named = re.search(r"SELECT (topic )?FROM|SELECT topic, message_id", text)
        parameters = parse_parameters({name: TIMES[name] for name in set(re.findall(r"@(\w+)", text))})
        query = validate_query(text, parameters, policy_of(settings, queries, replay=named is None))
        assert [warning.violation.message for warning in query.warnings] == []
        # Rows are told by their data where the id is not among the columns.
        rows = queries.answer(query, max_rows=100).rows.to_pylist()
        if "message_id" in query.text.partition("FROM")[0]:
            return {row["message_id"] for row in rows}
        assert [row["topic"] for row in rows] == ["orders"]
        return {"late"}

    return run


def find_commands(page: Path) -> list[tuple[str, ...]]:
    return [words_of(match.group(1)) for match in COMMAND.finditer(page.read_text())]


def find_requests(page: Path) -> list[dict[str, Any]]:
    """Return the requests of a page that have a range, in JSON or YAML, with the times of a slot."""
    found = [read_plain(match.group()) for match in REQUEST.finditer(page.read_text())]
    names = ("source_topic", "from", "to")
    return [{name: SLOT.get(each[name], each[name]) for name in names} for each in found]


def read_plain(text: str) -> dict[str, Any]:
    return read_yaml(text.encode()).value


@pytest.mark.parametrize("name", OF_RANGES)
def test_the_ranges_of_a_page_select_what_it_says(name, select, refeed, monkeypatch):
    (page,) = [page for page in PAGES if page.name == name]
    asked = []

    def plan(self, request, *, exact=False):
        asked.append(dict(request))
        raise KeyboardInterrupt

    monkeypatch.setattr(RefeedApi, "plan_backfill", plan)
    for words in find_commands(page):
        assert refeed(*words[1:]).code == 130
    written = [
        TypeAdapter(BackfillCreate).validate_python(each).write("backup.messages")
        for each in [*asked, *find_requests(page)]
    ]
    assert [select(each.query) for each in written] == OF_RANGES[name]
    assert {each.topic for each in written} == {"orders"}


def test_every_page_with_a_range_is_tried_here():
    found = {page.name: len(find_commands(page)) + len(find_requests(page)) for page in PAGES}
    assert {name: count for name, count in found.items() if count} == {
        name: len(ranges) for name, ranges in OF_RANGES.items()
    }


def test_every_page_with_a_query_is_tried_here():
    found = {page.name: len(find_queries(page)) for page in PAGES}
    tried = {name: len(queries) + len(REFUSED.get(name, [])) for name, queries in WANTED.items()} | OTHERS
    assert {name: count for name, count in found.items() if count} == tried


@pytest.mark.parametrize("name", WANTED)
def test_the_queries_of_a_page_select_what_it_says(name, select):
    (page,) = [page for page in PAGES if page.name == name]
    texts = [text for text in find_queries(page) if text not in REFUSED.get(name, [])]
    assert [select(text) for text in texts] == WANTED[name]


def test_a_query_that_a_page_has_the_gate_refuse_is_refused(select):
    with pytest.raises(QueryRefusedError):
        select(REFUSED["api.md"][0])
