"""The REST half: HTTP to calls, BigQuery's errors, faults on order, and the control calls under /standin."""

import contextlib
import gzip
import json
import re
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.standin.catalog import Catalog, TableKey, now_us
from tests.standin.faults import CallLog, Fault, FaultBook
from tests.standin.problems import Problem
from tests.standin.resources import Resources

_PREFIX: Final = "/bigquery/v2"


@dataclass(frozen=True, slots=True)
class Call:
    """One request: what its path names, its parameters, headers and body."""

    path: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body; none is empty.

        Raises:
            Problem: ``invalid``; it is no JSON object.
        """
        try:
            parsed = json.loads(self.raw or b"{}")
        except ValueError as exc:
            raise Problem("invalid", f"Invalid JSON payload received. {exc}") from exc
        if not isinstance(parsed, dict):
            raise Problem("invalid", "Invalid JSON payload received.")
        return parsed

    @property
    def project(self) -> str:
        return self.path["project"]

    @property
    def table(self) -> TableKey:
        return TableKey(self.path["project"], self.path["dataset"], self.path["table"])

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() == "true"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that is more than JSON with 200."""

    status: int = 200
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] | None = None


Run = Callable[[Call], Mapping[str, Any] | Answer | None]


class Routes:
    """Which call answers which method and path."""

    def __init__(self) -> None:
        self._routes: list[tuple[str, re.Pattern[str], str, Run]] = []

    def add(self, method: str, template: str, name: str, run: Run) -> None:
        """Add a route; ``{x}`` in the template is one segment of the path."""
        pattern = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", template))
        self._routes.append((method, pattern, name, run))

    def find(self, method: str, path: str) -> tuple[str, dict[str, str], Run] | None:
        for wanted, pattern, name, run in self._routes:
            match = pattern.fullmatch(path)
            if wanted == method and match:
                return name, {key: unquote(value) for key, value in match.groupdict().items()}, run
        return None


def add_resource_routes(routes: Routes, resources: Resources) -> None:
    datasets = f"{_PREFIX}/projects/{{project}}/datasets"
    one = f"{datasets}/{{dataset}}"
    tables = f"{one}/tables"
    table = f"{tables}/{{table}}"

    def if_match(call: Call) -> str | None:
        return call.headers.get("if-match")

    def dataset(call: Call) -> str:
        return call.path["dataset"]

    routes.add("POST", datasets, "datasets.insert", lambda c: resources.insert_dataset(c.project, c.body))
    routes.add("GET", datasets, "datasets.list",
               lambda c: resources.list_datasets(c.project, everything=c.flag("all")))  # fmt: skip
    routes.add("GET", one, "datasets.get", lambda c: resources.get_dataset(c.project, dataset(c)))
    routes.add("PATCH", one, "datasets.patch", lambda c: resources.change_dataset(
        c.project, dataset(c), c.body, if_match=if_match(c)))  # fmt: skip
    routes.add("PATCH", table, "tables.patch", lambda c: resources.change_table(
        c.table, c.body, if_match=if_match(c)))  # fmt: skip
    routes.add(
        "DELETE",
        one,
        "datasets.delete",
        lambda c: resources.delete_dataset(c.project, dataset(c), contents=c.flag("deleteContents")),
    )
    routes.add("POST", tables, "tables.insert", lambda c: resources.insert_table(c.project, dataset(c), c.body))
    routes.add("GET", tables, "tables.list", lambda c: resources.list_tables(
        c.project, dataset(c), int(c.query.get("maxResults") or 1000), c.query.get("pageToken", "")))  # fmt: skip
    routes.add("GET", table, "tables.get", lambda c: resources.get_table(c.table))
    routes.add("DELETE", table, "tables.delete", lambda c: resources.delete_table(c.table))


def add_control_routes(
    routes: Routes, catalog: Catalog, faults: FaultBook, log: CallLog, allow_streams: Callable[[int], None]
) -> None:
    """Add what a test orders: faults, the call log, rows that stay in the write buffer, and a quota."""

    def add_fault(call: Call) -> Answer:
        try:
            faults.add(call.body)
        except (TypeError, ValueError) as exc:
            raise Problem("invalid", str(exc)) from exc
        return Answer(201, {"faults": faults.open()})

    def hold(call: Call) -> Mapping[str, Any]:
        body = call.body
        entry = catalog.find_table(TableKey(*str(body["table"]).split(".")))
        with catalog.transaction() as db:
            if body.get("held", True):
                since_us = 0 if body.get("all") else now_us()
                db.execute("INSERT OR IGNORE INTO holds VALUES (?, ?)", (entry.id, since_us))
            else:
                db.execute("DELETE FROM holds WHERE table_id = ?", (entry.id,))
        return {}

    routes.add("POST", "/standin/faults", "standin", add_fault)
    routes.add("GET", "/standin/faults", "standin", lambda _: {"faults": faults.open()})
    routes.add("DELETE", "/standin/faults", "standin", lambda _: faults.clear())
    routes.add("GET", "/standin/log", "standin", lambda _: log.read())
    routes.add("DELETE", "/standin/log", "standin", lambda _: log.clear())

    def delay_storage(call: Call) -> Mapping[str, Any]:
        catalog.delayed = str(call.body["only"])
        catalog.new_tables_us, catalog.new_columns_us = (int(call.body[n] * 1e6) for n in ("tables", "columns"))
        return {}

    def set_quotas(call: Call) -> Mapping[str, Any]:
        allow_streams(int(call.body["streams_per_hour"]))
        return {}

    routes.add("POST", "/standin/quotas", "standin", set_quotas)
    routes.add("POST", "/standin/write_buffer", "standin", hold)
    routes.add("POST", "/standin/storage_delay", "standin", delay_storage)


class RestServer(ThreadingHTTPServer):
    """Serves the routes; a thread a connection."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        routes: Routes,
        faults: FaultBook,
        log: CallLog,
        act: Callable[[Fault], bool],
    ) -> None:
        super().__init__(address, _Handler)
        self.routes = routes
        self.faults = faults
        self.log = log
        self.act = act

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, _request: Any, _client_address: Any) -> None:
        """Say nothing of a client that hung up."""

    def __enter__(self) -> Self:
        return self


class _Handler(BaseHTTPRequestHandler):
    server: RestServer
    protocol_version = "HTTP/1.1"
    # Without it the last piece of an answer waits for the client's delayed acknowledgement.
    disable_nagle_algorithm = True
    timeout = 3600

    def log_message(self, *_: object) -> None:
        """Keep standard error for what matters."""

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def _serve(self) -> None:
        raw = self._read_body()
        parts = urlsplit(self.path)
        found = self.server.routes.find(self.command, parts.path)
        if found is None:
            self._send(Problem("notFound", f"Not Found: {self.command} {parts.path}").body(), 404)
            return
        name, path, run = found
        headers = {key.lower(): value for key, value in self.headers.items()}
        call = Call(path, dict(parse_qsl(parts.query)), headers, raw)
        resource = parts.path.removeprefix(_PREFIX)
        if name == "standin":
            self._answer(self._outcome(run, call)[0])
            return
        if self._meets(name, "before", resource):
            return
        answer, outcome = self._outcome(run, call)
        if not self._meets(name, "after", resource):
            self.server.log.add(name, resource, outcome)
            self._answer(answer)

    def _outcome(self, run: Run, call: Call) -> tuple[Answer, str]:
        try:
            result = run(call)
        except Problem as exc:
            return Answer(exc.code, exc.body()), exc.reason
        except Exception as exc:  # noqa: BLE001  a reason that no client tries again, so that the test ends
            problem = Problem("notImplemented", f"{type(exc).__name__}: {exc}")
            return Answer(problem.code, problem.body()), problem.reason
        if isinstance(result, Answer):
            return result, "ok"
        return Answer(204 if result is None else 200, result), "ok"

    def _meets(self, name: str, when: str, resource: str) -> bool:
        """Return whether a fault ended the call."""
        fault = self.server.faults.take(name, when, resource)
        if fault is None or not self.server.act(fault):
            return False
        self.server.log.add(name, resource, "dropped" if fault.kind == "drop" else fault.reason)
        if fault.kind == "drop":
            self._hang_up()
        else:
            problem = Problem(fault.reason, fault.message, fault.code)
            self._answer(Answer(problem.code, problem.body()))
        return True

    def _hang_up(self) -> None:
        """Reset the connection, as a proxy does that dies."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.shutdown(socket.SHUT_RDWR)

    def _read_body(self) -> bytes:
        size = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(size)
        return gzip.decompress(raw) if self.headers.get("Content-Encoding") == "gzip" else raw

    def _answer(self, answer: Answer) -> None:
        self._send(answer.body, answer.status, answer.headers)

    def _send(self, body: Mapping[str, Any] | None, status: int, headers: Mapping[str, str] | None = None) -> None:
        payload = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        if body is not None:
            self.send_header("Content-Type", "application/json; charset=UTF-8")
            if "etag" in body:
                self.send_header("ETag", str(body["etag"]))
        if status != 204:
            self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)
