"""The REST calls on jobs, their rows, and uploads."""

from collections.abc import Mapping
from typing import Any, Final

from tests.standin.jobs import Jobs
from tests.standin.loads import Uploads
from tests.standin.problems import Problem
from tests.standin.rest import Answer, Call, Routes
from tests.standin.rows import Rows

_PREFIX: Final = "/bigquery/v2/projects/{project}"
_UPLOAD: Final = "/upload/bigquery/v2/projects/{project}/jobs"


def add_job_routes(routes: Routes, jobs: Jobs, rows: Rows, uploads: Uploads) -> None:
    one, table = f"{_PREFIX}/jobs/{{job}}", f"{_PREFIX}/datasets/{{dataset}}/tables/{{table}}"

    def job(call: Call) -> str:
        return call.path["job"]

    def place(call: Call) -> str | None:
        return call.query.get("location")

    def list_jobs(call: Call) -> Mapping[str, Any]:
        size = int(call.query.get("maxResults") or 1000)
        return jobs.list_jobs(call.project, size, call.query.get("pageToken", ""))

    routes.add("POST", f"{_PREFIX}/jobs", "jobs.insert", lambda c: jobs.insert(c.project, c.body))
    routes.add("GET", f"{_PREFIX}/jobs", "jobs.list", list_jobs)
    routes.add("GET", one, "jobs.get", lambda c: jobs.get(c.project, job(c), place(c)))
    routes.add("POST", f"{one}/cancel", "jobs.cancel", lambda c: jobs.cancel(c.project, job(c), place(c)))
    routes.add("POST", f"{_PREFIX}/queries", "jobs.query", lambda c: rows.run_query(c.project, c.body))
    routes.add(
        "GET",
        f"{_PREFIX}/queries/{{job}}",
        "jobs.getQueryResults",
        lambda c: rows.query_results(c.project, job(c), c.query),
    )
    routes.add("GET", f"{table}/data", "tabledata.list", lambda c: rows.list_rows(c.table, c.query))
    routes.add("POST", f"{table}/insertAll", "tabledata.insertAll", lambda c: rows.insert_all(c.table, c.body))
    _add_upload_routes(routes, jobs, uploads)


def _add_upload_routes(routes: Routes, jobs: Jobs, uploads: Uploads) -> None:
    def begin(call: Call) -> Mapping[str, Any] | Answer:
        kind = call.query.get("uploadType")
        if kind != "resumable":
            raise Problem("invalid", f"Invalid upload type {kind!r}.")
        upload = uploads.start(call.body)
        host = call.headers.get("host", "")
        path = _UPLOAD.replace("{project}", call.project)
        location = f"http://{host}{path}?uploadType=resumable&upload_id={upload}"
        return Answer(200, {}, {"Location": location, "X-GUploader-UploadID": upload})

    def go_on(call: Call) -> Mapping[str, Any] | Answer:
        upload = call.query.get("upload_id", "")
        metadata = uploads.metadata(upload)
        size, complete = uploads.take(upload, call.headers.get("content-range", ""), call.raw)
        if not complete:
            return Answer(308, None, {"Range": f"bytes=0-{size - 1}"} if size else {})
        return jobs.insert(call.project, metadata, uploads.path(upload))

    routes.add("POST", _UPLOAD, "jobs.upload", begin)
    routes.add("PUT", _UPLOAD, "jobs.upload", go_on)
