"""A test double of Cloud Storage's JSON API: objects with generations, in memory, over HTTP on loopback.

It takes what Google's client sends with STORAGE_EMULATOR_HOST: uploads in one piece and in several, ranges, lists,
deletes, and ``ifGenerationMatch`` ("Request preconditions"). :attr:`GcsServer.faults` are answers to give instead.

It notes the notifications that a bucket with a notification configuration publishes, in the order of the changes;
:mod:`tests.standin.gcs_notifications` publishes them as unkindly as Google may.
"""

import base64
import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler
from itertools import count
from urllib.parse import parse_qs, unquote, urlsplit

import google_crc32c
import pytest

from connectors.gcs import files
from tests.worlds.http import serving


@dataclass
class StoredObject:
    content: bytes
    generation: int
    updated: str


@dataclass
class Fault:
    """Answers ``status`` to the next ``times`` requests that ``method`` and ``path`` match.

    With ``is_done`` the request is carried out and only its answer is lost.
    """

    method: str
    path: str
    status: int
    times: int = 1
    is_done: bool = False
    reason: str = "backendError"


@dataclass
class GcsServer:
    buckets: dict[str, dict[str, StoredObject]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    lock: threading.RLock = field(default_factory=threading.RLock)
    uploads: dict[str, tuple[str, str, str | None, bytearray]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    # The attributes of each notification, oldest first; versioned buckets keep what was overwritten or deleted.
    notifications: list[dict[str, str]] = field(default_factory=list)
    versioned: set[str] = field(default_factory=set)
    url: str = ""

    def put(self, bucket: str, name: str, content: bytes, if_generation: str | None) -> dict[str, object] | None:
        """Return the object's resource, or None when it is of another generation."""
        with self.lock:
            objects = self.buckets[bucket]
            before = objects.get(name)
            if if_generation is not None and int(if_generation) != (before.generation if before else 0):
                return None
            now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
            made = objects[name] = StoredObject(content, next(self.numbers), now)
            if before is not None:
                self._notify(bucket, name, before, overwrittenByGeneration=str(made.generation))
            more = {} if before is None else {"overwroteGeneration": str(before.generation)}
            self._notify(bucket, name, made, eventType="OBJECT_FINALIZE", **more)
            return self.resource(bucket, name)

    def remove(self, bucket: str, name: str) -> None:
        with self.lock:
            self._notify(bucket, name, self.buckets[bucket].pop(name))

    def _notify(self, bucket: str, name: str, stored: StoredObject, **more: str) -> None:
        """Note a notification; without an ``eventType`` that of an object that is gone.

        https://cloud.google.com/storage/docs/pubsub-notifications, "Attributes" and "Event types": an object that
        is replaced gets OBJECT_DELETE, "OBJECT_ARCHIVE" with versioning, with the attribute
        "overwrittenByGeneration", and the one that replaces it OBJECT_FINALIZE with "overwroteGeneration".
        """
        self.notifications.append(
            {
                "notificationConfig": f"projects/_/buckets/{bucket}/notificationConfigs/1",
                "eventType": "OBJECT_ARCHIVE" if bucket in self.versioned else "OBJECT_DELETE",
                "payloadFormat": "NONE",
                "bucketId": bucket,
                "objectId": name,
                "objectGeneration": str(stored.generation),
                "eventTime": stored.updated,
                **more,
            }
        )

    def resource(self, bucket: str, name: str) -> dict[str, object]:
        found = self.buckets[bucket][name]
        return {
            "kind": "storage#object",
            "name": name,
            "bucket": bucket,
            "generation": str(found.generation),
            "metageneration": "1",
            "size": str(len(found.content)),
            "updated": found.updated,
            "md5Hash": _md5(found.content),
            "crc32c": _crc32c(found.content),
        }

    def names(self, bucket: str) -> list[str]:
        with self.lock:
            return sorted(self.buckets[bucket])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    gcs: GcsServer

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        with self.gcs.lock:
            self.gcs.requests[self.command] += 1
            fault = next(
                (
                    f
                    for f in self.gcs.faults
                    if f.times and f.method == self.command and re.search(f.path, self.path)
                ),
                None,
            )
            if fault is not None:
                fault.times -= 1
        if fault is not None and not fault.is_done:
            self._send_fault(fault.status, fault.reason)
            return
        status, content, headers = self._serve(parts.path, query, body)
        if fault is not None:
            self._send_fault(fault.status, fault.reason)
            return
        self._send(status, content, headers)

    do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 - the names that http.server calls

    def _serve(  # noqa: PLR0911 - a route each
        self, path: str, query: dict[str, str], body: bytes
    ) -> tuple[int, bytes, dict[str, str]]:
        if "upload_id" in query:
            return self._resume(query["upload_id"], body)
        found = re.fullmatch(r"(?:/upload|/download)?/storage/v1/b/([^/]+)/o(?:/(.+))?", path)
        if found is None:
            return _error(404, f"no route {path}")
        bucket, name = unquote(found[1]), unquote(found[2] or "")
        if bucket not in self.gcs.buckets:
            return _error(404, "The specified bucket does not exist.")
        if path.startswith("/upload"):
            return self._upload(bucket, query, body)
        if not name:
            return self._list(bucket, query)
        with self.gcs.lock:
            stored = self.gcs.buckets[bucket].get(name)
            if stored is None:
                return _error(404, f"No such object: {bucket}/{name}")
            if query.get("ifGenerationMatch", str(stored.generation)) != str(stored.generation):
                return _error(412, "conditionNotMet")
            if self.command == "DELETE":
                self.gcs.remove(bucket, name)
                return 204, b"", {}
            if query.get("alt") == "media":
                return self._media(stored)
            return _json(self.gcs.resource(bucket, name))

    def _media(self, stored: StoredObject) -> tuple[int, bytes, dict[str, str]]:
        headers = {
            "X-Goog-Generation": str(stored.generation),
            "X-Goog-Hash": f"crc32c={_crc32c(stored.content)},md5={_md5(stored.content)}",
            "Content-Type": "application/octet-stream",
        }
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if asked is None:
            return 200, stored.content, headers
        start, size = int(asked[1]), len(stored.content)
        end = min(int(asked[2] or size - 1), size - 1)
        if start >= size:
            return _error(416, "requested range not satisfiable")
        return 206, stored.content[start : end + 1], headers | {"Content-Range": f"bytes {start}-{end}/{size}"}

    def _upload(self, bucket: str, query: dict[str, str], body: bytes) -> tuple[int, bytes, dict[str, str]]:
        if query["uploadType"] == "resumable":
            with self.gcs.lock:
                upload_id = f"u{next(self.gcs.numbers)}"
                name = json.loads(body)["name"]
                self.gcs.uploads[upload_id] = (bucket, name, query.get("ifGenerationMatch"), bytearray())
            location = f"{self.gcs.url}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={upload_id}"
            return 200, b"", {"Location": location}
        kind = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        about, media = BytesParser(policy=HTTP).parsebytes(kind + body).iter_parts()
        # The parser may mend line ends: the bytes themselves stand between the second head and the boundary.
        boundary = re.search(r'boundary="?([^";]+)', self.headers["Content-Type"])[1].encode()
        content = body.split(b"--" + boundary)[2].partition(b"\r\n\r\n")[2][:-2]
        assert media is not None
        name = json.loads(about.get_payload())
        return self._put(bucket, name["name"], content, query.get("ifGenerationMatch"))

    def _resume(self, upload_id: str, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        with self.gcs.lock:
            if upload_id not in self.gcs.uploads:
                return _error(410, "the upload is over")
            bucket, name, if_generation, held = self.gcs.uploads[upload_id]
            if self.command == "DELETE":
                del self.gcs.uploads[upload_id]
                return 499, b"", {}
            span = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", self.headers["Content-Range"])
            assert span is not None
            if span[1] is not None and int(span[1]) == len(held):
                held += body
            if span[3] == "*" or int(span[3]) > len(held):
                headers = {"Range": f"bytes=0-{len(held) - 1}"} if held else {}
                return 308, b"", headers
            del self.gcs.uploads[upload_id]
        return self._put(bucket, name, bytes(held), if_generation)

    def _put(
        self, bucket: str, name: str, content: bytes, if_generation: str | None
    ) -> tuple[int, bytes, dict[str, str]]:
        made = self.gcs.put(bucket, name, content, if_generation)
        return _error(412, "conditionNotMet") if made is None else _json(made)

    def _list(self, bucket: str, query: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        after, limit = query.get("pageToken", ""), int(query.get("maxResults", "1000"))
        items, prefixes, last = [], [], ""
        with self.gcs.lock:
            for name in sorted(self.gcs.buckets[bucket]):
                if not name.startswith(prefix) or name <= after:
                    continue
                if len(items) + len(prefixes) == limit:
                    return _json({"items": items, "prefixes": prefixes, "nextPageToken": last})
                last = name
                rest = name[len(prefix) :]
                if delimiter and delimiter in rest:
                    folder = prefix + rest.split(delimiter)[0] + delimiter
                    if folder not in prefixes:
                        prefixes.append(folder)
                else:
                    items.append(self.gcs.resource(bucket, name))
        return _json({"items": items, "prefixes": prefixes})

    def _send_fault(self, status: int, reason: str) -> None:
        self._send(status, _error(status, reason)[1], {"Content-Type": "application/json"})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _md5(content: bytes) -> str:
    return base64.b64encode(hashlib.md5(content).digest()).decode()


def _crc32c(content: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(content).digest()).decode()


def _json(value: dict[str, object]) -> tuple[int, bytes, dict[str, str]]:
    return 200, json.dumps(value).encode(), {"Content-Type": "application/json"}


def _error(status: int, message: str) -> tuple[int, bytes, dict[str, str]]:
    fault = {"code": status, "message": message, "errors": [{"reason": message, "message": message}]}
    return status, json.dumps({"error": fault}).encode(), {"Content-Type": "application/json"}


@contextmanager
def pointing_at(gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have this process, and those that it starts, take ``gcs`` for Cloud Storage."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    files.client.cache_clear()
    try:
        yield
    finally:
        files.client().close()
        files.client.cache_clear()


@contextmanager
def running_gcs(*buckets: str) -> Iterator[GcsServer]:
    """Give a server on loopback that has ``buckets``."""
    gcs = GcsServer({name: {} for name in buckets})
    with serving(type("Handler", (_Handler,), {"gcs": gcs})) as gcs.url:
        yield gcs
