"""What plans, answers and selections need of a warehouse, the same in the lake and in BigQuery (the stand-in)."""

import json
import uuid
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from backfill.plan.checking import check_replay_query
from model.settings import Settings, read_settings
from model.window import Window
from sql.validate import Policy, ValidatedQuery, validate_query
from tests.archive import messages, write_commits
from tests.worlds.bucket import at_bucket, make_lake
from warehouse.bigquery.runs import QueryRuns
from warehouse.open import open_warehouse, warehouse_from_json
from warehouse.queries import Queries, QuerySpace, ReplayQuery, SelectionRun

BUCKETS = [pytest.param(each, marks=pytest.mark.cloud) for each in ("s3", "gs")]
ROWS = 40
TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
ALL = f"WHERE _PARTITIONTIME >= TIMESTAMP '{TODAY - timedelta(days=1):%Y-%m-%d}'"
COLUMNS = "data, attributes, message_id, publish_time, topic, ordering_key"


@dataclass
class World:
    """One warehouse with an archive of orders and members, of four ordering keys, newest first."""

    settings: Settings
    space: QuerySpace
    queries: Queries

    def validate(self, columns: str = COLUMNS, condition: str = "", *, replay: bool = True) -> ValidatedQuery:
        table = self.settings.archive_table
        policy = Policy(table, self.settings.project, datetime.now(UTC), max_window_days=36_600, replay=replay)
        return validate_query(f"SELECT {columns} FROM {table} {ALL} {condition}", {}, self.queries.policy(policy))

    def select(self, query: ValidatedQuery, **run: Any) -> list[dict[str, Any]]:
        """Select as a driver does, that has the warehouse and the query from JSON."""
        source = json.loads(json.dumps(self.queries.source(ReplayQuery(query))))
        own = warehouse_from_json(open_warehouse(self.settings).to_json())
        with (
            closing(own.open_queries(self.space)) as queries,
            queries.select(source, SelectionRun(f"bf_{uuid.uuid4().hex}", **run)) as batches,
        ):
            return [row for batch in batches for row in batch.to_pylist()]


def newest_first(count: int) -> pa.RecordBatch:
    numbers = range(count)
    found = messages(
        count,
        data=[b"x" * n for n in numbers],
        publish_time=[TODAY + timedelta(seconds=n) for n in numbers],
        ordering_key=[f"k{n % 4}" for n in numbers],
    )
    return found.take(pa.array(numbers[::-1]))


@pytest.fixture(scope="module", params=["lake", *BUCKETS, "bigquery"])
def world(request, tmp_path_factory, session_standin):
    home = tmp_path_factory.mktemp("home")
    is_bucket = request.param in ("s3", "gs")
    server = request.getfixturevalue(f"{request.param}_server") if is_bucket else ""
    environment = {
        **session_standin.environment,
        "REFEED_WAREHOUSE": "lake" if is_bucket else request.param,
        "REFEED_PROJECT": "shop",
        "REFEED_ARCHIVE_TABLE": f"q{uuid.uuid4().hex[:12]}.messages",
    }
    if is_bucket:
        environment["REFEED_LAKE"] = make_lake(server, request.param)
    settings = read_settings(environment, home=home)
    space = QuerySpace("500MB", home / "spill")
    with at_bucket(server) if is_bucket else nullcontext():
        with closing(open_warehouse(settings).open_archive()) as archive:
            write_commits(archive, {"orders": newest_first(ROWS)}, {"members": newest_first(3)})
        with closing(open_warehouse(settings).open_queries(space)) as queries:
            yield World(settings, space, queries)


def test_an_answer_has_as_many_rows_as_are_wanted_and_says_whether_there_are_more(world):
    query = world.validate("topic, COUNT(*) AS n", "GROUP BY topic ORDER BY topic", replay=False)
    whole = world.queries.answer(query, max_rows=2)
    assert whole.rows.to_pylist() == [{"topic": "members", "n": 3}, {"topic": "orders", "n": ROWS}]
    assert not whole.is_cut
    cut = world.queries.answer(query, max_rows=1)
    assert (cut.rows.to_pylist(), cut.is_cut) == ([{"topic": "members", "n": 3}], True)


def test_a_table_is_there_or_it_is_not(world):
    assert world.queries.has_table(world.settings.archive_table)
    assert not world.queries.has_table("nothing.here")


def test_what_is_looked_into_for_its_rows_has_the_same_figures(world, monkeypatch):
    read = QueryRuns.read

    def row_by_row(runs, table, columns=()):
        schema, batches = read(runs, table, columns)
        rows = [batch.slice(n, 1) for batch in batches for n in range(batch.num_rows)]
        # BigQuery gives rows in any order.
        return schema, iter(rows[len(rows) // 2 :] + rows[: len(rows) // 2])

    monkeypatch.setattr(QueryRuns, "read", row_by_row)
    # There are as many topics and hours as may be.
    monkeypatch.setattr(f"warehouse.{world.settings.warehouse}.figures.MAX_GROUPS", 1)
    wanted = ReplayQuery(world.validate(condition="AND topic = 'orders'"))
    figures = world.queries.examine(wanted, keep_as=f"pl_{uuid.uuid4().hex}")
    assert (figures.rows, dict(figures.rows_by_topic)) == (ROWS, {"orders": ROWS})
    assert dict(figures.rows_by_hour) == {TODAY: ROWS}
    assert figures.first_publish_time == TODAY
    assert figures.last_publish_time == TODAY + timedelta(seconds=ROWS - 1)
    assert figures.bytes_scanned > 0
    assert len(figures.samples) == 10
    assert set(figures.samples[0]) == {"message_id", "publish_time", "topic", "attributes", "data"}
    assert not figures.is_cut


def test_a_column_of_an_unknown_type_is_no_time_of_publication(world):
    query = world.validate(condition="AND topic = 'orders'")
    columns = (replace(each, type="unknown") if each.name == "publish_time" else each for each in query.output)
    wanted = ReplayQuery(replace(query, output=tuple(columns)))
    figures = world.queries.examine(wanted, keep_as=f"pl_{uuid.uuid4().hex}")
    assert (figures.rows, dict(figures.rows_by_topic)) == (ROWS, {"orders": ROWS})
    assert (figures.first_publish_time, dict(figures.rows_by_hour)) == (None, {})


def test_a_query_may_read_only_what_its_caller_pays_for(world):
    scanned = []
    wanted = replace(ReplayQuery(world.validate()), max_bytes_billed=10**12, check_bill=scanned.append)
    world.queries.source(wanted)
    assert len(scanned) == 1
    assert scanned[0] > 0


@pytest.mark.parametrize("by_key", [False, True])
def test_a_selection_has_every_row_once(world, by_key):
    rows = world.select(world.validate(condition="AND topic = 'orders'"), by_key=by_key)
    assert sorted(row["message_id"] for row in rows) == sorted(f"m{n}" for n in range(ROWS))
    found = next(row for row in rows if row["message_id"] == "m7")
    assert (found["data"], found["topic"], found["ordering_key"]) == (b"x" * 7, "orders", "k3")
    if by_key:
        assert [int(row["message_id"][1:]) for row in rows] == [n for k in range(4) for n in range(k, ROWS, 4)]


def test_topics_are_counted_by_their_ingestion(world):
    now = datetime.now(UTC)
    volumes = world.queries.counts.volumes(Window(now - timedelta(days=7), now))
    assert {topic: volume.messages for topic, volume in volumes.items()} == {"orders": ROWS, "members": 3}
    # The day of these messages is in the window, and they are not; another process has remembered nothing.
    with closing(open_warehouse(world.settings).open_queries(world.space)) as other:
        assert other.counts.volumes(Window(now, now + timedelta(hours=1))) == {}
    found = world.queries.counts.histogram("members", Window(TODAY - timedelta(days=1), now), "hour")
    assert sum(found.values()) == 3


def test_a_query_is_checked_without_a_dry_run_and_names_the_tables_that_it_may_read(world):
    table = world.settings.archive_table
    policy = world.queries.policy(Policy(table, world.settings.project, datetime.now(UTC), ("ops.gone",)))
    bad = check_replay_query(f"SELECT data FROM {table}", {}, policy, world.queries.check)
    assert not bad["passes"]
    assert bad["rewritten"]["passes"]
    good = check_replay_query(bad["rewritten"]["query"], {}, policy, world.queries.check)
    assert (good["passes"], good["reads"]) == (True, [table])
    is_known = world.settings.warehouse == "lake"
    # The lake knows that there is no such table; BigQuery says so when the query is tried.
    assert [each["table"] for each in good["tables"]] == ([table] if is_known else [table, "ops.gone"])
    assert [each["columns"] is None for each in good["tables"][1:]] == ([] if is_known else [True])
