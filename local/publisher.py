"""google.pubsub.v1.Publisher over gRPC."""

import threading
from typing import Any, Final

import grpc
from google.protobuf import empty_pb2
from google.pubsub_v1 import types

from local.answers import Handler, answer, answer_bytes, cut_page
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
        methods = {
            "Publish": answer_bytes(self.publish),
            "CreateTopic": answer(types.Topic.pb(), self._resources.create_topic),
            "GetTopic": answer(types.GetTopicRequest.pb(), self._get_topic),
            "UpdateTopic": answer(types.UpdateTopicRequest.pb(), self._update_topic),
            "DeleteTopic": answer(types.DeleteTopicRequest.pb(), self._delete_topic),
            "ListTopics": answer(types.ListTopicsRequest.pb(), self._list_topics),
            "ListTopicSubscriptions": answer(types.ListTopicSubscriptionsRequest.pb(), self._list_subscriptions),
            "DetachSubscription": answer(types.DetachSubscriptionRequest.pb(), self._detach_subscription),
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

    def _get_topic(self, request: Any) -> Any:
        return self._resources.topic(request.topic).config

    def _update_topic(self, request: Any) -> Any:
        return self._resources.update_topic(request.topic, list(request.update_mask.paths))

    def _delete_topic(self, request: Any) -> Any:
        self._resources.delete_topic(request.topic)
        return empty_pb2.Empty()

    def _list_topics(self, request: Any) -> Any:
        prefix = request.project + "/topics/"
        topics = [topic.config for name, topic in list(self._resources.topics.items()) if name.startswith(prefix)]
        page, token = cut_page(topics, request.page_size, request.page_token)
        return types.ListTopicsResponse.pb()(topics=page, next_page_token=token)

    def _list_subscriptions(self, request: Any) -> Any:
        self._resources.topic(request.topic)
        found = [
            entry.config
            for entry in list(self._resources.subscriptions.values())
            if entry.config.topic == request.topic and not entry.config.detached
        ]
        page, token = cut_page(found, request.page_size, request.page_token)
        names = [config.name for config in page]
        return types.ListTopicSubscriptionsResponse.pb()(subscriptions=names, next_page_token=token)

    def _detach_subscription(self, request: Any) -> Any:
        self._resources.detach_subscription(request.subscription)
        return types.DetachSubscriptionResponse.pb()()

    def _list_snapshots(self, request: Any) -> Any:
        self._resources.topic(request.topic)
        found = [s.config for s in list(self._resources.snapshots.values()) if s.config.topic == request.topic]
        page, token = cut_page(found, request.page_size, request.page_token)
        names = [config.name for config in page]
        return types.ListTopicSnapshotsResponse.pb()(snapshots=names, next_page_token=token)
