"""``refeed attach``: give topics their backup subscription."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cli.invocation import command_settings
from cli.terminal import out, print_json
from model.message import parse_resource_id, replay_token
from model.settings import Settings

if TYPE_CHECKING:
    from connectors.pubsub.client import SubscriptionInfo


def attach(
    topics: Annotated[list[str], typer.Argument(help="Ids of topics.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """Back up TOPICS from now on: create a backup subscription for each.

    Its filter leaves out what Refeed itself replays. A running backup stream finds it within seconds; with a
    local Pub/Sub server missing topics are created. A topic that is attached already is left as it is.
    """
    attached = []
    for subscription in attach_topics(command_settings(), topics):
        attached.append(
            {"topic": subscription.topic, "subscription": subscription.id, "filter": subscription.filter}
        )
        if not as_json:
            out.print(f"{subscription.topic} is backed up through {subscription.id}", markup=False)
    if as_json:
        print_json(attached)


def attach_topics(settings: Settings, topics: Sequence[str]) -> Iterator["SubscriptionInfo"]:
    """Attach ``topics`` one by one and yield their backup subscriptions.

    Raises:
        InvalidNameError: one is no topic id; then none is attached.
        TopicNotFoundError: one does not exist and Pub/Sub is the real one.
        SubscriptionMismatchError: one is attached with another deployment's secret.
    """
    from connectors.pubsub.client import PubSub

    for topic in topics:
        parse_resource_id(topic)
    with PubSub(settings.project, settings.pubsub_emulator_host) as pubsub:
        for topic in topics:
            if settings.is_embedded:
                pubsub.create_topic(topic)
            yield pubsub.attach_backup(
                topic,
                token=replay_token(settings.replay_secret(), topic),
                ack_deadline_seconds=settings.ack_deadline_seconds,
            )
