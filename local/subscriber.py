"""google.pubsub.v1.Subscriber over gRPC."""

import random
import threading
import time
from collections.abc import Iterator
from typing import Any, Final, cast

import grpc
from google.pubsub_v1 import types

from local import wire
from local.answers import Handler, abort, answer, answer_bytes, render_page
from local.configs import MAX_ACK_DEADLINE_SECONDS
from local.resources import Resources
from local.status import StatusError
from local.streaming import StreamSlots, run_streaming_pull

_SERVICE: Final = "google.pubsub.v1.Subscriber"

# Below the 4 MiB that a gRPC client takes unless told otherwise; Google's clients are not, when they talk to an
# emulator. One message larger than this goes out alone.
MAX_PULL_BYTES: Final = 4_000_000
# How long an empty Pull waits for a message; a client with a shorter deadline gets its answer in time.
PULL_WAIT_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 0.5
# How long a Pull that would not wait does so for messages whose publish is being answered.
_ANSWERING_SECONDS: Final = 0.05
# In the test mode a Pull brings any number up to this one, as the real service's may at any time.
_PARTIAL_MESSAGES: Final = 1000


class SubscriberService:
    """The calls on subscriptions and snapshots.

    For tests: with ``partial_pulls`` a Pull brings fewer messages at random, and a seek takes effect
    ``seek_seconds`` after its answer.
    """

    def __init__(
        self,
        resources: Resources,
        slots: StreamSlots,
        *,
        partial_pulls: bool = False,
        seek_seconds: float = 0.0,
    ) -> None:
        self._resources = resources
        self._slots = slots
        self._seek_seconds = seek_seconds
        self._dice = random.Random(1) if partial_pulls else None  # noqa: S311 - no secret

    def handler(self) -> Handler:
        """Return what a gRPC server takes; methods that are not in it are UNIMPLEMENTED."""
        resources, show = self._resources, self._resources.with_topic_retention
        methods = {
            "Pull": answer_bytes(self.pull),
            "StreamingPull": grpc.stream_stream_rpc_method_handler(self.streaming_pull),
            "Acknowledge": answer_bytes(self.acknowledge),
            "ModifyAckDeadline": answer_bytes(self.modify_ack_deadline),
            "CreateSubscription": answer(
                types.Subscription.pb(), lambda request: show(resources.create_subscription(request))
            ),
            "GetSubscription": answer(
                types.GetSubscriptionRequest.pb(),
                lambda request: show(resources.subscription(request.subscription).config),
            ),
            "UpdateSubscription": answer(
                types.UpdateSubscriptionRequest.pb(),
                lambda request: show(
                    resources.update_subscription(request.subscription, list(request.update_mask.paths))
                ),
            ),
            "ModifyPushConfig": answer(types.ModifyPushConfigRequest.pb(), self._modify_push_config),
            "DeleteSubscription": answer(
                types.DeleteSubscriptionRequest.pb(),
                lambda request: resources.delete_subscription(request.subscription),
            ),
            "ListSubscriptions": answer(types.ListSubscriptionsRequest.pb(), self._list_subscriptions),
            "CreateSnapshot": answer(
                types.CreateSnapshotRequest.pb(),
                lambda request: resources.create_snapshot(
                    request.name, request.subscription, dict(request.labels)
                ),
            ),
            "GetSnapshot": answer(
                types.GetSnapshotRequest.pb(), lambda request: resources.snapshot(request.snapshot).config
            ),
            "UpdateSnapshot": answer(
                types.UpdateSnapshotRequest.pb(),
                lambda request: resources.update_snapshot(request.snapshot, list(request.update_mask.paths)),
            ),
            "DeleteSnapshot": answer(
                types.DeleteSnapshotRequest.pb(), lambda request: resources.delete_snapshot(request.snapshot)
            ),
            "ListSnapshots": answer(types.ListSnapshotsRequest.pb(), self._list_snapshots),
            "Seek": answer(types.SeekRequest.pb(), self._seek),
        }
        return grpc.method_handlers_generic_handler(_SERVICE, methods)

    # -- messages

    def pull(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        """Return a PullResponse: what is there now, or after a bounded wait, perhaps nothing.

        Messages are leased only while the client still waits and has time to receive them.
        """
        request = types.PullRequest.pb().FromString(raw)
        if request.max_messages <= 0:
            raise StatusError.invalid("The value for max_messages must be greater than 0.")
        subscription = self._resources.subscription(request.subscription).working
        max_messages = request.max_messages
        if self._dice is not None:
            max_messages = self._dice.randrange(min(max_messages, _PARTIAL_MESSAGES) + 1)
            if not max_messages:
                return b""
        give_up = time.monotonic()
        if not request.return_immediately and self._slots.may_wait():
            give_up += _read_patience(context)
        if subscription.log.is_answering:
            # The publisher may have its answer before this server has noted that it has.
            give_up = max(give_up, time.monotonic() + _ANSWERING_SECONDS)
        bell = threading.Event()
        while context.is_active():
            bell.clear()
            response = subscription.take(max_messages, MAX_PULL_BYTES)
            left = give_up - time.monotonic()
            if response or left <= 0 or self._slots.closed:
                return response
            with self._slots.waiting():
                subscription.wait(bell, left, lambda: self._slots.closed)
            self._resources.subscription(request.subscription)
        # The bell may have rung for a message that this client does not want any more.
        subscription.notify()
        return b""

    def acknowledge(self, raw: bytes, _context: grpc.ServicerContext) -> bytes:
        """Take messages for done; when it returns, a kill -9 does not bring them back."""
        name, ids = wire.parse_acknowledge(raw)
        subscription = self._resources.subscription(name).working
        if not len(ids):
            raise StatusError.invalid("No ack ids specified.")
        subscription.acknowledge(ids)
        return b""

    def modify_ack_deadline(self, raw: bytes, _context: grpc.ServicerContext) -> bytes:
        """Give consumers more time, or with 0 seconds the messages back at once."""
        name, ids, seconds = wire.parse_modify_ack_deadline(raw)
        subscription = self._resources.subscription(name).working
        if not 0 <= seconds <= MAX_ACK_DEADLINE_SECONDS:
            raise StatusError.invalid(
                f"Invalid ack deadline given (ack_deadline_seconds={seconds}). "
                f"The deadline must be between 0 and {MAX_ACK_DEADLINE_SECONDS} seconds."
            )
        if not len(ids):
            raise StatusError.invalid("No ack ids specified.")
        subscription.modify_ack_deadline(ids, seconds)
        return b""

    def streaming_pull(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Deliver on an open stream until the client ends it or the subscription is deleted."""
        try:
            yield from run_streaming_pull(self._resources, self._slots, requests, context)
        except StatusError as exc:
            abort(context, exc)

    # -- resources

    def _modify_push_config(self, request: Any) -> None:
        """An empty configuration means pulling, which every subscription here does."""
        self._resources.subscription(request.subscription)
        if request.push_config.ListFields():
            raise StatusError.unimplemented("push subscriptions")

    def _list_subscriptions(self, request: Any) -> Any:
        found = self._resources.list_configs(self._resources.subscriptions, request.project)
        shown = [self._resources.with_topic_retention(config) for config in found]
        return render_page(request, types.ListSubscriptionsResponse.pb(), "subscriptions", shown)

    def _list_snapshots(self, request: Any) -> Any:
        found = self._resources.list_configs(self._resources.snapshots, request.project)
        return render_page(request, types.ListSnapshotsResponse.pb(), "snapshots", found)

    def _seek(self, request: Any) -> None:
        """Seek; delivery follows "eventually", in up to a minute, and what is acknowledged may come meanwhile.

        See "Eventual consistency of Seek operations" on https://cloud.google.com/pubsub/docs/replay-overview
        """
        target, seconds = request.WhichOneof("target"), self._seek_seconds
        if target == "snapshot":
            self._resources.seek_to_snapshot(request.subscription, request.snapshot, effect_seconds=seconds)
        elif target == "time":
            time_us = request.time.ToMicroseconds()
            self._resources.seek_to_time(request.subscription, time_us, effect_seconds=seconds)
        else:
            raise StatusError.invalid("A seek needs a time or a snapshot.")


def _read_patience(context: grpc.ServicerContext) -> float:
    """Return how long a pull may wait, so that its answer is there before the client's deadline."""
    remaining = cast("float | None", context.time_remaining())
    if remaining is None:
        return PULL_WAIT_SECONDS
    return float(max(0.0, min(PULL_WAIT_SECONDS, remaining - _ANSWER_SECONDS)))
