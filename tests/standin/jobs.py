"""The REST resource jobs: query jobs and load jobs with ids, states, cancel, dry run, and their rows in pages.

A job's result and its state DONE are one transaction; a job that a killed server left behind runs again when the
server is back, as the real service's jobs outlive the caller's connection.
"""

import json
import re
import threading
import uuid
from collections.abc import Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any, Final

from tests.standin.catalog import Catalog, TableEntry, TableKey, now_us
from tests.standin.destinations import Destinations
from tests.standin.faults import FaultBook
from tests.standin.loads import read_upload
from tests.standin.locations import check_asked, check_datasets, choose_location
from tests.standin.problems import HTTP_CODES, Problem, check_labels, duplicate, not_found
from tests.standin.queries import Analysis, Changed, Queries
from tests.standin.query_text import Cancel, QueryText, read_parameter
from tests.standin.resources import LOCATION, Resources
from tests.standin.statements import altered_columns, ddl_options, render_view

_WORKERS: Final = 4
# A job may be done when it is answered for; then nobody waits from one look at it to the next.
_INSERT_SECONDS: Final = 0.3


@dataclass(slots=True)
class _Running:
    cancel: Cancel = field(default_factory=Cancel)
    done: threading.Event = field(default_factory=threading.Event)


class Jobs:
    """Jobs over one catalog; ``act`` does what an ordered fault is."""

    def __init__(
        self, catalog: Catalog, queries: Queries, resources: Resources, faults: FaultBook, act: Any
    ) -> None:
        self._catalog = catalog
        self._queries = queries
        self._resources = resources
        self._destinations = Destinations(catalog, resources)
        self._faults = faults
        self._act = act
        self._pool = futures.ThreadPoolExecutor(_WORKERS, thread_name_prefix="job")
        self._running: dict[tuple[str, str], _Running] = {}
        self._lock = threading.Lock()
        resources.describe_view = self.describe_view

    def recover(self) -> None:
        """Run what a killed server had not finished."""
        for row in self._catalog.query("SELECT body FROM jobs ORDER BY created_us"):
            job = json.loads(row["body"])
            if job["status"]["state"] != "DONE":
                self._launch(job)

    # The resource

    def insert(self, project: str, body: Mapping[str, Any], upload: str | None = None) -> dict[str, Any]:
        """Start a job; an id that is there already is ``duplicate``."""
        config = dict(body.get("configuration") or {})
        kind = next((name for name in ("query", "load") if name in config), None)
        if kind is None:
            raise Problem("invalid", "A job is a query or a load here.")
        reference = body.get("jobReference") or {}
        job_id = str(reference.get("jobId") or f"job_{uuid.uuid4().hex}")
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,1024}", job_id):
            raise Problem("invalid", f"Invalid job ID {job_id!r}.")
        check_labels(config.get("labels"))
        config["jobType"] = kind.upper()
        location = choose_location(self._catalog, project, config, reference.get("location"))
        job: dict[str, Any] = {
            "kind": "bigquery#job",
            "id": f"{project}:{location}.{job_id}",
            "selfLink": f"/bigquery/v2/projects/{project}/jobs/{job_id}",
            "user_email": "standin@example.com",
            "jobReference": {"projectId": project, "jobId": job_id, "location": location},
            "configuration": config,
            "status": {"state": "PENDING"},
            "statistics": {"creationTime": str(now_us() // 1000)},
        }
        if config.get("dryRun"):
            return self._dry_run(job)
        if kind == "query" and "destinationTable" not in config["query"]:
            config["query"] = {
                **config["query"],
                "destinationTable": self._destinations.anonymous(project, job_id),
                "_anonymous": True,
            }
        if upload is not None:
            job["_upload"] = upload
        with self._catalog.transaction() as db:
            if self._catalog.query("SELECT 1 FROM jobs WHERE project = ? AND id = ?", project, job_id):
                raise duplicate("Job", project, f"{location}.{job_id}")
            db.execute("INSERT INTO jobs VALUES (?, ?, ?, ?)", (project, job_id, json.dumps(job), now_us()))
        self._launch(job)
        return _shown(self.wait(project, job_id, location, _INSERT_SECONDS))

    def get(self, project: str, job_id: str, location: str | None) -> dict[str, Any]:
        return _shown(self._find(project, job_id, location))

    def list_jobs(self, project: str, page_size: int, page_token: str) -> dict[str, Any]:
        rows = self._catalog.query(
            "SELECT body, created_us FROM jobs WHERE project = ? AND created_us < ? ORDER BY created_us DESC",
            project,
            int(page_token or 2**62),
        )
        jobs = [_shown(json.loads(row["body"])) for row in rows[:page_size]]
        page: dict[str, Any] = {
            "kind": "bigquery#jobList",
            "jobs": [{**job, "state": job["status"]["state"]} for job in jobs],
        }
        if len(rows) > page_size:
            page["nextPageToken"] = str(rows[page_size - 1]["created_us"])
        return page

    def cancel(self, project: str, job_id: str, location: str | None) -> dict[str, Any]:
        """Ask a job to stop; one that is done stays as it is."""
        self._find(project, job_id, location)
        running = self._running.get((project, job_id))
        if running is not None:
            running.cancel.ask()
        return {"kind": "bigquery#jobCancelResponse", "job": self.get(project, job_id, location)}

    def query(self, project: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Start a query job and return it (jobs.query)."""
        moved = ("labels", "jobTimeoutMs")
        skipped = ("kind", "timeoutMs", "maxResults", "requestId", "location", "formatOptions", "dryRun", *moved,
                   "jobCreationMode")  # fmt: skip
        config = {
            "query": {key: value for key, value in body.items() if key not in skipped},
            **{key: body[key] for key in moved if key in body},
        }
        return self.insert(project, {"configuration": config, "jobReference": {"location": body.get("location")}})

    def wait(self, project: str, job_id: str, location: str | None, seconds: float) -> dict[str, Any]:
        running = self._running.get((project, job_id))
        if running is not None:
            running.done.wait(seconds)
        return self._find(project, job_id, location)

    def _find(self, project: str, job_id: str, location: str | None) -> dict[str, Any]:
        rows = self._catalog.query("SELECT body FROM jobs WHERE project = ? AND id = ?", project, job_id)
        if not rows:
            raise not_found("Job", project, f"{location or LOCATION}.{job_id}")
        job = json.loads(rows[0]["body"])
        check_asked(job, location)
        return dict(job)

    def _save(self, job: Mapping[str, Any]) -> None:
        reference = job["jobReference"]
        with self._catalog.transaction() as db:
            db.execute(
                "UPDATE jobs SET body = ? WHERE project = ? AND id = ?",
                (json.dumps(job), reference["projectId"], reference["jobId"]),
            )

    # The work

    def _launch(self, job: dict[str, Any]) -> None:
        key = (job["jobReference"]["projectId"], job["jobReference"]["jobId"])
        with self._lock:
            self._running[key] = running = _Running()
        self._pool.submit(self._run, job, running, key)

    def _run(self, job: dict[str, Any], running: _Running, key: tuple[str, str]) -> None:
        job["statistics"]["startTime"] = str(now_us() // 1000)
        job["status"] = {"state": "RUNNING"}
        self._save(job)
        try:
            self._meet("before", key, running.cancel)
            running.cancel.check()
            if "query" in job["configuration"]:
                self._run_query(job, running.cancel)
            else:
                self._run_load(job)
            self._meet("after", key, running.cancel)
        except Problem as exc:
            self._fail(job, exc)
        except Exception as exc:  # noqa: BLE001  a reason that no client tries again
            self._fail(job, Problem("notImplemented", f"{type(exc).__name__}: {exc}"))
        finally:
            with self._lock:
                self._running.pop(key, None)
            running.done.set()

    def _meet(self, when: str, key: tuple[str, str], cancel: Cancel) -> None:
        fault = self._faults.take("jobs.run", when, "/".join(key))
        if fault is None:
            return
        if fault.kind == "delay":
            cancel.asked.wait(fault.seconds)
        elif self._act(fault):
            raise Problem(fault.reason, fault.message)

    def _finish(self, job: dict[str, Any]) -> None:
        job["statistics"]["endTime"] = str(now_us() // 1000)
        job["status"]["state"] = "DONE"
        self._save(job)

    def _fail(self, job: dict[str, Any], problem: Problem) -> None:
        if job["status"]["state"] == "DONE":
            return
        job["status"] = {"state": "RUNNING", "errorResult": problem.proto(), "errors": [problem.proto()]}
        self._finish(job)

    def _dry_run(self, job: dict[str, Any]) -> dict[str, Any]:
        if "query" not in job["configuration"]:
            raise Problem("invalid", "Only a query job has a dry run here.")
        analysis = self._analyse(job)
        job["statistics"] |= _statistics(analysis, dry=True)
        job["status"] = {"state": "DONE"}
        del job["jobReference"]["jobId"]
        return job

    def _analyse(self, job: Mapping[str, Any]) -> Analysis:
        return self._queries.analyse(self._text(job))

    def _text(self, job: Mapping[str, Any]) -> QueryText:
        """Return what a query job was sent, once its datasets are known to be where it runs."""
        config = job["configuration"]["query"]
        check_datasets(self._catalog, job)
        if config.get("useLegacySql", True):
            raise Problem("invalid", "Legacy SQL is not among what is kept here; set useLegacySql to false.")
        parameters = config.get("queryParameters") or []
        named = {p["name"]: read_parameter(p) for p in parameters}
        dataset = (config.get("defaultDataset") or {}).get("datasetId")
        project = job["jobReference"]["projectId"]
        return QueryText(config["query"], project, dataset, named)

    def _run_query(self, job: dict[str, Any], cancel: Cancel) -> None:
        config = job["configuration"]["query"]
        transaction = self._queries.analyse_transaction(self._text(job))
        if transaction is not None:
            self._transact(job, transaction, cancel)
            return
        analysis = self._analyse(job)
        job["statistics"] |= _statistics(analysis, dry=False)
        _check_limit(config, analysis.billed_bytes)
        if analysis.kind != "SELECT":
            config.pop("_anonymous", None) and config.pop("destinationTable")
            self._run_other(job, analysis, cancel)
            return
        fields, rows = self._queries.select(analysis, cancel)

        def publish() -> None:
            self._finish(job)

        self._destinations.write(config, fields, rows, "WRITE_EMPTY", publish)

    def _transact(self, job: dict[str, Any], transaction: Sequence[Analysis], cancel: Cancel) -> None:
        config = job["configuration"]["query"]
        config.pop("_anonymous", None) and config.pop("destinationTable")
        billed = sum(analysis.billed_bytes for analysis in transaction)
        job["statistics"] |= {
            "totalBytesProcessed": str(sum(analysis.bytes for analysis in transaction)),
            "numChildJobs": str(len(transaction)),
            "query": {"statementType": "SCRIPT", "totalBytesProcessed": "0", "totalBytesBilled": str(billed)},
        }
        _check_limit(config, billed)
        self._queries.transact(transaction, cancel, lambda: self._finish(job))

    def _run_other(self, job: dict[str, Any], analysis: Analysis, cancel: Cancel) -> None:
        statement, target = analysis.statement, analysis.statement.target
        assert target is not None
        reference = {"projectId": target.project, "datasetId": target.dataset, "tableId": target.name}
        statistics = job["statistics"]["query"]
        if analysis.kind in {"INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE_TABLE"}:

            def publish(changed: Changed) -> None:
                statistics["numDmlAffectedRows"] = str(changed.total)
                statistics["dmlStats"] = {
                    "insertedRowCount": str(changed.inserted),
                    "updatedRowCount": str(changed.updated),
                    "deletedRowCount": str(changed.deleted),
                }
                self._finish(job)

            self._queries.change(analysis, cancel, publish)
            return
        statistics["ddlTargetTable"] = reference
        with self._catalog.transaction():
            if analysis.kind == "CREATE_VIEW":
                self._create_view(job, analysis, reference)
            else:
                self._resources.widen_columns(target, altered_columns(statement))
                statistics["ddlOperationPerformed"] = "ALTER"
            self._finish(job)

    def _create_view(self, job: dict[str, Any], analysis: Analysis, reference: Mapping[str, str]) -> None:
        statement = analysis.statement
        options = ddl_options(statement)
        body = {
            "tableReference": reference,
            "view": {"query": render_view(statement), "useLegacySql": False},
            **({"description": options["description"]} if "description" in options else {}),
        }
        found = self._catalog.get_table(statement.target)
        if found is not None:
            if not statement.tree.args.get("replace"):
                raise duplicate("Table", *reference.values())
            self._catalog.delete_table(found)
        self._resources.insert_table(reference["projectId"], reference["datasetId"], body)
        job["statistics"]["query"]["ddlOperationPerformed"] = "CREATE" if found is None else "REPLACE"

    def _run_load(self, job: dict[str, Any]) -> None:
        config = job["configuration"]["load"]
        if "_upload" not in job:
            raise Problem("invalid", "A load takes an upload here; sourceUris are not among what is kept.")
        check_datasets(self._catalog, job)
        reference = config["destinationTable"]
        key = TableKey(reference["projectId"], reference["datasetId"], reference["tableId"].partition("$")[0])
        path = self._catalog.folder / job["_upload"]
        fields, rows = read_upload(path, config, self._catalog.get_table(key))
        job["statistics"]["load"] = {
            "inputFiles": "1",
            "inputFileBytes": str(path.stat().st_size),
            "outputRows": str(rows.num_rows),
            "outputBytes": str(rows.nbytes),
            "badRecords": "0",
        }
        self._destinations.write(config, fields, rows, "WRITE_APPEND", lambda: self._finish(job))
        path.unlink(missing_ok=True)

    def describe_view(self, project: str, text: str) -> list[dict[str, Any]]:
        """Return a view's columns.

        Raises:
            Problem: ``invalidQuery``; it is no SELECT, or one that can't run.
        """
        analysis = self._queries.analyse(QueryText(text, project, None, {}), needs_filter=False)
        if analysis.kind != "SELECT" or analysis.fields is None:
            raise Problem("invalidQuery", "A view is a SELECT.")
        return analysis.fields


def _check_limit(config: Mapping[str, Any], billed_bytes: int) -> None:
    limit = config.get("maximumBytesBilled")
    if limit is not None and billed_bytes > int(limit):
        raise Problem(
            "bytesBilledLimitExceeded",
            f"Query exceeded limit for bytes billed: {limit}. {billed_bytes} or higher required.",
        )


def job_problem(job: Mapping[str, Any]) -> Problem | None:
    """Return why a job failed, None when it didn't; what answers for the job answers with it."""
    error = job["status"].get("errorResult")
    if error is None:
        return None
    code = HTTP_CODES[error["reason"]]
    return Problem(error["reason"], error["message"], 400 if code == 200 else code)


def result_table(catalog: Catalog, job: Mapping[str, Any]) -> TableEntry | None:
    """Return the table that holds a query job's rows, None for a statement without any."""
    reference = job["configuration"].get("query", {}).get("destinationTable")
    if reference is None:
        return None
    name = reference["tableId"].partition("$")[0]
    return catalog.find_table(TableKey(reference["projectId"], reference["datasetId"], name))


def _shown(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job without what is the server's own."""
    shown = {key: value for key, value in job.items() if key != "_upload"}
    if "query" in shown["configuration"]:
        query = {key: value for key, value in shown["configuration"]["query"].items() if key != "_anonymous"}
        shown["configuration"] = {**shown["configuration"], "query": query}
    return shown


def _statistics(analysis: Analysis, *, dry: bool) -> dict[str, Any]:
    query: dict[str, Any] = {
        "statementType": analysis.kind,
        "totalBytesProcessed": str(analysis.bytes),
        "totalBytesBilled": "0" if dry else str(analysis.billed_bytes),
        "cacheHit": False,
        "totalBytesProcessedAccuracy": "PRECISE",
        "referencedTables": [
            {"projectId": key.project, "datasetId": key.dataset, "tableId": key.name}
            for key in analysis.referenced
        ],
    }
    if analysis.fields is not None:
        query["schema"] = {"fields": analysis.fields}
    return {"totalBytesProcessed": str(analysis.bytes), "query": query}
