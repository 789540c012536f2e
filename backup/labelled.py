"""Attaches the topics with a label to the backup."""

from typing import Final, Self

import structlog

from connectors.pubsub.client import PubSub
from jobs.loop import BackgroundLoop
from model.errors import RefeedError
from model.message import backup_subscription_id, replay_token
from model.settings import Settings
from streams.status import StatusFile

_log = structlog.get_logger(__name__)

# Each look lists all topics and all subscriptions; labels rarely change.
_LOOK_SECONDS: Final = 15.0


class LabelledTopics:
    """Attaches every topic with the label in REFEED_BACKUP_LABEL, also topics that get the label later.

    A topic that can't be attached is logged and tried again; no topic is ever detached. Without the setting this
    does nothing. Attached topics are noted in ``status``, from which the agent writes their histories.
    """

    def __init__(self, settings: Settings, status: StatusFile) -> None:
        self._settings = settings
        self._status = status
        self.loop = BackgroundLoop("labelled-topics", self._look, every_seconds=_LOOK_SECONDS)

    def __enter__(self) -> Self:
        if self._settings.backup_label is not None:
            self.loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.stop()

    def _look(self) -> None:
        with PubSub(self._settings.project, self._settings.pubsub_address) as pubsub:
            self.attach_new(pubsub)

    def attach_new(self, pubsub: PubSub) -> list[str]:
        """Attach the topics with the label that are not attached yet; return them."""
        backups = [s for s in pubsub.list_subscriptions() if s.id == backup_subscription_id(s.topic)]
        attached = {s.topic for s in backups if not s.detached}
        new = []
        for topic in pubsub.list_topics(label=self._settings.backup_label):
            if topic in attached:
                continue
            try:
                pubsub.attach_backup(
                    topic,
                    token=replay_token(self._settings.replay_secret(), topic),
                    ack_deadline_seconds=self._settings.ack_deadline_seconds,
                )
            except RefeedError as exc:
                _log.warning("topic_not_attached", topic=topic, code=exc.code, error=exc.message)
                continue
            _log.info("topic_attached", topic=topic)
            self._status.note_attached(topic)
            new.append(topic)
        return new
