"""Refeed's HTTP API from the terminal: JSON in and out, its problems as errors."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Self
from urllib.parse import quote, urlsplit

import httpx

from cli.running import find_running
from connectors.gcp_kms.decrypt import decrypt
from model.errors import ApiUnavailableError, RequestRefusedError, SettingsError
from model.job import JobState
from model.secret import is_reference, read_secret

DEFAULT_API_URL: Final = "http://127.0.0.1:8080"
# A plan runs its query for a minute at most; every other answer comes before that.
_TIMEOUT_SECONDS: Final = 75.0
# A watch says every 15 seconds that it lives.
_SILENCE_SECONDS: Final = 45.0
_POLL_SECONDS: Final = 0.5
# An API that is restarted is back by then; jobs go on meanwhile.
_PATIENCE_SECONDS: Final = 60.0


_YAML: Final = {"Content-Type": "application/yaml"}

# A parameter of a list: one value, several, or none.
Filter = str | Sequence[str] | None


class RefeedApi:
    """The API at ``url``; ``key`` is sent as a bearer token.

    Raises:
        ApiUnavailableError: any call, when nobody answers.
        RequestRefusedError: any call that the API answers with a problem; ``details`` is that problem.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url.rstrip("/")
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._client = httpx.Client(base_url=self.url, timeout=_TIMEOUT_SECONDS, headers=headers)
        calls = self._call, self._stream_events, self._stream_log
        self.backfills = JobCalls("backfills", *calls)
        self.merges = JobCalls("merges", *calls)

    @classmethod
    def from_environment(cls) -> Self:
        """Return the API at REFEED_API_URL, called with REFEED_API_KEY if there is one.

        Without REFEED_API_URL it is that of the ``refeed up`` that runs on this home, else the usual one.

        Raises:
            SettingsError: REFEED_API_URL is no address, or REFEED_API_KEY a reference that leads to no key.
        """
        key = (os.environ.get("REFEED_API_KEY") or "").strip()
        if is_reference(key):
            try:
                key = read_secret(key, os.environ, decrypt)
            except ValueError as exc:
                raise SettingsError(f"REFEED_API_KEY: {exc}") from exc
        return cls(_find_url(), key or None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def is_ready(self) -> bool:
        """Say whether it takes requests."""
        try:
            return self._client.get("/readyz", timeout=2).is_success
        except httpx.TransportError:
            return False

    def plan_backfill(self, request: Mapping[str, Any], *, exact: bool = False) -> dict[str, Any]:
        """Return what a backfill would do; on BigQuery ``exact`` runs the query to know."""
        params = {"exact": "true"} if exact else {}
        return self._call("POST", "/backfills:plan", json=request, params=params)

    def list_topics(self) -> dict[str, Any]:
        """Return every topic, with whether and how well it is backed up."""
        return self._call("GET", "/topics")

    def read_histogram(
        self, topic: str, *, step: str, start: str | None = None, end: str | None = None
    ) -> dict[str, Any]:
        """Return how many messages of a topic came in, step by step; times are RFC 3339."""
        wanted = {"step": step, "from": start, "to": end}
        params = {name: value for name, value in wanted.items() if value is not None}
        return self._call("GET", f"/topics/{quote(topic, safe='')}/histogram", params=params)

    def list_messages(self, topic: str, **wanted: Any) -> dict[str, Any]:
        """Return a page of a topic's archived messages; ``wanted`` are the API's parameters, None for none."""
        params = {name: value for name, value in wanted.items() if value is not None}
        return self._call("GET", "/messages", params={"topic": topic, **params})

    def read_status(self) -> dict[str, Any]:
        """Return everything that runs, waits or is wrong."""
        return self._call("GET", "/status")

    def read_inbox(self) -> dict[str, Any]:
        """Return what waits for a person."""
        return self._call("GET", "/inbox")

    def count_dead_letters(self, start: str | None = None) -> dict[str, Any]:
        """Return the pipeline's dead letters by source and reason, since ``start`` or for 30 days."""
        return self._call("GET", "/dead-letters", params={"from": start} if start else {})

    def list_streams(self) -> dict[str, Any]:
        """Return every stream, with how it last was."""
        return self._call("GET", "/streams")

    def launch_stream(self, request: Mapping[str, Any], *, idempotency_key: str) -> dict[str, Any]:
        """Launch a stream and return it; the key makes sending it twice harmless."""
        return self._call("POST", "/streams", json=request, headers={"Idempotency-Key": idempotency_key})

    def read_stream(self, name: str) -> dict[str, Any]:
        """Return a stream that was launched."""
        return self._call("GET", _stream_path(name))

    def act_on_stream(self, name: str, verb: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Drain or cancel a stream, and return it."""
        content = {} if body is None else {"json": body}
        return self._call("POST", f"{_stream_path(name)}:{verb}", **content)

    def change_stream(self, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change bounds and pace of a stream, and return it."""
        return self._call("PATCH", _stream_path(name), json=changes)

    def check_stream(self, name: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Return every reason against an update of a stream, and whether there is a way back."""
        return self._call("POST", f"{_stream_path(name)}:check", json=wanted)

    def list_stream_events(self, name: str, *, after: int = 0) -> dict[str, Any]:
        """Return a stream's history behind line number ``after``."""
        return self._call("GET", f"{_stream_path(name)}/events", params={"after": str(after)})

    def create_snapshot(self, name: str, *, with_source: bool, idempotency_key: str) -> dict[str, Any]:
        """Ask for a snapshot of a stream and return it; the key makes sending it twice harmless."""
        headers = {"Idempotency-Key": idempotency_key}
        return self._call(
            "POST", f"{_stream_path(name)}:snapshot", json={"with_source": with_source}, headers=headers
        )

    def list_snapshots(self, *, stream: str | None = None) -> list[dict[str, Any]]:
        """Return every snapshot, or those of one stream, newest first."""
        params = {} if stream is None else {"stream": stream}
        found: list[dict[str, Any]] = []
        while True:
            page = self._call("GET", "/snapshots", params=params)
            found += page["snapshots"]
            if page["next_page_token"] is None:
                return found
            params["page_token"] = page["next_page_token"]

    def read_snapshot(self, snapshot: str) -> dict[str, Any]:
        """Return a snapshot."""
        return self._call("GET", f"/snapshots/{quote(snapshot, safe='')}")

    def delete_snapshot(self, snapshot: str) -> dict[str, Any]:
        """Ask for a snapshot to be deleted, and return it."""
        return self._call("DELETE", f"/snapshots/{quote(snapshot, safe='')}")

    def plan_manifest(self, name: str, content: bytes | None) -> dict[str, Any]:
        """Return what applying a manifest would change; without content, what removing it would."""
        params = {"action": "remove" if content is None else "apply"}
        return self._call("POST", f"{_manifest_path(name)}:plan", content=content, params=params, headers=_YAML)

    def apply_manifest(self, name: str, content: bytes, *, plan: str | None = None) -> dict[str, Any]:
        """Apply a manifest, and return it with what has changed; ``plan`` is the hash that it must have."""
        params = {} if plan is None else {"plan": plan}
        return self._call("PUT", _manifest_path(name), content=content, params=params, headers=_YAML)

    def remove_manifest(self, name: str, *, plan: str | None = None) -> dict[str, Any]:
        """Remove a manifest, and return it as it was."""
        return self._call("DELETE", _manifest_path(name), params={} if plan is None else {"plan": plan})

    def list_schedules(self) -> list[dict[str, Any]]:
        """Return all schedules, with their next slots and their last runs."""
        found: list[dict[str, Any]] = self._call("GET", "/schedules")["schedules"]
        return found

    def read_schedule(self, name: str) -> dict[str, Any]:
        """Return a schedule, with its next slots and its last runs."""
        return self._call("GET", f"/schedules/{quote(name, safe='')}")

    def act_on_schedule(self, name: str, verb: str) -> dict[str, Any]:
        """Pause or resume a schedule, and return it."""
        return self._call("POST", f"/schedules/{quote(name, safe='')}:{verb}")

    def list_rollbacks(self, name: str) -> dict[str, Any]:
        """Return every time that a stream was put back to a snapshot."""
        return self._call("GET", f"{_stream_path(name)}/rollbacks")

    def update_stream(self, name: str, request: Mapping[str, Any], *, idempotency_key: str) -> dict[str, Any]:
        """Ask for an update of a stream and return it; the key makes sending it twice harmless."""
        headers = {"Idempotency-Key": idempotency_key}
        return self._call("POST", f"{_stream_path(name)}:update", json=request, headers=headers)

    def list_updates(self, name: str) -> dict[str, Any]:
        """Return every update of a stream, newest first."""
        return self._call("GET", f"{_stream_path(name)}/updates")

    def read_update(self, update: str) -> dict[str, Any]:
        """Return an update."""
        return self._call("GET", f"/updates/{quote(update, safe='')}")

    def decide_update(self, update: str, verb: str) -> dict[str, Any]:
        """Approve an update, or take it back, and return it."""
        return self._call("POST", f"/updates/{quote(update, safe='')}:{verb}")

    def list_templates(self) -> dict[str, Any]:
        """Return all templates, also those with faults."""
        return self._call("GET", "/templates")

    def read_template(self, name: str) -> dict[str, Any]:
        """Return one template."""
        return self._call("GET", f"/templates/{quote(name, safe='')}")

    def launch_template(self, name: str, parameters: Mapping[str, Any], *, idempotency_key: str) -> dict[str, Any]:
        """Launch a template and return what it made; the key makes sending it twice harmless."""
        headers = {"Idempotency-Key": idempotency_key}
        path = f"/templates/{quote(name, safe='')}:launch"
        return self._call("POST", path, json={"parameters": parameters}, headers=headers)

    def _stream_events(self, path: str, after: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield what the API says as it happens, with the number of its latest line of history."""
        timeout = httpx.Timeout(_TIMEOUT_SECONDS, read=_SILENCE_SECONDS)
        headers = {"Last-Event-ID": str(after), "Accept": "text/event-stream"}
        try:
            with self._client.stream("GET", f"{path}:watch", headers=headers, timeout=timeout) as response:
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    return
                yield from _read_events(response.iter_lines())
        except httpx.ReadTimeout:
            # Silent for long: something in between holds events back.
            return
        except (httpx.TransportError, httpx.InvalidURL) as exc:
            raise self._unavailable(exc) from exc

    def _stream_log(self, path: str, *, tail_bytes: int, follow: bool) -> Iterator[str]:
        params = {"tail": str(tail_bytes), "follow": str(follow).lower()}
        timeout = httpx.Timeout(_TIMEOUT_SECONDS, read=None if follow else _TIMEOUT_SECONDS)
        try:
            with self._client.stream("GET", path, params=params, timeout=timeout) as response:
                if not response.is_success:
                    response.read()
                    raise _refusal(response)
                yield from response.iter_text()
        except (httpx.TransportError, httpx.InvalidURL) as exc:
            raise self._unavailable(exc) from exc

    def _call(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        response = self._request(method, path, **arguments)
        body = _json_of(response)
        if isinstance(body, dict):
            return body
        raise _refusal(response)

    def _request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            response = self._client.request(method, path, **arguments)
        except (httpx.TransportError, httpx.InvalidURL) as exc:
            raise self._unavailable(exc) from exc
        if not response.is_success:
            raise _refusal(response)
        return response

    def _unavailable(self, exc: Exception) -> ApiUnavailableError:
        return ApiUnavailableError(
            f"Refeed's API at {self.url} does not answer ({exc}); start it with 'refeed up' or 'refeed api', "
            "or set REFEED_API_URL.",
            url=self.url,
        )


def _manifest_path(name: str) -> str:
    return f"/manifests/{quote(name, safe='')}"


def _stream_path(name: str) -> str:
    return f"/streams/{quote(name, safe='')}"


class JobCalls:
    """What the API does with jobs of one kind, which are at ``/COLLECTION``; see :class:`RefeedApi`."""

    def __init__(
        self,
        collection: str,
        call: Callable[..., dict[str, Any]],
        stream_events: Callable[[str, int], Iterator[tuple[int, dict[str, Any]]]],
        stream_log: Callable[..., Iterator[str]],
    ) -> None:
        self._path = f"/{collection}"
        self._call = call
        self._stream_events = stream_events
        self._stream_log = stream_log

    def create(self, request: Mapping[str, Any], *, idempotency_key: str | None = None) -> dict[str, Any]:
        """Create a job and return it; a key makes sending it twice harmless."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self._call("POST", self._path, json=request, headers=headers)

    def read(self, job_id: str) -> dict[str, Any]:
        """Return one job."""
        return self._call("GET", f"{self._path}/{job_id}")

    def list(
        self, *, page_size: int, page_token: str | None = None, order_by: str | None = None, **filters: Filter
    ) -> dict[str, Any]:
        """Return a page of jobs, the newest first; ``filters`` are the list's other parameters."""
        wanted = {"page_token": page_token, "order_by": order_by, **filters}
        params = {"page_size": str(page_size)} | {name: value for name, value in wanted.items() if value}
        return self._call("GET", self._path, params=params)

    def change(self, job_id: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change what may change of a job while it lives, and return it."""
        return self._call("PATCH", f"{self._path}/{job_id}", json=changes)

    def act(self, job_id: str, verb: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Do what a verb of the API says, such as cancel, and return the job."""
        content = {} if body is None else {"json": body}
        return self._call("POST", f"{self._path}/{job_id}:{verb}", **content)

    def read_part(self, job_id: str, part: str, **params: str) -> dict[str, Any]:
        """Return what is kept of a job beside its state, such as its events."""
        return self._call("GET", f"{self._path}/{job_id}/{part}", params=params)

    def read_log(self, job_id: str, *, tail_bytes: int, follow: bool) -> Iterator[str]:
        """Yield the end of a job's log and, to follow it, what is written from now on until it ends."""
        return self._stream_log(f"{self._path}/{job_id}/logs", tail_bytes=tail_bytes, follow=follow)

    def watch(self, job_id: str) -> Iterator[dict[str, Any]]:
        """Yield the job whenever something of it has changed, and at last at its end.

        Events are taken as they come; where they can't be had it is asked twice a second instead. An API that is
        restarted in between is waited for, for a minute.
        """
        path = f"{self._path}/{job_id}"
        found = self._call("GET", path)
        yield found
        seen, events_fail = 0, 0
        lost_at: float | None = None
        while not is_final(found):
            try:
                # Events that broke off twice without a word are not to be had here.
                if events_fail <= 1:
                    events_fail += 1
                    for number, job in self._stream_events(path, seen):
                        seen, found, events_fail, lost_at = number, job, 0, None
                        yield found
                else:
                    time.sleep(_POLL_SECONDS)
                    found, lost_at = self._call("GET", path), None
                    yield found
            except ApiUnavailableError:
                lost_at = lost_at or time.monotonic()
                if time.monotonic() - lost_at > _PATIENCE_SECONDS:
                    raise
                events_fail = 0
                time.sleep(_POLL_SECONDS)


def _find_url() -> str:
    url = (os.environ.get("REFEED_API_URL") or "").strip()
    if not url:
        running = find_running(os.environ)
        return DEFAULT_API_URL if running is None else running.api_url
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        fault = f"REFEED_API_URL={url} is no address"
        # Without a scheme a port may look like one: localhost:8080.
        wanted = f"; write REFEED_API_URL=http://{url}" if "://" not in url else ", such as http://127.0.0.1:8080"
        raise SettingsError(f"{fault}{wanted}", faults=[f"{fault}{wanted}"])
    return url


def is_final(job: Mapping[str, Any]) -> bool:
    """Say whether nothing more happens to the job by itself."""
    return JobState(job["state"]).is_final


def _read_events(lines: Iterator[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the jobs among server-sent events, with the id of each."""
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if fields.get("event") in {"progress", "end"}:
            yield int(fields["id"]), json.loads(fields["data"])
        fields = {}


def _json_of(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return {"detail": response.text[:500]}


def _refusal(response: httpx.Response) -> RequestRefusedError:
    body = _json_of(response)
    problem = body if isinstance(body, dict) else {}
    said = problem.get("detail") or problem.get("title") or f"HTTP {response.status_code}"
    return RequestRefusedError(f"{said} (HTTP {response.status_code})", **problem)
