"""Refeed's HTTP API as calls: one method for each operation."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx

from client.connection import ApiConnection, path_of
from client.jobs import JobCalls, KindCalls
from model.stream_update import ENDED_UPDATES, UpdateState

_YAML: Final = {"Content-Type": "application/yaml"}


class RefeedApi(ApiConnection):
    """The API's operations; those of jobs are ``jobs``, those of one kind are such as ``backfills.create``."""

    def __init__(self, url: str, key: str | None = None, *, client: httpx.Client | None = None) -> None:
        super().__init__(url, key, client=client)
        self.jobs = JobCalls(self)
        self.backfills = KindCalls("backfills", self)
        self.merges = KindCalls("merges", self)
        self.compactions = KindCalls("compactions", self)

    def read_sign_in_methods(self) -> dict[str, Any]:
        """Return whether people sign in with an identity provider, and its issuer."""
        return self.call("GET", "/sign-ins")

    def start_sign_in(self) -> dict[str, Any]:
        """Start a sign-in with the identity provider."""
        return self.call("POST", "/sign-ins")

    def complete_sign_in(self, attempt: str, answer: Mapping[str, str]) -> dict[str, Any]:
        """Open a session with what the provider sent back, and return it with its token."""
        return self.call("POST", "/sign-ins:complete", json={"attempt": attempt, **answer})

    def open_session(self) -> dict[str, Any]:
        """Open a session with the caller's key, and return it with its token."""
        return self.call("POST", "/sessions")

    def read_session(self) -> dict[str, Any]:
        """Return who calls and what they may do."""
        return self.call("GET", "/sessions/current")

    def end_session(self) -> dict[str, Any]:
        """End the session that this is called with."""
        return self.call("DELETE", "/sessions/current")

    def list_releases(self) -> dict[str, Any]:
        """Return the releases that streams can be of, and the agents that have them."""
        return self.call("GET", "/releases")

    def check_query(self, query: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the gate's verdict on a query; nothing is run."""
        return self.call("POST", "/queries:check", json={"query": query, "parameters": parameters})

    def plan_backfill(
        self, request: Mapping[str, Any], *, exact: bool = False, originals: bool = False
    ) -> dict[str, Any]:
        """Return what a backfill would do; on BigQuery ``exact`` runs the query to know.

        With ``originals`` each sample has the archived message beside it, for callers with messages.read.
        """
        params = {"validate_only": True, "exact": exact or None, "originals": originals or None}
        return self.call("POST", "/backfills", json=request, params=params)

    def read_plan(self, plan_id: str) -> dict[str, Any]:
        """Return a plan that was made, with its request, until it expires."""
        return self.call("GET", path_of("plans", plan_id))

    def list_topics(self) -> dict[str, Any]:
        """Return every topic, with whether and how well it is backed up."""
        return self.call("GET", "/topics")

    def read_histogram(
        self, topic: str, *, step: str, start: str | None = None, end: str | None = None
    ) -> dict[str, Any]:
        """Return how many messages of a topic came in, step by step; times are RFC 3339."""
        params = {"step": step, "from": start, "to": end}
        return self.call("GET", path_of("topics", topic, "/histogram"), params=params)

    def read_volumes(
        self, *, step: str, start: str | None = None, end: str | None = None, topics: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Return messages and payload bytes of every topic, or of ``topics``, step by step."""
        params = {"step": step, "from": start, "to": end, "topic": list(topics) or None}
        return self.call("GET", "/volumes", params=params)

    def list_messages(self, topic: str, **wanted: Any) -> dict[str, Any]:
        """Return a page of a topic's archived messages; ``wanted`` are the API's parameters, None for none."""
        return self.call("GET", "/messages", params={"topic": topic, **wanted})

    async def search_messages(self, topic: str, **wanted: Any) -> dict[str, Any]:
        """Return what :meth:`list_messages` does; cancelling the call ends the query."""
        return await self.call_alone("/messages", {"topic": topic, **wanted})

    def download_message(self, topic: str, message_id: str, **window: str) -> bytes:
        """Return a message's payload as the archive has it; ``window`` is ``from`` and ``to`` of its ingestion."""
        path = path_of("messages", message_id, "/data")
        return self.request("GET", path, params={"topic": topic, **window}).content

    def read_status(self) -> dict[str, Any]:
        """Return everything that runs, waits or is wrong."""
        return self.call("GET", "/status")

    def list_events(
        self,
        subject: str | None = None,
        *,
        since: str | None = None,
        page_size: int = 50,
        page_token: str | None = None,
    ) -> dict[str, Any]:
        """Return who did what and when, newest first: of all objects in the last day, or of ``subject``."""
        given = {"page_size": str(page_size), "since": since, "object": subject, "page_token": page_token}
        return self.call("GET", "/events", params=given)

    def list_merge_audits(self, source: str | None = None, since: str | None = None) -> dict[str, Any]:
        """Return how each source, or one, fared in each merge that ended since a time, newest first."""
        return self.call("GET", "/merges:audits", params={"source": source, "since": since})

    def read_inbox(self) -> dict[str, Any]:
        """Return what waits for a person."""
        return self.call("GET", "/inbox")

    def count_dead_letters(self, start: str | None = None, *, job: str | None = None) -> dict[str, Any]:
        """Return by reason the dead letters of a backfill, or the pipeline's since ``start`` or for 30 days."""
        return self.list_dead_letters(job=job, group_by="reason", **{"from": start or None})

    def list_streams(self) -> dict[str, Any]:
        """Return every stream, with how it last was."""
        return self.call("GET", "/streams")

    def list_stream_histories(self, over: str, name: str | None = None) -> dict[str, Any]:
        """Return the rate, lag and backlog of every stream, or of one, over the last "hour" or "day"."""
        return self.call("GET", "/streams:history", params={"over": over, "name": name})

    def launch_stream(self, request: Mapping[str, Any], *, idempotency_key: str) -> dict[str, Any]:
        """Launch a stream and return it; the key makes sending it twice harmless."""
        return self.call("POST", "/streams", json=request, idempotency_key=idempotency_key)

    def read_stream(self, name: str) -> dict[str, Any]:
        """Return a stream that was launched."""
        return self.call("GET", path_of("streams", name))

    def act_on_stream(
        self, name: str, verb: str, body: Mapping[str, Any] | None = None, *, etag: str | None = None
    ) -> dict[str, Any]:
        """Drain or cancel a stream; with ``etag`` only if it is still as it was read."""
        return self.call("POST", path_of("streams", name, f":{verb}"), json=body, etag=etag)

    def roll_back_stream(
        self, name: str, snapshot: str, *, discard_staged: bool, idempotency_key: str, etag: str | None = None
    ) -> dict[str, Any]:
        """Ask for a stream to be put back to a snapshot; the key makes sending it twice harmless.

        With ``etag`` it is asked for only if the stream is still as it was read.
        """
        path = path_of("streams", name, ":rollback")
        body = {"snapshot": snapshot, "discard_staged": discard_staged}
        return self.call("POST", path, json=body, etag=etag, idempotency_key=idempotency_key)

    def change_stream(self, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change bounds and pace of a stream, and return it."""
        return self.call("PATCH", path_of("streams", name), json=changes)

    def check_stream(self, name: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Return every reason against an update of a stream, and whether there is a way back."""
        return self.call("POST", path_of("streams", name, ":update"), json=wanted, params={"validate_only": True})

    def read_stream_log(self, name: str, *, tail_lines: int) -> str:
        """Return the end of a stream's log, or which machine has it."""
        return "".join(self.stream_log(path_of("streams", name, "/logs"), tail_lines=tail_lines, follow=False))

    def create_snapshot(self, name: str, *, with_source: bool, idempotency_key: str) -> dict[str, Any]:
        """Ask for a snapshot of a stream and return it; the key makes sending it twice harmless."""
        path = path_of("streams", name, ":snapshot")
        return self.call("POST", path, json={"with_source": with_source}, idempotency_key=idempotency_key)

    def list_snapshots(self, *, stream: str | None = None) -> list[dict[str, Any]]:
        """Return every snapshot, or those of one stream, newest first."""
        found: list[dict[str, Any]] = []
        after: str | None = None
        while True:
            page = self.call("GET", "/snapshots", params={"stream": stream, "page_token": after})
            found += page["snapshots"]
            after = page["next_page_token"]
            if after is None:
                return found

    def read_snapshot(self, snapshot: str) -> dict[str, Any]:
        """Return a snapshot."""
        return self.call("GET", path_of("snapshots", snapshot))

    def delete_snapshot(self, snapshot: str) -> dict[str, Any]:
        """Ask for a snapshot to be deleted, and return it."""
        return self.call("DELETE", path_of("snapshots", snapshot))

    def list_manifests(self) -> dict[str, Any]:
        """Return all manifests, and the files of those that come by upload."""
        return self.call("GET", "/manifests")

    def read_manifest(self, name: str) -> dict[str, Any]:
        """Return one manifest as it was applied."""
        return self.call("GET", path_of("manifests", name))

    def apply_manifests(
        self, content: bytes, *, validate_only: bool = False, prune: bool = False, plan: str | None = None
    ) -> dict[str, Any]:
        """Apply all manifests of a YAML text or none, and return the changes; ``plan`` is their expected hash."""
        wanted = {"validate_only": validate_only or None, "prune": prune or None, "plan": plan}
        return self.call("POST", "/manifests:apply", content=content, params=wanted, headers=_YAML)

    def remove_manifest(self, name: str, *, etag: str) -> dict[str, Any]:
        """Remove a manifest at this version, and return it as it was."""
        return self.call("DELETE", path_of("manifests", name), etag=etag)

    def list_schedules(self) -> list[dict[str, Any]]:
        """Return all schedules, with their next slots and their last runs."""
        found: list[dict[str, Any]] = self.call("GET", "/schedules")["schedules"]
        return found

    def read_schedule(self, name: str) -> dict[str, Any]:
        """Return a schedule, with its next slots and its last runs."""
        return self.call("GET", path_of("schedules", name))

    def act_on_schedule(self, name: str, verb: str) -> dict[str, Any]:
        """Pause or resume a schedule, and return it."""
        return self.call("POST", path_of("schedules", name, f":{verb}"))

    def run_schedule(self, name: str, *, idempotency_key: str) -> dict[str, Any]:
        """Run a schedule's job now, and return the run."""
        return self.call("POST", path_of("schedules", name, ":run"), idempotency_key=idempotency_key)

    def update_stream(
        self, name: str, request: Mapping[str, Any], *, idempotency_key: str, etag: str | None = None
    ) -> dict[str, Any]:
        """Ask for an update of a stream and return it; the key makes sending it twice harmless.

        With ``etag`` it is asked for only if the stream is still as it was read.
        """
        path = path_of("streams", name, ":update")
        return self.call("POST", path, json=request, etag=etag, idempotency_key=idempotency_key)

    def list_stream_jobs(self, stream: str, kind: str) -> list[dict[str, Any]]:
        """Return the updates, or the restores, of a stream, newest first."""
        found: list[dict[str, Any]] = self.jobs.list(page_size=1000, kind=kind, stream=stream)["jobs"]
        return found

    def find_running_update(self, stream: str) -> dict[str, Any] | None:
        """Return the update of a stream that has not ended, if there is one; a stream has one at a time."""
        found = self.jobs.list(page_size=1, kind="update", stream=stream)["jobs"]
        return next((each for each in found if UpdateState(each["state"]) not in ENDED_UPDATES), None)

    def launch_template(self, name: str, parameters: Mapping[str, Any], *, idempotency_key: str) -> dict[str, Any]:
        """Launch a template and return what it made; the key makes sending it twice harmless."""
        path = path_of("manifests", name, ":launch")
        return self.call("POST", path, json={"parameters": parameters}, idempotency_key=idempotency_key)

    def list_sources(self) -> dict[str, Any]:
        """Return every source: topic, staging and reporting, with what went from one to the next."""
        return self.call("GET", "/sources")

    def read_source(self, name: str) -> dict[str, Any]:
        """Return one source, with all findings that its stream has counted."""
        return self.call("GET", path_of("sources", name))

    def list_source_versions(self, name: str, **wanted: str | None) -> dict[str, Any]:
        """Return the versions of a source's tables; ``wanted`` are event_type, from and to, None for none."""
        return self.call("GET", path_of("sources", name, "/versions"), params=wanted)

    def list_dead_letters(self, **wanted: str | None) -> dict[str, Any]:
        """Return dead letters of a job or a source; ``wanted`` are the API's parameters, None for none."""
        return self.call("GET", "/dead-letters", params=wanted)

    def download_dead_letter(self, letter: str, **where: str) -> bytes:
        """Return a payload: of a row of ``job``, or of a message of ``source`` and ``topic`` since ``from``."""
        return self.request("GET", path_of("dead-letters", letter, "/data"), params=where).content

    def attach_topic(
        self,
        topic: str,
        *,
        dry_run: bool = False,
        plan: str | None = None,
        exactly_once: bool = False,
        update: bool = False,
    ) -> dict[str, Any]:
        """Back a topic up, or return what that would do; ``plan`` is that of the dry run that it has to be."""
        body = {"dry_run": dry_run, "plan": plan, "exactly_once": exactly_once, "update": update}
        return self.call("POST", path_of("topics", topic, ":attach"), json=body)

    def detach_topic(self, topic: str, *, dry_run: bool = False, plan: str | None = None) -> dict[str, Any]:
        """Stop backing a topic up, or return what that would do."""
        return self.call("POST", path_of("topics", topic, ":detach"), json={"dry_run": dry_run, "plan": plan})
