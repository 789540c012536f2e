"""What the API does with jobs: created, listed, steered, and watched to their end."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from client.connection import ApiConnection, path_of
from model.errors import ApiUnavailableError
from model.job import JobState

_POLL_SECONDS: Final = 0.5
# An API that is restarted is back by then; jobs go on meanwhile.
_PATIENCE_SECONDS: Final = 60.0

# A parameter of a list: one value, several, or none.
Filter = str | Sequence[str] | None


class JobCalls:
    """What the API does with jobs of every kind; see :class:`client.api.RefeedApi`."""

    def __init__(self, api: ApiConnection) -> None:
        self._api = api

    def _job(self, job_id: str, rest: str = "") -> str:
        return path_of("jobs", job_id, rest)

    def read(self, job_id: str) -> dict[str, Any]:
        """Return one job."""
        return self._api.call("GET", self._job(job_id))

    def list(
        self, *, page_size: int, page_token: str | None = None, order_by: str | None = None, **filters: Filter
    ) -> dict[str, Any]:
        """Return a page of jobs, the newest first; ``filters`` are the list's other parameters, such as kind."""
        wanted = {"page_token": page_token, "order_by": order_by, **filters}
        params = {"page_size": str(page_size)} | {name: value for name, value in wanted.items() if value}
        return self._api.call("GET", "/jobs", params=params)

    def change(self, job_id: str, changes: Mapping[str, Any], *, etag: str | None = None) -> dict[str, Any]:
        """Change what may change of a job while it lives, and return it; with ``etag`` as :meth:`act`."""
        return self._api.call("PATCH", self._job(job_id), json=changes, etag=etag)

    def act(
        self, job_id: str, verb: str, body: Mapping[str, Any] | None = None, *, etag: str | None = None
    ) -> dict[str, Any]:
        """Do an action by its verb, and return the job; with ``etag`` only if it is still as it was read."""
        return self._api.call("POST", self._job(job_id, f":{verb}"), json=body, etag=etag)

    def read_part(self, job_id: str, part: str, **params: str | None) -> dict[str, Any]:
        """Return what is kept of a job beside its state, such as its figures."""
        return self._api.call("GET", self._job(job_id, f"/{part}"), params=params)

    def read_log(self, job_id: str, *, tail_lines: int, follow: bool) -> Iterator[str]:
        """Yield the end of a job's log and, to follow it, what is written from now on until it ends."""
        return self._api.stream_log(self._job(job_id, "/logs"), tail_lines=tail_lines, follow=follow)

    def watch(self, job_id: str) -> Iterator[dict[str, Any]]:
        """Yield the job whenever something of it has changed, and at last at its end.

        Events are taken as they come; without them the job is read twice a second. An API that is restarted in
        between is waited for, for a minute.
        """
        path = self._job(job_id)
        found = self._api.call("GET", path)
        yield found
        seen, events_fail = 0, 0
        lost_at: float | None = None
        while not JobState(found["state"]).is_final:
            try:
                # Events that broke off twice without a word are not to be had here.
                if events_fail <= 1:
                    events_fail += 1
                    for number, job in self._api.stream_events(path, seen):
                        seen, found, events_fail, lost_at = number, job, 0, None
                        yield found
                else:
                    time.sleep(_POLL_SECONDS)
                    found, lost_at = self._api.call("GET", path), None
                    yield found
            except ApiUnavailableError:
                lost_at = lost_at or time.monotonic()
                if time.monotonic() - lost_at > _PATIENCE_SECONDS:
                    raise
                events_fail = 0
                time.sleep(_POLL_SECONDS)


class KindCalls:
    """What the API does with jobs of the kind that is at ``/COLLECTION`` alone."""

    def __init__(self, collection: str, api: ApiConnection) -> None:
        self._collection = collection
        self._api = api

    def create(self, request: Mapping[str, Any], *, idempotency_key: str | None = None) -> dict[str, Any]:
        """Create a job and return it; a key makes sending it twice harmless."""
        return self._api.call(
            "POST", f"/{self._collection}", json=request, idempotency_key=idempotency_key or None
        )

    def read(self, job_id: str) -> dict[str, Any]:
        """Return one job, and none of another kind."""
        return self._api.call("GET", path_of(self._collection, job_id))
