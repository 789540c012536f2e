"""Rows over REST: query results and table data in pages, and tabledata.insertAll."""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from tests.standin.catalog import Catalog, Piece, TableEntry, TableKey, now_us
from tests.standin.jobs import Jobs, job_problem, result_table
from tests.standin.problems import Problem
from tests.standin.schemas import parse_rows, rows_of

# "Tabledata: list" answers with as much as fits; a page here ends after so many bytes of Arrow.
_PAGE_BYTES: Final = 10_000_000


class Rows:
    """Pages of rows, and the rows of insertAll."""

    def __init__(self, catalog: Catalog, jobs: Jobs) -> None:
        self._catalog = catalog
        self._jobs = jobs

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
        table = self._catalog.find_table(key)
        parsed = parse_rows([row["json"] for row in body["rows"]], table.fields)
        part = self._catalog.write_rows(table, parsed, None)
        self._catalog.add_part(table, {**part, "arrival_us": now_us()})
        return {"kind": "bigquery#tableDataInsertAllResponse"}


def slice_pieces(pieces: tuple[Piece, ...], start: int, end: int) -> list[Piece]:
    found, before = [], 0
    for piece in pieces:
        first, last = max(start - before, 0), min(end - before, piece.rows)
        if first < last:
            found.append(Piece(piece.path, piece.first_row + first, piece.first_row + last, piece.partition_us))
        before += piece.rows
    return found
