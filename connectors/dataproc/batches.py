"""Batches at Dataproc Serverless: made once under a name, asked how they are, and ended."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from model.errors import LaunchCredentialsError, LaunchError, SettingsError

EDITOR_ROLE: Final = "roles/dataproc.editor"
ACCOUNT_ROLE: Final = "roles/iam.serviceAccountUser"
_CALL_SECONDS: Final = 20.0
# How long a create that is not answered is sent again, under the same request id.
_RETRY_SECONDS: Final = 60.0

Result = TypeVar("Result")


class BatchState(StrEnum):
    """Dataproc's own words."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    CANCELLED = "CANCELLED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class BatchPlace:
    """Where batches run and as what; ``host`` is a stand-in's ``host:port``, without one Google is meant.

    The image holds Refeed at the same Python for driver and executors. ``ttl_seconds`` after its start Dataproc
    ends a batch, whatever it does.
    """

    project: str
    region: str
    image: str
    runtime_version: str
    ttl_seconds: int
    service_account: str | None = None
    subnetwork: str | None = None
    history_server: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    host: str | None = None

    @property
    def parent(self) -> str:
        """What batches are made in."""
        return f"projects/{self.project}/locations/{self.region}"


@dataclass(frozen=True, slots=True)
class BatchView:
    """How a batch is: its state, what Dataproc says of it, and where its driver's output lies, once known."""

    state: BatchState
    message: str
    output_uri: str | None


class Batches:
    """The batches of one project and region.

    Raises:
        LaunchError: any call, when Dataproc refuses or does not answer; it names the missing role or login.
        SettingsError: the first call, when google-cloud-dataproc is not installed.
    """

    def __init__(self, place: BatchPlace) -> None:
        self._place = place
        self._made: Any = None

    def close(self) -> None:
        """End the connection."""
        if self._made is not None:
            self._made.transport.close()
            self._made = None

    def create(
        self, batch_id: str, main_file: str, arguments: Sequence[str], properties: Mapping[str, str]
    ) -> str:
        """Start a PySpark batch, or find the one that has this id, and return its whole name.

        The id makes the request's id too ("CreateBatchRequest.request_id"): sent twice, it is one batch.
        """
        from google.api_core.exceptions import AlreadyExists

        name = f"{self._place.parent}/batches/{batch_id}"
        request = {
            "parent": self._place.parent,
            "batch_id": batch_id,
            "request_id": str(uuid.uuid5(uuid.NAMESPACE_URL, name)),
            "batch": self._batch(main_file, arguments, properties),
        }

        # An earlier try, whose answer was lost, may have made it.
        with _our_errors(f"creating the batch {batch_id}", self._place), suppress(AlreadyExists):
            _retry_passing(lambda: self._client().create_batch(request, timeout=_CALL_SECONDS, retry=None))
        return name

    def read(self, name: str) -> BatchView | None:
        """Return how the batch ``name`` is, or None when there is none, or none any more."""
        from google.api_core.exceptions import NotFound

        with _our_errors(f"reading {name}", self._place):
            try:
                found = self._client().get_batch({"name": name}, timeout=_CALL_SECONDS, retry=None)
            except NotFound:
                return None
        state = found.state.name
        return BatchView(
            # One that is in no state yet is about to be.
            BatchState(state) if state in BatchState.__members__ else BatchState.PENDING,
            found.state_message,
            found.runtime_info.output_uri or None,
        )

    def cancel(self, name: str) -> None:
        """Have a batch end; one that has ended, or that nobody knows, is no error."""
        from google.api_core.exceptions import FailedPrecondition, NotFound

        with _our_errors(f"cancelling {name}", self._place), suppress(FailedPrecondition, NotFound):
            found = self._client().get_batch({"name": name}, timeout=_CALL_SECONDS, retry=None)
            if found.operation and found.state.name in {"PENDING", "RUNNING"}:
                self._client().cancel_operation({"name": found.operation}, timeout=_CALL_SECONDS)

    def _batch(self, main_file: str, arguments: Sequence[str], properties: Mapping[str, str]) -> dict[str, Any]:
        place = self._place
        execution: dict[str, Any] = {"ttl": {"seconds": place.ttl_seconds}}
        if place.service_account:
            execution["service_account"] = place.service_account
        if place.subnetwork:
            execution["subnetwork_uri"] = place.subnetwork
        environment: dict[str, Any] = {"execution_config": execution}
        if place.history_server:
            environment["peripherals_config"] = {
                "spark_history_server_config": {"dataproc_cluster": place.history_server}
            }
        return {
            "pyspark_batch": {"main_python_file_uri": main_file, "args": list(arguments)},
            "labels": {"app": "refeed", **dict(place.labels)},
            "runtime_config": {
                "version": place.runtime_version,
                "container_image": place.image,
                "properties": dict(properties),
            },
            "environment_config": environment,
        }

    def _client(self) -> Any:
        if self._made is None:
            try:
                from google.cloud.dataproc_v1 import BatchControllerClient
                from google.cloud.dataproc_v1.services.batch_controller.transports import (
                    BatchControllerGrpcTransport,
                )
            except ImportError as exc:
                raise SettingsError(
                    "REFEED_LAUNCHER=dataproc needs google-cloud-dataproc. Run pip install 'refeed[dataproc]'."
                ) from exc
            if self._place.host is not None:
                import grpc

                transport = BatchControllerGrpcTransport(channel=grpc.insecure_channel(self._place.host))
                self._made = BatchControllerClient(transport=transport)
            else:
                endpoint = f"{self._place.region}-dataproc.googleapis.com:443"
                self._made = BatchControllerClient(client_options={"api_endpoint": endpoint})
        return self._made


def _retry_passing(call: Callable[[], Result]) -> Result:
    from google.api_core import exceptions as api

    ends_at, pause = time.monotonic() + _RETRY_SECONDS, 0.2
    while True:
        try:
            return call()
        except (api.ServiceUnavailable, api.DeadlineExceeded, api.InternalServerError, api.Unknown, api.Aborted):
            if time.monotonic() + pause > ends_at:
                raise
            time.sleep(pause)
            pause = min(pause * 2, 8.0)


@contextmanager
def _our_errors(what: str, place: BatchPlace) -> Iterator[None]:
    """Raise what Google's client raises in the block as a LaunchError that says what to do."""
    import google.auth.exceptions
    from google.api_core import exceptions as api

    try:
        yield
    except google.auth.exceptions.GoogleAuthError as exc:
        raise LaunchCredentialsError(
            f"No valid Google credentials were found. Run 'gcloud auth application-default login' ({what}: {exc})."
        ) from exc
    except api.GoogleAPIError as exc:
        text = f"{what}: {getattr(exc, 'message', None) or exc}"
        raise LaunchError(f"{text}{_advice(exc, text, place)}") from exc


def _advice(exc: Exception, text: str, place: BatchPlace) -> str:
    """Return what to do about a refusal, as a sentence more."""
    from google.api_core import exceptions as api

    if isinstance(exc, api.Forbidden | api.Unauthorized):
        if "has not been used" in text or "SERVICE_DISABLED" in text:
            return f" Enable the API: gcloud services enable dataproc.googleapis.com --project={place.project}"
        if "actAs" in text or "act as" in text:
            account = place.service_account or "the Compute Engine default service account"
            return f" The account that Refeed runs as needs {ACCOUNT_ROLE} on {account}; docs/iam.md says how."
        return f" The account that Refeed runs as needs {EDITOR_ROLE} on the project; docs/iam.md says how."
    if isinstance(exc, api.ResourceExhausted):
        return f" Request a higher quota in {place.region}, or lower REFEED_MAX_RUNNING. Then retry."
    if isinstance(exc, api.NotFound | api.InvalidArgument):
        return " Check the REFEED_DATAPROC_ settings: region, image, runtime, subnet, account and history server."
    return ""
