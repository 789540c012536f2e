"""The figures of a local server's subscriptions, of one project among several."""

from connectors.pubsub.client import PubSub
from connectors.pubsub.publish import Publisher
from connectors.pubsub.stats import read_stats
from local.server import PubSubServer
from model.message import Message


def test_a_subscription_of_another_project_with_the_same_name_is_another_one(tmp_path):
    with (
        PubSubServer(tmp_path) as server,
        PubSub("shop", server.emulator_host) as ours,
        PubSub("other", server.emulator_host) as theirs,
    ):
        for pubsub, count in ((ours, 1), (theirs, 3)):
            pubsub.create_topic("orders")
            pubsub.create_subscription("refeed-backup.orders", "orders")
            Publisher(pubsub.channel, pubsub.topic_path("orders")).publish([Message(b"x")] * count)

        def read() -> list[dict[str, int]]:
            return [
                {name: stats.messages for name, stats in (read_stats(one.channel, one.project) or {}).items()}
                for one in (ours, theirs)
            ]

        found = [{"refeed-backup.orders": 1}, {"refeed-backup.orders": 3}]
        assert read() == found
        theirs._subscriber.pull(subscription=theirs.subscription_path("refeed-backup.orders"), max_messages=1)
        assert read() == found, "a leased message is one of those that wait, not one more"
