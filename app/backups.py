"""Wires what begins and ends the backup of topics."""

from connectors.pubsub.client import PubSub
from inventory.backups import TopicBackups
from model.settings import Settings


def assemble_topic_backups(settings: Settings, pubsub: PubSub) -> TopicBackups:
    """Return what attaches and detaches topics of this deployment; ``pubsub`` stays open when it closes."""
    return TopicBackups(
        pubsub,
        secret=settings.replay_secret(),
        ack_deadline_seconds=settings.ack_deadline_seconds,
        creates_topics=settings.is_embedded,
    )
