"""The query jobs of a merge: each step has an id of its own, so that a second merge finds the same job."""

import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from connectors.bigquery.client import Clients
from connectors.bigquery.errors import JOB_ROLE, PATIENCE_SECONDS, call_bigquery
from connectors.bigquery.queries.job import (
    FINGERPRINT,
    NamedParameter,
    QueryJob,
    find_job,
    fingerprint,
    job_error,
    wait_until_done,
)
from connectors.bigquery.table_id import TableId
from model.errors import AuditFailedError, MergeOvertakenError, QueryStoppedError, RefeedError

_USE: Final = "merge"
# A step of one state is looked for under this many ids of its own; one that fails more often gets a random id.
_MAX_RUNS: Final = 20
# What sql/queries/merge.sql says when it ends, and BigQuery of two transactions that change one table.
_OVERTAKEN: Final = re.compile(r"refeed_overtaken|concurrent update", re.IGNORECASE)
_AUDITS: Final = re.compile(r"refeed_audits (\[.*\])", re.DOTALL)


@dataclass(frozen=True, slots=True)
class MergeStep:
    """One query of a merge; ``moving`` are the parameters in which a run that is taken up may differ."""

    name: str
    sql: str
    parameters: Mapping[str, NamedParameter]
    moving: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a step: its job, its number, and the parameters that it was begun with."""

    job_id: str
    number: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MergeJobs:
    """The jobs of the merges of one source; ``state`` is the id of the reporting table's state."""

    clients: Clients
    source: str
    state: str
    maximum_bytes_billed: int

    def run(
        self,
        step: MergeStep,
        *,
        is_usable: Callable[[Run], bool] = lambda _: True,
        prepare: Callable[[str], TableId] | None = None,
        is_shaped: bool = False,
    ) -> Run:
        """Return the run of ``step`` that is there and has not failed, or begin one.

        ``is_usable`` may turn down one that is there. ``prepare`` gets a new run's number and gives the table for
        its rows, which keeps its columns when it ``is_shaped``, and has those of the query when it is not.

        Raises:
            QueryError, WarehouseError: BigQuery refuses it, or can't be reached.
        """
        for number in map(str, range(1, _MAX_RUNS + 1)):
            job = self._get(self._job_id(step, number))
            if job is None:
                return self._start(step, number, prepare, is_shaped=is_shaped)
            is_same = (job.labels or {}).get(FINGERPRINT) == _mark(step)
            if is_same and job.error_result is None and is_usable(found := _run(job, number)):
                return found
        return self._start(step, uuid.uuid4().hex, prepare, is_shaped=is_shaped)

    def columns_of(self, step: MergeStep) -> list[Any]:
        """Return the columns that a step's query gives, by a dry run, as Google's client has them."""
        query = QueryJob(self.clients, step.sql, _USE, step.parameters)
        return list(query.dry_run(f"trying to merge {self.source} ({step.name})").schema)

    def _start(
        self, step: MergeStep, number: str, prepare: Callable[[str], TableId] | None, *, is_shaped: bool
    ) -> Run:
        options: dict[str, Any] = {"maximum_bytes_billed": self.maximum_bytes_billed}
        if prepare is not None:
            # WRITE_TRUNCATE takes the table's policy tags away, WRITE_APPEND keeps them:
            # https://github.com/GoogleCloudPlatform/cloud-foundation-fabric/issues/1532
            disposition = "WRITE_APPEND" if is_shaped else "WRITE_TRUNCATE"
            options |= {"destination": str(prepare(number)), "write_disposition": disposition}
            options["create_disposition"] = "CREATE_NEVER"
        merge = re.sub(r"[^a-z0-9_-]", "_", self.source.lower())[:63]
        job = QueryJob(
            self.clients,
            step.sql,
            _USE,
            step.parameters,
            id=self._job_id(step, number),
            labels={"refeed_merge": merge, FINGERPRINT: _mark(step)},
            options=options,
        ).start(f"starting to merge {self.source} ({step.name})")
        if (job.labels or {}).get(FINGERPRINT) != _mark(step):
            raise MergeOvertakenError(f"Another merge of {self.source} has just begun.")
        return _run(job, number)

    def wait(self, step: MergeStep, run: Run) -> Any:
        """Return the job of a run once it has succeeded.

        Raises:
            AuditFailedError: it is the script, and what it did does not add up; nothing was changed.
                ``details["audits"]`` are its audits.
            MergeOvertakenError: another merge was first; nothing was changed.
            QueryTooLargeError: it would be billed for more than it may.
            WarehouseError, QueryError: it failed otherwise; nothing was changed.
        """
        job = self._get(run.job_id)
        if job is None:
            raise QueryStoppedError(f"BigQuery no longer has the job {run.job_id}.")
        wait_until_done(job, f"asking for {run.job_id}", patience_seconds=PATIENCE_SECONDS)
        if job.error_result is not None:
            raise self._error(job, step)
        return job

    def read(self, step: MergeStep, run: Run) -> list[Any]:
        """Return the rows of a run once it has succeeded; it raises what :meth:`wait` does."""
        job = self.wait(step, run)
        return call_bigquery(
            lambda: list(job.result(retry=None, timeout=PATIENCE_SECONDS)),
            f"reading what {run.job_id} gave",
            role=JOB_ROLE,
        )

    def _error(self, job: Any, step: MergeStep) -> RefeedError:
        message = str(job.error_result.get("message"))
        if failed := _AUDITS.search(message):
            # BigQuery may write more after it, such as the place in the script.
            rows, _ = json.JSONDecoder().raw_decode(failed[1])
            return AuditFailedError(f"The audits of the merge of {self.source} failed.", audits=rows)
        if _OVERTAKEN.search(message):
            return MergeOvertakenError(f"Another merge of {self.source} ended first.")
        return job_error(job, f"The merge of {self.source} failed ({step.name})")

    def _get(self, job_id: str) -> Any | None:
        return find_job(self.clients, job_id, f"asking for {job_id}")

    def _job_id(self, step: MergeStep, number: str) -> str:
        return f"refeed-merge-{self.state}-{step.name}-{number}"


def _run(job: Any, number: str) -> Run:
    return Run(str(job.job_id), number, {given.name: given.value for given in job.query_parameters})


def _mark(step: MergeStep) -> str:
    return fingerprint(step.sql, {name: p for name, p in step.parameters.items() if name not in step.moving})
