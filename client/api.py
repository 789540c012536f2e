"""Refeed's HTTP API as calls: JSON in and out, its problems as errors."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self
from urllib.parse import quote

import httpx

from client.jobs import JobCalls, action_content
from client.sources import SourceCalls
from client.topics import BackupCalls
from model.errors import ApiUnavailableError, RequestRefusedError

# A plan runs its query for a minute at most; every other answer comes before that.
_TIMEOUT_SECONDS: Final = 75.0
# A watch says every 15 seconds that it lives.
_SILENCE_SECONDS: Final = 45.0
# The API closes a connection that was idle for five seconds; one that is older must not be tried.
_LIMITS: Final = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=3.0)
_YAML: Final = {"Content-Type": "application/yaml"}


class RefeedApi:
    """The API at ``url``; ``key`` is sent as a bearer token.

    Raises:
        ApiUnavailableError: any call, when nobody answers.
        RequestRefusedError: any call that the API answers with a problem; ``details`` is that problem.
    """

    def __init__(self, url: str, key: str | None = None, *, client: httpx.Client | None = None) -> None:
        self.url = url.rstrip("/")
        self._client = client or httpx.Client(base_url=self.url, timeout=_TIMEOUT_SECONDS, limits=_LIMITS)
        # As bytes: of a key with letters beyond ASCII the API says that it does not know it.
        self._headers = {} if key is None else {b"Authorization": f"Bearer {key}".encode()}
        calls = self._call, self._request, self._stream_events, self._stream_log
        self.backfills = JobCalls("backfills", *calls)
        self.merges = JobCalls("merges", *calls)
        self.compactions = JobCalls("compactions", *calls)
        self.sources = SourceCalls(self._call, self._request)
        self.backups = BackupCalls(self._call)

    def as_caller(self, key: str | None) -> "RefeedApi":
        """Return the API for another caller over the same connections; closing one closes both."""
        return RefeedApi(self.url, key, client=self._client)

    def close(self) -> None:
        """Close every connection."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_ready(self) -> bool:
        """Say whether it takes requests."""
        try:
            return self._client.get("/readyz", timeout=2).is_success
        except httpx.TransportError:
            return False

    def read_sign_in_methods(self) -> dict[str, Any]:
        """Return whether people sign in with an identity provider, and its issuer."""
        return self._call("GET", "/sign-ins")

    def start_sign_in(self) -> dict[str, Any]:
        """Start a sign-in with the identity provider."""
        return self._call("POST", "/sign-ins")

    def complete_sign_in(self, attempt: str, answer: Mapping[str, str]) -> dict[str, Any]:
        """Open a session with what the provider sent back, and return it with its token."""
        return self._call("POST", "/sign-ins:complete", json={"attempt": attempt, **answer})

    def open_session(self) -> dict[str, Any]:
        """Open a session with the caller's key, and return it with its token."""
        return self._call("POST", "/sessions")

    def read_session(self) -> dict[str, Any]:
        """Return who calls and what they may do."""
        return self._call("GET", "/sessions/current")

    def end_session(self) -> dict[str, Any]:
        """End the session that this is called with."""
        return self._call("DELETE", "/sessions/current")

    def list_releases(self) -> dict[str, Any]:
        """Return the releases that streams can be of, and the agents that have them."""
        return self._call("GET", "/releases")

    def check_query(self, query: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the gate says of a query; nothing is run."""
        return self._call("POST", "/queries:check", json={"query": query, "parameters": parameters})

    def plan_backfill(
        self, request: Mapping[str, Any], *, exact: bool = False, originals: bool = False
    ) -> dict[str, Any]:
        """Return what a backfill would do; on BigQuery ``exact`` runs the query to know.

        With ``originals`` each sample has the archived message beside it, for callers with messages.read.
        """
        params = {name: "true" for name, is_wanted in (("exact", exact), ("originals", originals)) if is_wanted}
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

    def read_volumes(
        self, *, step: str, start: str | None = None, end: str | None = None, topics: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Return messages and payload bytes of every topic, or of ``topics``, step by step."""
        wanted = {"step": step, "from": start, "to": end, "topic": list(topics) or None}
        params = {name: value for name, value in wanted.items() if value is not None}
        return self._call("GET", "/volumes", params=params)

    def list_messages(self, topic: str, **wanted: Any) -> dict[str, Any]:
        """Return a page of a topic's archived messages; ``wanted`` are the API's parameters, None for none."""
        return self._call("GET", "/messages", params=_message_params(topic, wanted))

    async def search_messages(self, topic: str, **wanted: Any) -> dict[str, Any]:
        """Return what :meth:`list_messages` does; cancelling the call ends the query.

        It has a connection of its own, whose end the API notices.
        """
        # Reading the system's certificates takes 20 ms of the event loop; without TLS there are none to verify.
        verify = self.url.startswith("https:")
        try:
            async with httpx.AsyncClient(
                base_url=self.url, timeout=_TIMEOUT_SECONDS, headers=self._headers, verify=verify
            ) as client:
                response = await client.get("/messages", params=_message_params(topic, wanted))
        except (httpx.TransportError, httpx.InvalidURL) as exc:
            raise self._unavailable(exc) from exc
        return _body_of(response)

    def download_message(self, topic: str, message_id: str, **window: str) -> bytes:
        """Return a message's payload as the archive has it; ``window`` is ``from`` and ``to`` of its ingestion."""
        path = f"/messages/{quote(message_id, safe='')}/data"
        return self._request("GET", path, params={"topic": topic, **window}).content

    def read_status(self) -> dict[str, Any]:
        """Return everything that runs, waits or is wrong."""
        return self._call("GET", "/status")

    def list_changes(self, since: str | None = None, *, page_size: int = 50) -> dict[str, Any]:
        """Return what changed since a time, a day ago without one, newest first."""
        params = {"page_size": str(page_size), **({} if since is None else {"since": since})}
        return self._call("GET", "/changes", params=params)

    def list_merge_audits(self, source: str | None = None, since: str | None = None) -> dict[str, Any]:
        """Return how each source, or one, fared in each merge that ended since a time, newest first."""
        given = {"source": source, "since": since}
        params = {name: value for name, value in given.items() if value is not None}
        return self._call("GET", "/merges:audits", params=params)

    def read_inbox(self) -> dict[str, Any]:
        """Return what waits for a person."""
        return self._call("GET", "/inbox")

    def count_dead_letters(self, start: str | None = None) -> dict[str, Any]:
        """Return the pipeline's dead letters by source and reason, since ``start`` or for 30 days."""
        return self._call("GET", "/dead-letters", params={"from": start} if start else {})

    def list_streams(self) -> dict[str, Any]:
        """Return every stream, with how it last was."""
        return self._call("GET", "/streams")

    def list_stream_histories(self, over: str, name: str | None = None) -> dict[str, Any]:
        """Return the rate, lag and backlog of every stream, or of one, over the last "hour" or "day"."""
        return self._call(
            "GET", "/streams:history", params={"over": over, **({} if name is None else {"name": name})}
        )

    def launch_stream(self, request: Mapping[str, Any], *, idempotency_key: str) -> dict[str, Any]:
        """Launch a stream and return it; the key makes sending it twice harmless."""
        return self._call("POST", "/streams", json=request, headers={"Idempotency-Key": idempotency_key})

    def read_stream(self, name: str) -> dict[str, Any]:
        """Return a stream that was launched."""
        return self._call("GET", _stream_path(name))

    def act_on_stream(
        self, name: str, verb: str, body: Mapping[str, Any] | None = None, *, etag: str | None = None
    ) -> dict[str, Any]:
        """Drain, cancel or roll back a stream; with ``etag`` only if it is still as it was read."""
        return self._call("POST", f"{_stream_path(name)}:{verb}", **action_content(body, etag))

    def change_stream(self, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change bounds and pace of a stream, and return it."""
        return self._call("PATCH", _stream_path(name), json=changes)

    def check_stream(self, name: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Return every reason against an update of a stream, and whether there is a way back."""
        return self._call("POST", f"{_stream_path(name)}:check", json=wanted)

    def list_stream_events(self, name: str, *, after: int = 0) -> dict[str, Any]:
        """Return a stream's history behind line number ``after``."""
        return self._call("GET", f"{_stream_path(name)}/events", params={"after": str(after)})

    def read_stream_log(self, name: str, *, tail_bytes: int) -> str:
        """Return the end of a stream's log, or which machine has it."""
        return "".join(self._stream_log(f"{_stream_path(name)}/logs", tail_bytes=tail_bytes, follow=False))

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

    def list_manifests(self) -> dict[str, Any]:
        """Return all manifests, and the files of those that come by upload."""
        return self._call("GET", "/manifests")

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

    def list_rollouts(self) -> list[dict[str, Any]]:
        """Return rollouts, newest first."""
        found: list[dict[str, Any]] = self._call("GET", "/rollouts")["rollouts"]
        return found

    def read_rollout(self, rollout_id: str) -> dict[str, Any]:
        """Return a rollout with its steps."""
        return self._call("GET", f"/rollouts/{quote(rollout_id, safe='')}")

    def act_on_rollout(self, rollout_id: str, verb: str) -> dict[str, Any]:
        """Reverse or cancel a rollout; return the one that reverses it, or the one that is cancelled."""
        return self._call("POST", f"/rollouts/{quote(rollout_id, safe='')}:{verb}")

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

    def list_approvals(self, *, state: str | None = None, page_size: int) -> dict[str, Any]:
        """Return the newest actions that wait for a second person or did, or those in one state."""
        params = {"page_size": str(page_size)} | ({} if state is None else {"state": state})
        return self._call("GET", "/approvals", params=params)

    def read_approval(self, approval: str) -> dict[str, Any]:
        """Return an action that waits for a second person, or what became of it."""
        return self._call("GET", f"/approvals/{quote(approval, safe='')}")

    def decide_approval(self, approval: str, verb: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Approve or reject an action, and return what became of it."""
        content = {} if body is None else {"json": body}
        return self._call("POST", f"/approvals/{quote(approval, safe='')}:{verb}", **content)

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
        headers = {**self._headers, b"Last-Event-ID": str(after).encode(), b"Accept": b"text/event-stream"}
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
            log = self._client.stream("GET", path, params=params, timeout=timeout, headers=self._headers)
            with log as response:
                if not response.is_success:
                    response.read()
                    raise _refusal(response)
                yield from response.iter_text()
        except (httpx.TransportError, httpx.InvalidURL) as exc:
            raise self._unavailable(exc) from exc

    def _call(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        return _body_of(self._request(method, path, **arguments))

    def _request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        given = {name.encode(): value.encode() for name, value in arguments.pop("headers", {}).items()}
        try:
            response = self._client.request(method, path, headers={**self._headers, **given}, **arguments)
        except (httpx.TransportError, httpx.InvalidURL) as exc:
            raise self._unavailable(exc) from exc
        except ValueError as exc:
            # JSON has neither NaN nor infinity: the request can't be written.
            said = f"The request is no JSON: {exc}."
            raise RequestRefusedError(said, code="request_invalid", status=422, detail=said) from exc
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


def _message_params(topic: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    return {"topic": topic, **{name: value for name, value in wanted.items() if value is not None}}


def _stream_path(name: str) -> str:
    return f"/streams/{quote(name, safe='')}"


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


def _body_of(response: httpx.Response) -> dict[str, Any]:
    body = _json_of(response)
    if response.is_success and isinstance(body, dict):
        return body
    raise _refusal(response)


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
