"""``refeed attach`` and ``refeed detach``: what is backed up, and what no longer is."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from cli.histories import note_event
from cli.invocation import command_settings, open_deployment
from cli.options import JsonArrayOption, YesOption
from cli.parameters import parse_label
from cli.terminal import confirm, err, out, print_found, print_json
from model.errors import InputError, TopicNotFoundError
from model.message import backup_subscription_id, parse_resource_id, replay_filter, replay_token
from model.naming import did_you_mean

if TYPE_CHECKING:
    from inventory.backups import AttachedTopic
    from model.settings import Settings

TopicsArgument = Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="Ids of topics.")]
LabelOption = Annotated[
    str | None, typer.Option("--label", metavar="KEY=VALUE", help="Select all topics that have this label.")
]


def attach(
    topics: TopicsArgument = None,
    *,
    label: LabelOption = None,
    exactly_once: Annotated[
        bool,
        typer.Option(
            "--exactly-once",
            help="Use exactly-once delivery. Pub/Sub then confirms each acknowledgement, which is slower.",
        ),
    ] = False,
    terraform: Annotated[
        bool, typer.Option("--terraform", help="Attach nothing, and print variables for deploy/terraform instead.")
    ] = False,
    update: Annotated[
        bool,
        typer.Option(
            "--update", help="Give an existing subscription the settings that a new subscription would have."
        ),
    ] = False,
    as_json: JsonArrayOption = False,
) -> None:
    """Back up topics from now on: create a backup subscription for each topic.

    The subscription's filter excludes Refeed's own replays. A running backup stream finds the subscription
    within seconds. On a local Pub/Sub server, the command creates missing topics. If a topic is already attached,
    the command compares the settings of its subscription with the settings of a new subscription, and prints the
    differences. If REFEED_BACKUP_LABEL is set, the backup stream attaches all topics with that label.
    """
    found = []
    settings = command_settings()
    wanted = _chosen_topics(settings, topics, label)
    if terraform:
        secret = settings.replay_secret()
        filters = {topic: replay_filter(replay_token(secret, parse_resource_id(topic))) for topic in wanted}
        print_json({"backups": filters, "ack_deadline_seconds": settings.ack_deadline_seconds})
        return
    with open_deployment(settings) as deployment:
        for attached in attach_topics(settings, wanted, exactly_once=exactly_once, update=update):
            subscription = attached.subscription
            if attached.is_new:
                note_event(deployment, "topic", subscription.topic, f"attached, through {subscription.id}")
            found.append(
                {
                    "topic": subscription.topic,
                    "subscription": subscription.id,
                    "filter": subscription.filter,
                    "differences": [str(difference) for difference in attached.differences],
                    "is_topic_new": attached.is_topic_new,
                }
            )
            if not as_json:
                _print_attached(attached)
    if as_json:
        print_json(found)


def _print_attached(attached: "AttachedTopic") -> None:
    subscription = attached.subscription
    if attached.is_topic_new:
        out.print(f"{subscription.topic} did not exist, and was created")
    if attached.meant:
        err.print(f" {attached.meant} Then undo this: refeed detach {subscription.topic}")
    out.print(f"{subscription.topic} is backed up through {subscription.id}")
    for difference in attached.differences:
        err.print(f"  {difference}; use --update to change this")


def attach_topics(
    settings: "Settings", topics: Sequence[str], *, exactly_once: bool = False, update: bool = False
) -> Iterator["AttachedTopic"]:
    """Attach ``topics`` one by one and yield their backup subscriptions.

    Raises:
        InvalidNameError: one is no topic id; then none is attached.
        TopicNotFoundError: one does not exist and Pub/Sub is the real one.
        SubscriptionMismatchError: one is attached with another deployment's secret.
    """
    from inventory.backups import attach_topic

    for topic in topics:
        parse_resource_id(topic)
    with open_deployment(settings).pubsub as pubsub:
        # Real Pub/Sub refuses a name that is not there.
        known = pubsub.list_topics() if settings.is_embedded else []
        for topic in topics:
            is_new = settings.is_embedded and pubsub.create_topic(topic)
            attached = attach_topic(
                pubsub,
                topic,
                token=replay_token(settings.replay_secret(), topic),
                ack_deadline_seconds=settings.ack_deadline_seconds,
                exactly_once=exactly_once,
                update=update,
            )
            yield replace(attached, is_topic_new=is_new, meant=did_you_mean(topic, known) if is_new else "")


def detach(
    topics: TopicsArgument = None,
    *,
    label: LabelOption = None,
    yes: YesOption = False,
    as_json: JsonArrayOption = False,
) -> None:
    """Stop backing up topics: delete their backup subscriptions and the pending messages in them.

    Archived messages stay. If a topic has the label in REFEED_BACKUP_LABEL, the backup stream attaches the topic
    again.
    """
    settings = command_settings()
    wanted = _chosen_topics(settings, topics, label)
    with open_deployment(settings) as deployment:
        pubsub = deployment.pubsub
        # All are there before one is gone.
        ids = [pubsub.get_subscription(backup_subscription_id(parse_resource_id(topic))).id for topic in wanted]
        if ids and not yes:
            confirm(f"Delete {', '.join(ids)}? Pending messages that are not archived are lost.")
        for topic, subscription in zip(wanted, ids, strict=True):
            pubsub.delete_subscription(subscription)
            note_event(deployment, "topic", topic, f"detached, {subscription} deleted")
    print_found(
        [{"topic": topic, "subscription": subscription} for topic, subscription in zip(wanted, ids, strict=True)],
        lambda found: [f"{each['topic']} is no longer backed up" for each in found],
        as_json=as_json,
    )


def _chosen_topics(settings: "Settings", topics: Sequence[str] | None, label: str | None) -> list[str]:

    if label is None:
        if not topics:
            raise InputError("Give the id of a topic, or select topics with --label KEY=VALUE.")
        return list(topics)
    pair = parse_label(label)
    with open_deployment(settings).pubsub as pubsub:
        found = pubsub.list_topics(label=pair)
    if not found and not topics:
        raise TopicNotFoundError(f"No topic in the project {settings.project} has the label {label}.", label=label)
    return list(dict.fromkeys([*(topics or ()), *found]))
