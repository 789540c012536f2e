"""Google's notifications of changed objects in a bucket, read from a subscription as hints."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import grpc
from google.pubsub_v1.types import AcknowledgeRequest, PullRequest, PullResponse

from connectors.pubsub.errors import error_from

_PULL: Final = "/google.pubsub.v1.Subscriber/Pull"
_ACKNOWLEDGE: Final = "/google.pubsub.v1.Subscriber/Acknowledge"
_PULL_SECONDS: Final = 60.0
_CALL_SECONDS: Final = 10.0
_MESSAGES: Final = 100
# A Pull that ends with no event to tell.
_NOTHING: Final = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class ObjectEvents:
    """Events of objects below a prefix that may have changed; none says what an object is now.

    "Pub/Sub notifications for Cloud Storage" (https://cloud.google.com/storage/docs/pubsub-notifications) promises
    delivery at least once and no order, and an overwrite is two events: OBJECT_FINALIZE with
    ``overwroteGeneration``, and OBJECT_DELETE or OBJECT_ARCHIVE with ``overwrittenByGeneration``. So the event's
    type is not looked at: who hears of a change lists the objects that live now. An event is acknowledged when it
    is heard, and one that is lost is made up for by the next listing of everything.

    Raises:
        PubSubError: a call, when the subscription can't be read.
    """

    def __init__(self, channel: grpc.Channel, subscription_path: str, location: str) -> None:
        self._path = subscription_path
        self._bucket, _, prefix = location.removeprefix("gs://").partition("/")
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._pull_call = channel.unary_unary(_PULL, PullRequest.serialize, PullResponse.deserialize)
        self._ack_call = channel.unary_unary(_ACKNOWLEDGE, AcknowledgeRequest.serialize, bytes)
        # One Pull waits at the server, over as many calls of wait as it takes.
        self._pull: Any = None

    def wait(self, seconds: float) -> bool:
        """Return True as soon as an object may have changed, False after ``seconds``."""
        if self._pull is None:
            request = PullRequest(subscription=self._path, max_messages=_MESSAGES)
            self._pull = self._pull_call.future(request, timeout=_PULL_SECONDS)
        try:
            response = self._pull.result(timeout=seconds)
        except grpc.FutureTimeoutError:
            return False
        except grpc.FutureCancelledError:
            self._pull = None
            return False
        except grpc.RpcError as exc:
            self._pull = None
            if exc.code() in _NOTHING:
                return False
            raise error_from(exc, f"Pull of the subscription {self._path}") from exc
        self._pull = None
        return self._take(response.received_messages)

    def close(self) -> None:
        """Wait for no more events; events that the server has just sent come again to the next reader."""
        if self._pull is not None:
            self._pull.cancel()
            self._pull = None

    def _take(self, received: Iterable[Any]) -> bool:
        messages = list(received)
        if not messages:
            return False
        request = AcknowledgeRequest(subscription=self._path, ack_ids=[each.ack_id for each in messages])
        try:
            self._ack_call(request, timeout=_CALL_SECONDS)
        except grpc.RpcError as exc:
            raise error_from(exc, f"Acknowledge of the subscription {self._path}") from exc
        return any(self._is_ours(each.message.attributes) for each in messages)

    def _is_ours(self, attributes: Mapping[str, str]) -> bool:
        bucket, name = attributes.get("bucketId"), attributes.get("objectId", "")
        return bucket == self._bucket and name.startswith(self._prefix)
