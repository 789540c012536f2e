"""Takes the messages that wait in a subscription."""

from typing import Any

import grpc
from google.pubsub_v1.types import pubsub as messages_pb


def receive_waiting(channel: grpc.Channel, subscription: str, *, idle_seconds: float = 2.0) -> list[Any]:
    """Take every message that waits, in the order of their arrival; none for a while means that none is left."""
    pull = channel.unary_unary(
        "/google.pubsub.v1.Subscriber/Pull",
        request_serializer=messages_pb.PullRequest.pb().SerializeToString,
        response_deserializer=messages_pb.PullResponse.pb().FromString,
    )
    acknowledge = channel.unary_unary(
        "/google.pubsub.v1.Subscriber/Acknowledge",
        request_serializer=messages_pb.AcknowledgeRequest.pb().SerializeToString,
        response_deserializer=None,
    )
    request = messages_pb.PullRequest.pb()(subscription=subscription, max_messages=1000)
    received: list[Any] = []
    while True:
        try:
            found = pull(request, timeout=idle_seconds).received_messages
        except grpc.RpcError as exc:
            assert exc.code() is grpc.StatusCode.DEADLINE_EXCEEDED, exc  # noqa: PT017
            return received
        if not found:
            return received
        ids = [m.ack_id for m in found]
        acknowledge(messages_pb.AcknowledgeRequest.pb()(subscription=subscription, ack_ids=ids), timeout=10)
        received += [m.message for m in found]
