"""Rows over REST: query results and table data in pages, and tabledata.insertAll."""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from tests.standin.catalog import Catalog, Piece, TableEntry, TableKey, now_us
from tests.standin.jobs import Jobs, job_problem, result_table
from tests.standin.problems import Problem
from tests.standin.schemas import parse_rows, rows_of

# "Tabledata: list" answers with as much as fits; a page here ends after so many bytes of Arrow.
_PAGE_BYTES: Final = 10_000_000
# "Streaming data into BigQuery", best effort de-duplication: at least one minute; here the last so many ids.
_KEPT_INSERT_IDS: Final = 100_000


class Rows:
    """Pages of rows, and the rows of insertAll."""

    def __init__(self, catalog: Catalog, jobs: Jobs) -> None:
        self._catalog = catalog
        self._jobs = jobs
        self._insert_ids: OrderedDict[tuple[int, str], None] = OrderedDict()
        self._lock = threading.Lock()

    def query_results(self, project: str, job_id: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Return whether a query job is done, and a page of its rows (jobs.getQueryResults).

        Raises:
            Problem: the job's own, when it failed.
        """
        seconds = float(query.get("timeoutMs") or 10_000) / 1000
        job = self._jobs.wait(project, job_id, query.get("location"), seconds)
        return self.answer(job, query, "bigquery#getQueryResultsResponse")

    def run_query(self, project: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Run a query and return its first page when it is done in time (jobs.query)."""
        job = self._jobs.query(project, body)
        if body.get("dryRun"):
            statistics = job["statistics"]["query"]
            return {
                "kind": "bigquery#queryResponse",
                "jobReference": job["jobReference"],
                "jobComplete": True,
                "schema": statistics.get("schema"),
                "totalBytesProcessed": statistics["totalBytesProcessed"],
                "cacheHit": False,
            }
        seconds = float(body.get("timeoutMs") or 10_000) / 1000
        reference = job["jobReference"]
        found = self._jobs.wait(project, reference["jobId"], reference["location"], seconds)
        options = body.get("formatOptions") or {}
        query = {"formatOptions.useInt64Timestamp": str(options.get("useInt64Timestamp", False))}
        if "maxResults" in body:
            query["maxResults"] = str(body["maxResults"])
        return self.answer(found, query, "bigquery#queryResponse")

    def answer(self, job: Mapping[str, Any], query: Mapping[str, str], kind: str) -> dict[str, Any]:
        """Return a job's results as both calls give them."""
        if "query" not in job["configuration"]:
            raise Problem("invalid", "Only a query job has results.")
        answer: dict[str, Any] = {"kind": kind, "jobReference": job["jobReference"], "jobComplete": False}
        if job["status"]["state"] != "DONE":
            return answer
        if (problem := job_problem(job)) is not None:
            raise problem
        statistics = job["statistics"]["query"]
        answer |= {
            "jobComplete": True,
            "cacheHit": False,
            "totalBytesProcessed": statistics["totalBytesProcessed"],
            "location": job["jobReference"]["location"],
        }
        if "numDmlAffectedRows" in statistics:
            answer["numDmlAffectedRows"] = statistics["numDmlAffectedRows"]
            answer["dmlStats"] = statistics["dmlStats"]
        table = result_table(self._catalog, job)
        if table is None:
            return {**answer, "schema": {"fields": []}, "totalRows": "0"}
        page = self._page(table, query)
        return {**answer, "schema": {"fields": table.fields}, **page}

    def list_rows(self, key: TableKey, query: Mapping[str, str]) -> dict[str, Any]:
        """Return a page of a table's rows (tabledata.list)."""
        name, _, _ = key.name.partition("$")
        table = self._catalog.find_table(TableKey(key.project, key.dataset, name))
        if table.is_view:
            raise Problem("invalid", f"Cannot list a table of type VIEW: {key}")
        wanted = [name.strip().lower() for name in query.get("selectedFields", "").split(",") if name.strip()]
        if wanted:
            chosen = [field for field in table.fields if field["name"].lower() in wanted]
            table = TableEntry(table.id, table.key, {**table.body, "schema": {"fields": chosen}})
        return {"kind": "bigquery#tableDataList", **self._page(table, query)}

    def _page(self, table: TableEntry, query: Mapping[str, str]) -> dict[str, Any]:
        snapshot = self._catalog.snapshot(table)
        start = int(query.get("pageToken") or query.get("startIndex") or 0)
        limit = int(query["maxResults"]) if "maxResults" in query else snapshot.rows
        batches, size, end = [], 0, start
        pieces = slice_pieces(snapshot.pieces, start, start + limit)
        for batch in self._catalog.read(table, pieces, pseudo=False):
            if batches and size + batch.nbytes > _PAGE_BYTES:
                break
            batches.append(batch)
            size += batch.nbytes
            end += batch.num_rows
        int_timestamps = query.get("formatOptions.useInt64Timestamp", "").lower() == "true"
        page: dict[str, Any] = {"totalRows": str(snapshot.rows)}
        if batches:
            relaxed = pa.schema([field.with_nullable(True) for field in table.arrow_schema()])
            rows = pa.Table.from_batches([batch.cast(relaxed) for batch in batches], relaxed)
            page["rows"] = rows_of(rows, table.fields, int_timestamps=int_timestamps)
        if end < snapshot.rows and limit:
            page["pageToken"] = str(end)
        return page

    def insert_all(self, key: TableKey, body: Mapping[str, Any]) -> dict[str, Any]:
        """Append JSON rows; a bad row is named, and takes the others with it unless skipInvalidRows."""
        table = self._catalog.find_table(key)
        rows = list(body.get("rows") or ())
        if not rows:
            raise Problem("invalid", "No rows present in the request.")
        errors: dict[int, str] = {}
        good = []
        for number, row in enumerate(rows):
            try:
                parse_rows([row["json"]], table.fields)
                good.append(row)
            except ValueError as exc:
                errors[number] = str(exc.args[1])
        answer: dict[str, Any] = {"kind": "bigquery#tableDataInsertAllResponse"}
        if errors:
            stopped = [] if body.get("skipInvalidRows") else [n for n in range(len(rows)) if n not in errors]
            answer["insertErrors"] = [
                *({"index": n, "errors": [{"reason": "invalid", "message": m}]} for n, m in errors.items()),
                *({"index": n, "errors": [{"reason": "stopped", "message": ""}]} for n in stopped),
            ]
        if not errors or body.get("skipInvalidRows"):
            self._store(table, good)
        return answer

    def _store(self, table: TableEntry, rows: list[Mapping[str, Any]]) -> None:
        with self._lock:
            new = []
            for row in rows:
                mark = (table.id, str(row.get("insertId") or ""))
                if mark[1] and mark in self._insert_ids:
                    continue
                self._insert_ids[mark] = None
                new.append(row["json"])
            while len(self._insert_ids) > _KEPT_INSERT_IDS:
                self._insert_ids.popitem(last=False)
            parsed = parse_rows(new, table.fields)
            part = self._catalog.write_rows(table, parsed, None)
            self._catalog.add_part(table, {**part, "arrival_us": now_us()})


def slice_pieces(pieces: tuple[Piece, ...], start: int, end: int) -> list[Piece]:
    """Return the part of ``pieces`` that rows [start, end) of them are."""
    found, before = [], 0
    for piece in pieces:
        first, last = max(start - before, 0), min(end - before, piece.rows)
        if first < last:
            found.append(Piece(piece.path, piece.first_row + first, piece.first_row + last, piece.partition_us))
        before += piece.rows
    return found
