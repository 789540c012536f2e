"""``refeed publish``: messages from a file to their topics."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.invocation import command_settings, open_deployment
from cli.lines import check_input, read_messages
from cli.options import JsonObjectOption
from cli.terminal import err, print_json
from model.errors import LineError, RefeedError, SubscriptionNotFoundError
from model.message import Message, backup_subscription_id, parse_resource_id
from model.naming import counted

if TYPE_CHECKING:
    from model.settings import Settings

_BATCH_MESSAGES: Final = 1000


def publish(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A file with one JSON object in each line. The file can be gzipped. - means stdin.",
            show_default=False,
        ),
    ],
    topic: Annotated[
        str | None, typer.Option(help="Publish all messages to this topic, and ignore the topics in FILE.")
    ] = None,
    as_json: JsonObjectOption = False,
) -> None:
    """Publish the messages of FILE. Each line is a JSON object.

    A line has the fields `topic`, `attributes`, `data` or `data_base64`, and `ordering_key`. A string in `data` is
    published as it is, and any other value as JSON. On a local Pub/Sub server, the command creates missing topics.
    If a line is faulty, the command ends. The lines before the faulty line are published.
    """
    if topic is not None:
        parse_resource_id(topic)
    check_input(file)
    settings = command_settings()
    published: dict[str, int] = {}
    try:
        for batch in publish_all(settings, read_messages(file, topic=topic)):
            published[batch.topic] = published.get(batch.topic, 0) + len(batch.ids)
    finally:
        total = sum(published.values())
        if as_json:
            print_json({"published": total, "topics": published})
        else:
            err.print(f"published {counted(total, 'message')} to {counted(len(published), 'topic')}")
            if loose := list(_find_loose(settings, published)):
                err.print(f"No backup is attached to {', '.join(loose)}, so nothing archives these messages.")
                err.print(f"To back up later messages: refeed attach {' '.join(loose)}")


def _find_loose(settings: "Settings", topics: Iterable[str]) -> Iterator[str]:
    """Yield the topics without a backup subscription, as far as the caller may look for one."""
    with open_deployment(settings).pubsub as admin:
        for topic in topics:
            try:
                found = admin.get_subscription(backup_subscription_id(topic))
            except SubscriptionNotFoundError:
                yield topic
            except RefeedError:
                return
            else:
                if found.detached:
                    yield topic


@dataclass(frozen=True, slots=True)
class PublishedBatch:
    """Messages of one topic that Pub/Sub has taken, and the ids it gave them, in the same order."""

    topic: str
    messages: list[Message]
    ids: list[str]


def publish_all(settings: "Settings", messages: Iterable[tuple[str, Message]]) -> Iterator[PublishedBatch]:
    """Publish ``messages`` in batches and yield each; within a topic they go out in their order.

    Raises:
        LineError: a line is bad; what stands before it is published.
        TopicNotFoundError: a topic does not exist and Pub/Sub is the real one.
        MessageRefusedError: Pub/Sub does not take a message.
        PubSubUnavailableError: nobody answers.
    """
    from connectors.pubsub.publish import Publisher

    waiting: dict[str, list[Message]] = {}
    publishers: dict[str, Any] = {}
    with open_deployment(settings).pubsub as admin:

        def send(topic: str) -> PublishedBatch:
            if topic not in publishers:
                if settings.is_embedded:
                    admin.create_topic(topic)
                publishers[topic] = Publisher(admin.channel, admin.topic_path(topic))
            batch = waiting.pop(topic)
            return PublishedBatch(topic, batch, publishers[topic].publish(batch))

        fault: LineError | None = None
        try:
            for topic, message in messages:
                batch = waiting.setdefault(topic, [])
                batch.append(message)
                if len(batch) == _BATCH_MESSAGES:
                    yield send(topic)
        except LineError as exc:
            fault = exc
        # What was read before a bad line goes out too.
        for topic in list(waiting):
            yield send(topic)
        if fault is not None:
            raise fault
