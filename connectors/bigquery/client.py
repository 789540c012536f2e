"""Google's own BigQuery clients: endpoints, credentials and channel options."""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

from model.settings import BigQuerySettings

# The Read API's responses come near 128 MB at most, append requests near 20 MB.
_CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 129 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
_STORAGE_ENDPOINT: Final = "bigquerystorage.googleapis.com"
# A call that is answered at all is answered within this; one that takes longer is repeated.
CALL_SECONDS: Final = 60.0
# Google's REST client tries again by itself, for ten minutes and without a word: a wrong host would look like a
# slow one. Calls are made once, and tried again by connectors.bigquery.errors, in the caller's own time.
ONCE: Final[Mapping[str, Any]] = {"retry": None, "timeout": CALL_SECONDS}


@dataclass(frozen=True, slots=True)
class Connection:
    """The endpoints, labels and key with which any process reaches BigQuery; picklable, and JSON-ready."""

    project: str
    location: str
    host: str | None
    storage_host: str | None
    is_regional: bool
    labels: tuple[tuple[str, str], ...]
    kms_key: str | None = None

    @classmethod
    def of(cls, project: str, settings: BigQuerySettings) -> Self:
        """Return the connection that ``settings`` describe."""
        # All fields but the project have the settings' own names.
        return cls(project, *(getattr(settings, field.name) for field in fields(cls) if field.name != "project"))

    def as_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` takes."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """Return the connection that :meth:`as_json` described."""
        return cls(**{**given, "labels": tuple((key, value) for key, value in given["labels"])})

    def labels_for(self, use: str) -> dict[str, str]:
        """Return the labels of a job or table that exists for ``use``, by which a billing export groups."""
        return {"app": "refeed", "refeed_use": use, **dict(self.labels)}

    @property
    def endpoint(self) -> str | None:
        """The REST endpoint, None for Google's global one."""
        if self.host is not None:
            return self.host
        # Google's "Regional endpoints": requests to them are handled in their location and leave it never.
        return f"https://bigquery.{self.location.lower()}.rep.googleapis.com" if self.is_regional else None

    @property
    def storage_endpoint(self) -> str | None:
        """The endpoint of the Storage APIs, None for Google's global one."""
        if self.storage_host is not None:
            return self.storage_host
        return f"bigquerystorage.{self.location.lower()}.rep.googleapis.com" if self.is_regional else None


class Clients:
    """The clients of one process, made when they are first asked for, because each costs imports and threads.

    Credentials are Application Default Credentials; with a stand-in's host there are none. What the clients
    raise is for :mod:`connectors.bigquery.errors`, also what is missing when they are made.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        # Tasks append to several tables at once, each from a thread.
        self._lock = threading.Lock()
        self._rest: Any = None
        self._write: Any = None
        self._append_rows: Any = None
        self._read: Any = None

    def rest(self) -> Any:
        """Return google-cloud-bigquery's client."""
        with self._lock:
            if self._rest is None:
                from google.auth.credentials import AnonymousCredentials
                from google.cloud import bigquery

                connection = self.connection
                endpoint = connection.endpoint
                self._rest = bigquery.Client(
                    project=connection.project,
                    location=connection.location,
                    credentials=AnonymousCredentials() if connection.host else None,  # type: ignore[no-untyped-call]
                    client_options={"api_endpoint": endpoint} if endpoint else None,
                )
            return self._rest

    def write(self) -> Any:
        """Return google-cloud-bigquery-storage's client of the Storage Write API."""
        with self._lock:
            if self._write is None:
                from google.cloud.bigquery_storage_v1 import BigQueryWriteClient

                self._write = self._connect(BigQueryWriteClient)
            return self._write

    def append_rows(self, requests: Iterator[bytes], *, stream: str, seconds: float) -> Any:
        """Call AppendRows with requests that are bytes already, and return the answers as they come.

        It is Google's client but for the serializer, which would copy each request three times.
        """
        if self._append_rows is None:
            from google.api_core import gapic_v1
            from google.cloud.bigquery_storage_v1 import types
            from google.cloud.bigquery_storage_v1.services.big_query_write.transports.base import (
                DEFAULT_CLIENT_INFO,
            )

            stub = self.write().transport.grpc_channel.stream_stream(
                "/google.cloud.bigquery.storage.v1.BigQueryWrite/AppendRows",
                request_serializer=None,
                response_deserializer=types.AppendRowsResponse.deserialize,
            )
            # Else the call returns with its first answer, and nobody could end one that gets none.
            stub._prefetch_first_result_ = False
            wrap: Any = gapic_v1.method.wrap_method
            self._append_rows = wrap(stub, client_info=DEFAULT_CLIENT_INFO)
        # Google's own writer sends it: the routing header that no client can make of a stream of requests.
        routing = ("x-goog-request-params", f"write_stream={stream}")
        return self._append_rows(requests, retry=None, timeout=seconds, metadata=(routing,))

    def read(self) -> Any:
        """Return the generated client of the Storage Read API: the one above it resumes and hides the offsets."""
        with self._lock:
            if self._read is None:
                from google.cloud.bigquery_storage_v1.services.big_query_read import BigQueryReadClient

                self._read = self._connect(BigQueryReadClient)
            return self._read

    def _connect(self, kind: Any) -> Any:
        """Return a client of a Storage API whose channel has our options."""
        connection, transport = self.connection, kind.get_transport_class("grpc")
        if connection.storage_host is not None:
            import grpc

            channel: Any = grpc.insecure_channel(connection.storage_host, options=_CHANNEL_OPTIONS)
        else:
            endpoint = connection.storage_endpoint or _STORAGE_ENDPOINT
            channel = transport.create_channel(endpoint, options=_CHANNEL_OPTIONS)
        return kind(transport=transport(channel=channel))

    def close(self) -> None:
        """End the connections; the next call makes new ones."""
        if self._rest is not None:
            self._rest.close()
        for storage in (self._write, self._read):
            if storage is not None:
                storage.transport.close()
        self._rest = self._write = self._append_rows = self._read = None


def process_clients(connection: Connection) -> Clients:
    """Return this process's clients for ``connection``: Spark uses a worker for one task after the other."""
    if connection not in _CLIENTS:
        _CLIENTS[connection] = Clients(connection)
    return _CLIENTS[connection]


_CLIENTS: dict[Connection, Clients] = {}
