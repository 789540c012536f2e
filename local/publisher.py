"""google.pubsub.v1.Publisher over gRPC."""

import threading
from typing import Any, Final

import grpc
from google.pubsub_v1 import types

from local.answers import Handler, answer, answer_bytes, render_page
from local.intake import parse_publish
from local.resources import Resources
from local.wire import build_publish_response

_SERVICE: Final = "google.pubsub.v1.Publisher"


class PublisherService:
    """The calls on topics."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        # Requests that are taken apart side by side take the interpreter from each other: one at a time costs a
        # tenth less, and the next one is while this one is written.
        self._parsing = threading.Lock()

    def handler(self) -> Handler:
        """Return what a gRPC server takes; methods that are not in it are UNIMPLEMENTED."""
        resources = self._resources
        methods = {
            "Publish": answer_bytes(self.publish),
            "CreateTopic": answer(types.Topic.pb(), resources.create_topic),
            "GetTopic": answer(types.GetTopicRequest.pb(), lambda request: resources.topic(request.topic).config),
            "UpdateTopic": answer(
                types.UpdateTopicRequest.pb(),
                lambda request: resources.update_topic(request.topic, list(request.update_mask.paths)),
            ),
            "DeleteTopic": answer(
                types.DeleteTopicRequest.pb(), lambda request: resources.delete_topic(request.topic)
            ),
            "ListTopics": answer(types.ListTopicsRequest.pb(), self._list_topics),
            "ListTopicSubscriptions": answer(types.ListTopicSubscriptionsRequest.pb(), self._list_subscriptions),
            "DetachSubscription": answer(
                types.DetachSubscriptionRequest.pb(),
                lambda request: resources.detach_subscription(request.subscription),
            ),
            "ListTopicSnapshots": answer(types.ListTopicSnapshotsRequest.pb(), self._list_snapshots),
        }
        return grpc.method_handlers_generic_handler(_SERVICE, methods)

    def publish(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Store a PublishRequest's messages and return their ids; after that a kill -9 loses none of them.

        They are delivered when the answer is on its way, so that no consumer has a message before its publisher
        has the id.
        """
        with self._parsing:
            name, bodies = parse_publish(request)
        first_id, deliver = self._resources.store(name, bodies)
        if not context.add_callback(deliver):
            deliver()
        return build_publish_response(first_id, len(bodies))

    def _list_topics(self, request: Any) -> Any:
        topics = self._resources.list_configs(self._resources.topics, request.project)
        return render_page(request, types.ListTopicsResponse.pb(), "topics", topics)

    def _list_subscriptions(self, request: Any) -> Any:
        self._resources.topic(request.topic)
        found = [
            entry.config
            for entry in list(self._resources.subscriptions.values())
            if entry.config.topic == request.topic and not entry.config.detached
        ]
        response = types.ListTopicSubscriptionsResponse.pb()
        return render_page(request, response, "subscriptions", found, names=True)

    def _list_snapshots(self, request: Any) -> Any:
        self._resources.topic(request.topic)
        found = [s.config for s in list(self._resources.snapshots.values()) if s.config.topic == request.topic]
        return render_page(request, types.ListTopicSnapshotsResponse.pb(), "snapshots", found, names=True)
