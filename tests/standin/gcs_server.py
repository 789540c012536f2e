"""A test double of Cloud Storage's XML API: objects with generations, in memory, over HTTP on loopback.

It takes what obstore and delta-rs send: puts in one piece and in parts, ranges, listings, deletes, and conditions.
"XML API" below is https://cloud.google.com/storage/docs/xml-api/reference-methods and the pages beside it.

It notes the notifications that a bucket with a notification configuration publishes, in the order of the changes;
:mod:`tests.standin.gcs_notifications` publishes them as unkindly as Google may.
"""

import hashlib
import json
import re
import threading
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from tests.worlds.http import Answer, serving

# XML API, "GET Bucket (List Objects)", max-keys: "the default (and maximum) is 1000".
_PAGE_OBJECTS = 1000


@dataclass
class StoredObject:
    content: bytes
    generation: int
    updated: datetime

    @cached_property
    def e_tag(self) -> str:
        """XML API, "Hashes and ETags": the MD5, but for objects that were composed or have a key of their own."""
        return f'"{hashlib.md5(self.content).hexdigest()}"'


@dataclass
class Upload:
    """A multipart upload; its parts are by their number."""

    bucket: str
    name: str
    parts: dict[int, bytes] = field(default_factory=dict)


@dataclass
class GcsServer:
    buckets: dict[str, dict[str, StoredObject]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    uploads: dict[str, Upload] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    # The attributes of each notification, oldest first; versioned buckets keep what was overwritten or deleted.
    notifications: list[dict[str, str]] = field(default_factory=list)
    versioned: set[str] = field(default_factory=set)
    # The headers of requests that say who asks; nobody is refused.
    authorizations: set[str] = field(default_factory=set)
    url: str = ""

    def put(self, bucket: str, name: str, content: bytes, if_generation: str | None = None) -> StoredObject | None:
        """Return the object, or None when another generation than ``if_generation`` is there (0: when any is)."""
        with self.lock:
            objects = self.buckets[bucket]
            before = objects.get(name)
            if if_generation is not None and int(if_generation) != (before.generation if before else 0):
                return None
            made = objects[name] = StoredObject(content, next(self.numbers), datetime.now(UTC))
            if before is not None:
                self._notify(bucket, name, before, overwrittenByGeneration=str(made.generation))
            more = {} if before is None else {"overwroteGeneration": str(before.generation)}
            self._notify(bucket, name, made, eventType="OBJECT_FINALIZE", **more)
            return made

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
                "eventTime": f"{stored.updated:%Y-%m-%dT%H:%M:%S.%fZ}",
                **more,
            }
        )

    def names(self, bucket: str) -> list[str]:
        with self.lock:
            return sorted(self.buckets[bucket])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer is written in two pieces, and the second one would wait 40 ms for the client to confirm the first.
    disable_nagle_algorithm = True
    gcs: GcsServer

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        bucket, _, name = unquote(parts.path).removeprefix("/").partition("/")
        with self.gcs.lock:
            self.gcs.authorizations.add(self.headers.get("Authorization", ""))
            found = self._serve(bucket, name, query, body)
        self.send_response(found.status)
        for key, value in {"Content-Length": str(len(found.content)), **found.headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(found.content)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 - the names that http.server calls

    def _serve(self, bucket: str, name: str, query: Mapping[str, str], body: bytes) -> Answer:
        is_new = self.command == "PUT" and not name
        if is_new or bucket not in self.gcs.buckets:
            missing = _error(404, "NoSuchBucket", "The specified bucket does not exist.")
            return self._make(bucket) if is_new else missing
        if "uploads" in query or "uploadId" in query:
            return self._serve_upload(bucket, name, query, body)
        if self.command == "PUT":
            return self._put(bucket, name, body)
        if not name:
            return self._list(bucket, query)
        stored = self.gcs.buckets[bucket].get(name)
        if stored is None:
            return _error(404, "NoSuchKey", "The specified key does not exist.")
        return self._delete(bucket, name) if self.command == "DELETE" else self._get(stored, query)

    def _make(self, bucket: str) -> Answer:
        """XML API, "PUT Bucket"."""
        self.gcs.buckets.setdefault(bucket, {})
        return Answer(200)

    def _delete(self, bucket: str, name: str) -> Answer:
        self.gcs.remove(bucket, name)
        return Answer(204)

    def _put(self, bucket: str, name: str, body: bytes) -> Answer:
        """XML API, "x-goog-if-generation-match": 412 where another generation is live; with 0 where any is."""
        made = self.gcs.put(bucket, name, body, self.headers.get("x-goog-if-generation-match"))
        if made is None:
            return _error(
                412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold."
            )
        return Answer(200, b"", _headers(made))

    def _get(self, stored: StoredObject, query: Mapping[str, str]) -> Answer:
        """XML API, "GET Object" and "HEAD Object", "If-Match": 412 where the ETag is another one."""
        if query.get("generation", str(stored.generation)) != str(stored.generation):
            return _error(404, "NoSuchKey", "The specified key does not exist.")
        if self.headers.get("If-Match", stored.e_tag) != stored.e_tag:
            return _error(
                412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold."
            )
        headers, size = _headers(stored), len(stored.content)
        # RFC 9110, 14.1.2: from the first to the last byte, or the last so many.
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            return Answer(200, stored.content, headers | {"Content-Length": str(size)})
        start = int(asked[1]) if asked[1] else max(0, size - int(asked[2]))
        end = min(int(asked[2]), size - 1) if asked[1] and asked[2] else size - 1
        if start >= size:
            return _error(416, "InvalidRange", "The requested range cannot be satisfied.")
        return Answer(
            206, stored.content[start : end + 1], headers | {"Content-Range": f"bytes {start}-{end}/{size}"}
        )

    def _serve_upload(self, bucket: str, name: str, query: Mapping[str, str], body: bytes) -> Answer:
        """XML API, "XML API multipart uploads": an object appears when its parts are completed."""
        if "uploads" in query:
            upload_id = f"u{next(self.gcs.numbers)}"
            self.gcs.uploads[upload_id] = Upload(bucket, name)
            return _xml("InitiateMultipartUploadResult", f"<UploadId>{upload_id}</UploadId>")
        upload = self.gcs.uploads.get(query["uploadId"])
        if upload is None or (upload.bucket, upload.name) != (bucket, name):
            return _error(404, "NoSuchUpload", "The requested upload was not found.")
        if self.command == "PUT":
            upload.parts[int(query["partNumber"])] = body
            return Answer(200, b"", {"ETag": f'"{hashlib.md5(body).hexdigest()}"'})
        del self.gcs.uploads[query["uploadId"]]
        if self.command == "DELETE":
            return Answer(204)
        chosen = [int(number) for number in re.findall(rb"<PartNumber>(\d+)</PartNumber>", body)]
        made = self.gcs.put(bucket, name, b"".join(upload.parts[number] for number in chosen))
        assert made is not None
        return _xml("CompleteMultipartUploadResult", f"<ETag>{escape(made.e_tag)}</ETag>", _headers(made))

    def _list(self, bucket: str, query: Mapping[str, str]) -> Answer:
        """XML API, "GET Bucket (List Objects)", list-type=2: by the bytes of the names, in pages."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        after = query.get("continuation-token") or query.get("start-after", "")
        limit = int(query.get("max-keys", _PAGE_OBJECTS))
        found: list[str] = []
        folders: dict[str, None] = {}
        last, more = "", ""
        for name in sorted(self.gcs.buckets[bucket], key=str.encode):
            folder = prefix + name[len(prefix) :].partition(delimiter)[0] + delimiter if delimiter else name
            is_below = folder != name and delimiter is not None and name.startswith(folder)
            if not name.startswith(prefix) or name.encode() <= after.encode() or (is_below and folder in folders):
                continue
            if len(found) + len(folders) == limit:
                more = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>"
                break
            # The token is after all that the folder stands for.
            last = folder + chr(0x10FFFF) if is_below else name
            if is_below:
                folders[folder] = None
            else:
                found.append(_listed(name, self.gcs.buckets[bucket][name]))
        prefixes = "".join(f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders)
        about = f"<Name>{bucket}</Name><IsTruncated>{'true' if more else 'false'}</IsTruncated>{more}"
        return _xml("ListBucketResult", about + "".join(found) + prefixes)


def _listed(name: str, stored: StoredObject) -> str:
    return (
        f"<Contents><Key>{escape(name)}</Key><Generation>{stored.generation}</Generation>"
        f"<LastModified>{stored.updated:%Y-%m-%dT%H:%M:%S.%fZ}</LastModified>"
        f"<ETag>{escape(stored.e_tag)}</ETag><Size>{len(stored.content)}</Size></Contents>"
    )


def _headers(stored: StoredObject) -> dict[str, str]:
    return {
        "ETag": stored.e_tag,
        "x-goog-generation": str(stored.generation),
        "Last-Modified": format_datetime(stored.updated, usegmt=True),
    }


def _xml(name: str, content: str, headers: Mapping[str, str] = {}, status: int = 200) -> Answer:
    text = f"<?xml version='1.0' encoding='UTF-8'?><{name}>{content}</{name}>"
    return Answer(status, text.encode(), {"Content-Type": "application/xml; charset=UTF-8", **headers})


def _error(status: int, code: str, message: str) -> Answer:
    """XML API, "HTTP status and error codes for XML API"."""
    return _xml("Error", f"<Code>{code}</Code><Message>{message}</Message>", status=status)


def settings_at_gcs(url: str) -> dict[str, str]:
    """Return the environment that leads all clients of Cloud Storage to ``url``."""
    account = {
        "gcs_base_url": url,
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account)}


@contextmanager
def pointing_at(gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have this process, and those that it starts, take ``gcs`` for Cloud Storage."""
    with monkeypatch.context() as patch:
        for name, value in settings_at_gcs(gcs.url).items():
            patch.setenv(name, value)
        yield


@contextmanager
def running_gcs(*buckets: str) -> Iterator[GcsServer]:
    """Give a server on loopback that has ``buckets``."""
    gcs = GcsServer({name: {} for name in buckets})
    with serving(type("Handler", (_Handler,), {"gcs": gcs})) as gcs.url:
        yield gcs


if __name__ == "__main__":
    arguments = ArgumentParser()
    arguments.add_argument("--host", required=True)
    arguments.add_argument("--port", required=True, type=int)
    given = arguments.parse_args()
    handler = type("Handler", (_Handler,), {"gcs": GcsServer()})
    ThreadingHTTPServer((given.host, given.port), handler).serve_forever()
