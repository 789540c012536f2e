"""Backfills whose archive is in BigQuery (the stand-in): planned dry, selected once, as the lake selects them."""

import os
import signal
import subprocess
import sys
import threading
import uuid
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from backfill.plan.options import SelectionBounds
from backfill.plan.price import Billing
from backfill.plan.redrive import LetterChoice, LetterCounter
from backfill.plan.request import BackfillRequest
from backfill.run.folder import BackfillFolder
from backfill.run.selection import read_selection
from connectors.bigquery.queries.selections import SelectionJobs, job_id
from connectors.lake.archive import LakeArchive
from jobs.folder import Control, Order
from model.errors import (
    OrderingColumnsError,
    QueryDisagreesError,
    QueryStoppedError,
    QueryTooLargeError,
    RequestInvalidError,
    SelectionTooLargeError,
)
from model.principal import LOCAL
from model.schema import Field, RowSchema
from model.settings import read_settings
from pipeline.dead_letters import DEAD_LETTER_SCHEMA, dead_letter_rows
from pipeline.decode import Refusal
from tests.archive import write_commits
from tests.backfill.bigquery.conftest import PARAMETERS, QUERY, ROWS, codes, queries, rows_of, run
from tests.pipeline.conftest import messages as pulled_messages
from tests.waiting import wait_until
from warehouse.lake.warehouse import LakeWarehouse
from warehouse.open import open_warehouse


def test_a_plan_is_a_dry_run_that_reads_nothing_and_says_so(open_service, ask, shared_standin):
    before = queries(shared_standin)
    plan = open_service(billing=Billing(6.25)).plan(ask(), principal=LOCAL)
    assert plan["bytes_scanned"] > 0
    assert plan["price_usd"] == plan["bytes_scanned"] / 2**40 * 6.25
    assert (plan["rows"], plan["bytes"], plan["samples"], plan["rows_by_topic"]) == (None, None, [], {})
    assert plan["window"]["from"] == "2024-01-01T00:00:00.000000Z"
    assert "not_exact" in codes(plan)
    assert queries(shared_standin) == before


def test_a_replay_s_price_counts_all_that_it_makes_somebody_pay_for(open_service, ask):
    service = open_service(billing=Billing(6.25, is_pubsub_billed=True, runs_on_dataproc=True))
    dry, exact = (service.plan(ask(), principal=LOCAL, exact=exact)["replay_price"] for exact in (False, True))
    assert {part["what"]: part["usd"] is None for part in dry["parts"]}["publish"]
    by_name = {part["what"]: part for part in exact["parts"]}
    assert [name for name, part in by_name.items() if part["usd"] is None] == ["Dataproc batch"]
    assert {"query", "selection storage", "selection read", "staging write", "publish"} <= by_name.keys()
    assert by_name["publish"]["bytes"] > by_name["selection read"]["bytes"] > 0
    assert exact["usd"] is None
    assert exact["at_least_usd"] == pytest.approx(sum(part["usd"] or 0 for part in exact["parts"]))


def test_an_exact_plan_counts_and_its_create_reads_the_same_rows_without_a_second_query(
    service, ask, make, shared_standin
):
    before = queries(shared_standin)
    plan = service.plan(ask(), principal=LOCAL, exact=True)
    assert plan["rows"] == ROWS
    assert plan["rows_by_topic"] == {"orders": ROWS}
    assert plan["rows_by_hour"] == [
        {"hour": "2024-03-01T12:00:00Z", "rows": ROWS // 2},
        {"hour": "2024-03-01T13:00:00Z", "rows": ROWS // 2},
    ]
    assert plan["first_publish_time"] == "2024-03-01T12:00:00.000000Z"
    assert len(plan["samples"]) == 10
    assert {sample["encoding"] for sample in plan["samples"]} == {"json"}
    assert "not_exact" not in codes(plan)
    assert "materialised" not in plan
    folder = make(plan_id=plan["plan_id"])
    assert run(folder).rows == ROWS
    assert queries(shared_standin) == before + 1


def test_samples_of_an_exact_plan_have_their_archived_messages_by_one_capped_query(service, ask, shared_standin):
    def jobs():
        return len(list(shared_standin.client().list_jobs(all_users=True)))

    columns = "CONCAT(data, b' ') AS data, attributes, message_id"
    query = f"SELECT {columns}, topic FROM `{{table}}` WHERE _PARTITIONTIME >= @from AND topic = @topic"
    started = [jobs()]
    for originals in (False, True):
        plan = service.plan(ask(query), principal=LOCAL, exact=True, originals=originals)
        started.append(jobs())
    assert started[2] - started[1] == started[1] - started[0] + 1
    assert len(plan["samples"]) == 10
    for sample in plan["samples"]:
        archived, published = sample["comparison"]["archived"], sample["comparison"]["published"]
        assert (archived["topic"], published["data"]) == ("orders", f"{archived['data']} ")
        assert archived["data"] == f'{{"n": {sample["message_id"]}}}'
    # The ten of members have the ids of some of orders, and this query gives no topic.
    unnamed = f"SELECT {columns} FROM `{{table}}` WHERE _PARTITIONTIME >= @from"
    asked = ask(unnamed, parameters={"from": PARAMETERS["from"]})
    both = service.plan(asked, principal=LOCAL, exact=True, originals=True)["samples"]
    for sample in both:
        is_twice = int(sample["message_id"]) >= ROWS - 10
        assert (sample["comparison"]["archived"] is None) == is_twice
    dry = service.plan(ask(), principal=LOCAL, originals=True)
    assert dry["samples"] == [], "nothing is read without exact"


def test_columns_that_a_query_does_not_give_are_warned_of_and_not_made_up(service, make, ask):
    query = "SELECT data, attributes, message_id FROM `{table}` WHERE _PARTITIONTIME >= @from"
    parameters = {"from": PARAMETERS["from"]}
    plan = service.plan(ask(query, parameters=parameters), principal=LOCAL, exact=True)
    assert plan["rows"] == ROWS + 10
    assert plan["rows_by_topic"] == {}
    assert plan["samples"][0]["topic"] is None
    assert "columns_missing" in codes(plan)
    folder = make(query, parameters=parameters)
    run(folder)
    assert {row["topic"] for row in rows_of(folder)} == {None}


@pytest.mark.parametrize("exact", [False, True])
def test_a_query_that_bigquery_reads_otherwise_is_neither_planned_nor_created(
    service, ask, monkeypatch, exact, shared_standin
):
    dry_run = SelectionJobs.dry_run

    def other(self, sql, parameters):
        answer = dry_run(self, sql, parameters)
        tables = answer.job["statistics"]["query"]["referencedTables"]
        tables.append({"projectId": "shop", "datasetId": "secret", "tableId": "salaries"})
        return answer

    monkeypatch.setattr(SelectionJobs, "dry_run", other)
    before = queries(shared_standin)
    with pytest.raises(QueryDisagreesError):
        service.plan(ask(), principal=LOCAL, exact=exact)
    with pytest.raises(QueryDisagreesError):
        service.create(ask(), principal=LOCAL)
    assert queries(shared_standin) == before


def test_more_bytes_than_may_be_billed_are_refused_before_anything_runs(service, ask, shared_standin):
    before = queries(shared_standin)
    for call in (
        lambda: service.create(ask(max_bytes_billed=1), principal=LOCAL),
        lambda: service.plan(ask(max_bytes_billed=1), principal=LOCAL, exact=True),
    ):
        with pytest.raises(RequestInvalidError) as caught:
            call()
        assert caught.value.details["errors"][0]["code"] == "too_many_bytes"
    assert queries(shared_standin) == before


def test_a_cap_below_what_bigquery_bills_at_least_fails_the_query_unbilled(make):
    # "Pricing": at least 10 MB are billed for each table that a query reads.
    with pytest.raises(QueryTooLargeError):
        run(make(max_bytes_billed=2 * 2**20))


def test_the_selection_is_the_one_that_the_lake_makes_of_the_same_rows(
    make, tmp_path, messages, open_service, ask
):
    write_commits(LakeArchive(str(tmp_path / "lake"), "backup.messages"), {"orders": messages})
    warehouse = LakeWarehouse(str(tmp_path / "lake"), "backup.messages", "backup.dead_letters", "day", "500MB")
    on_lake = open_service(warehouse=warehouse)
    for ordering in ("none", "by_key"):
        ours = make(ordering=ordering, allow_overlap=True)
        request = replace(ask(ordering=ordering, allow_overlap=True), query=QUERY.format(table="backup.messages"))
        theirs = BackfillFolder(tmp_path / "backfills" / on_lake.create(request, principal=LOCAL).id)
        theirs.write_control(Control(1, Order.RUN))
        found, wanted = run(ours), run(theirs)
        assert (found.rows, found.bytes, found.rows_by_topic) == (wanted.rows, wanted.bytes, wanted.rows_by_topic)
        if ordering == "by_key":
            assert found == wanted
            assert rows_of(ours) == rows_of(theirs)
            continue
        mine, others = ({row["message_id"]: row for row in rows_of(folder)} for folder in (ours, theirs))
        assert sorted(row["refeed_row"] for row in mine.values()) == list(range(ROWS))
        assert {key: {**row, "refeed_row": 0} for key, row in mine.items()} == {
            key: {**row, "refeed_row": 0} for key, row in others.items()
        }


def test_by_key_takes_a_query_that_gives_the_key(make):
    query = "SELECT data, attributes, message_id FROM `{table}` WHERE _PARTITIONTIME >= @from"
    with pytest.raises(OrderingColumnsError, match="by_key needs the columns ordering_key"):
        run(make(query, parameters={"from": PARAMETERS["from"]}, ordering="by_key"))


def test_more_rows_than_max_rows_are_not_even_read(make, shared_standin):
    folder = make(max_rows=ROWS - 1)
    shared_standin.clear_log()
    with pytest.raises(SelectionTooLargeError):
        run(folder)
    assert shared_standin.calls("CreateReadSession") == []


@pytest.mark.parametrize("bounds", [SelectionBounds(max_rows=ROWS - 1), SelectionBounds(max_bytes=100)])
def test_more_than_the_deployment_allows_is_not_even_read(open_service, ask, deployment, shared_standin, bounds):
    service = open_service(bounds=bounds)
    plan = service.plan(ask(), principal=LOCAL, exact=True)
    assert plan["rows"] == ROWS
    assert plan["bounds"] == {"rows": bounds.max_rows, "bytes": bounds.max_bytes}
    assert "selection_too_large" in codes(plan)
    backfill = service.create(ask(), principal=LOCAL)
    folder = BackfillFolder(deployment.home / "backfills" / backfill.id)
    folder.write_control(Control(1, Order.RUN))
    shared_standin.clear_log()
    with pytest.raises(SelectionTooLargeError, match="REFEED_SELECTION_MAX"):
        run(folder)
    assert shared_standin.calls("CreateReadSession") == []


@pytest.mark.parametrize("failpoint", ["bigquery.selection.started", "bigquery.selection.made"])
def test_a_driver_that_is_killed_between_query_and_read_goes_on_with_the_same_query(
    make, shared_standin, tmp_path, failpoint
):
    folder = make()
    before = queries(shared_standin)
    script = (
        "import sys; from pathlib import Path; from backfill.run.folder import BackfillFolder\n"
        "from backfill.job import select; from backfill.plan.options import RunOptions\n"
        "folder = BackfillFolder(Path(sys.argv[1])); found = folder.read_specification()\n"
        "select(folder, 1, found, RunOptions.from_specification(found))"
    )
    environment = {**os.environ, "REFEED_FAILPOINTS": f"{failpoint}=0:{tmp_path / 'hit'}"}
    killed = subprocess.run(
        [sys.executable, "-c", script, str(folder.path)], env=environment, check=False, timeout=120
    )
    assert killed.returncode == -signal.SIGKILL
    assert read_selection(folder.selection) is None
    folder.write_control(Control(2, Order.RUN))
    assert run(folder, 2).rows == ROWS
    assert queries(shared_standin) == before + 1


def test_a_cancel_cancels_the_query_and_a_retry_runs_it_again(make, shared_standin):
    folder = make()
    shared_standin.fault("jobs.run", "delay", seconds=60)
    ended = []

    def attempt():
        try:
            run(folder)
        except QueryStoppedError as exc:
            ended.append(exc)

    driver = threading.Thread(target=attempt, daemon=True)
    driver.start()
    name = job_id(folder.path.name)
    client = shared_standin.client()
    wait_until(lambda: any(job.job_id == name for job in client.list_jobs(all_users=True)), "the query runs")
    folder.write_control(Control(1, Order.STOP))
    driver.join(30)
    assert ended
    job = client.get_job(name)
    assert job.error_result["reason"] == "stopped"
    shared_standin.clear_faults()
    folder.write_control(Control(2, Order.RUN))
    assert run(folder, 2).rows == ROWS


@pytest.mark.parametrize("is_held", [False, True], ids=["in partitions", "in the write buffer"])
def test_dead_letters_of_the_pipeline_are_counted_and_repaired_ones_left_out(
    session_standin, open_service, tmp_path, *, is_held
):
    dataset = f"d{uuid.uuid4().hex[:12]}"
    letters, staging = f"{dataset}.dead_letters", f"{dataset}.orders"
    environment = {
        **session_standin.environment,
        "REFEED_WAREHOUSE": "bigquery",
        "REFEED_PROJECT": "shop",
        "REFEED_DEAD_LETTER_TABLE": letters,
        "REFEED_QUERY_TABLES": staging,
    }
    settings = read_settings(environment, home=tmp_path)
    service = open_service(query_tables=settings.query_tables, dead_letter_table=letters)
    places = {"orders": ("replay", [staging])}
    planner = service._planner
    # Somebody would pay for it without having asked.
    assert planner.find_staging(["ops.other"]) is None
    counter = LetterCounter(letters, planner.answer, planner.find_staging, places.get)
    start = datetime(2024, 1, 1, tzinfo=UTC)
    assert counter.count(start) == []
    pulled = pulled_messages(b"nope", b"neither")
    refused = [Refusal(0, "not_json", "It is no JSON."), Refusal(1, "not_json", "Nor is it.")]
    rows = dead_letter_rows(pulled, refused, topic="orders", token="", source="orders", version=None)
    landed = rows.slice(0, 1).select(["topic", "message_id", "ingest_time"])
    landed = landed.rename_columns(["_topic", "_message_id", "ingest_time"])
    fields = (Field("_topic", "STRING"), Field("_message_id", "STRING"), Field("ingest_time", "TIMESTAMP"))
    with closing(open_warehouse(settings).open_row_tables(stream="s", lease="l")) as tables:
        tables.create()
        tables.open(letters).evolve(DEAD_LETTER_SCHEMA)
        tables.open(staging).evolve(RowSchema(fields))
        tables.leases().take_lease("l")
        tables.append(letters, rows)
        tables.append(staging, landed)
    if is_held:
        for table in (letters, staging):
            session_standin.hold_write_buffer(f"shop.{table}", everything=True)
    (found,) = counter.count(start)
    assert (found.source, found.code, found.messages, found.repaired) == ("orders", "not_json", 2, 1)
    listed = counter.list_messages(LetterChoice("orders", start), limit=9, preview_bytes=4)
    assert sorted((one["data"], one["data_bytes"]) for one in listed) == [(b"neith", 7), (b"nope", 4)]
    found_data = {counter.read_data("orders", "orders", one["message_id"], datetime.now(UTC)) for one in listed}
    assert found_data == {b"nope", b"neither"}
    backfill = service.create(BackfillRequest(**found.request), principal=LOCAL)
    folder = BackfillFolder(tmp_path / "backfills" / backfill.id)
    folder.write_control(Control(1, Order.RUN))
    assert run(folder).rows == 1
    assert [(row["data"], row["topic"]) for row in rows_of(folder)] == [(b"neither", "orders")]
