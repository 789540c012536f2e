"""Reads what Amazon SNS posts: who sent it, which topic it is for, and the event or confirmation in it."""

import asyncio
import json
import re
import uuid
from collections.abc import Callable, Container, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from collector.door import check_basic
from collector.event import caller_attributes, cut_attributes
from collector.payload import check_json
from collector.request import CollectorRequest
from collector.settings import SnsSection, SnsTopicSection
from connectors.sns.client import SnsClient
from connectors.sns.signature import is_signed
from local.files import replace_file, sync_folder
from model.errors import ForbiddenError, RequestInvalidError, SnsUncheckedError, TopicUnknownError

_LOG: Final = structlog.get_logger()
_CONFIRMATIONS: Final = ("SubscriptionConfirmation", "UnsubscribeConfirmation")
_REQUIRED: Final = (
    "MessageId",
    "TopicArn",
    "Message",
    "Timestamp",
    "SignatureVersion",
    "Signature",
    "SigningCertURL",
)
# SNS takes messages of 256 KiB with their attributes (https://docs.aws.amazon.com/general/latest/gr/sns.html); in
# its JSON a byte may have six.
MAX_SNS_BODY_BYTES: Final = 2 * 1024 * 1024
# Anybody can send JSON that takes long to read: what is larger is read beside the event loop, one at a time.
_QUICK_BYTES: Final = 32 * 1024
# The text that is signed has no quotes: with lines in these fields, one text would be that of several messages.
_SHAPES: Final = {
    "MessageId": re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"),
    "Timestamp": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z"),
    "Subject": re.compile(r"[^\r\n]*"),
    "Token": re.compile(r"[\x21-\x7e]*"),
    "SubscribeURL": re.compile(r"[\x21-\x7e]*"),
}
# This machine's clock may be slower than that of AWS by this much.
_AHEAD: Final = timedelta(minutes=15)


class Notice(NamedTuple):
    """A notification whose sender is known: its payload, and the attributes that each of its events gets."""

    topic_arn: str
    message_id: str
    data: bytes
    attributes: dict[str, str]

    def event_uuid(self, index: int) -> str:
        """Return the id of the event at ``index`` of the payload: the same one each time that SNS sends it.

        Example:
            >>> message_id = "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324"
            >>> Notice("arn:aws:sns:eu-west-1:123456789012:orders", message_id, b"1", {}).event_uuid(0)
            '4a3081c8-3db1-52a6-abfb-c53155fcadd3'
        """
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.topic_arn}/{self.message_id}/{index}"))


class SnsRoute:
    """Takes notifications of the topics on a map, for the Pub/Sub topics that the map gives each.

    AWS signs everybody's topics, so a valid signature says only that SNS sent a message; the map says whose topics
    count. It is asked for every type of message, confirmations too.
    """

    def __init__(
        self,
        settings: SnsSection,
        client: SnsClient | None = None,
        *,
        folder: Path,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._settings = settings
        self._client = client or SnsClient()
        self._clock = clock
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="sns")
        self.unsubscribed = UnsubscribedTopics(folder / "unsubscribed.json", settings.topics)

    async def close(self) -> None:
        """Close the connections to SNS."""
        self._reader.shutdown(wait=False, cancel_futures=True)
        await self._client.close()

    def find_topic(self, request: CollectorRequest) -> str:
        """Return the Pub/Sub topic that the request's one parameter names.

        Raises:
            RequestInvalidError: there is another parameter, or not exactly one topic.
            TopicUnknownError: no SNS topic may send to it.
        """
        parameters = request.parameters()
        if [name for name, _ in parameters] != ["topic"]:
            message = "The URL of the subscription must have exactly one parameter: /sns?topic=NAME."
            raise RequestInvalidError.of("parameters_invalid", message, "query:topic")
        topic = parameters[0][1]
        if topic not in self._settings.pubsub_topics:
            raise TopicUnknownError(f"The collector does not accept SNS messages for {topic[:80]!r}.")
        return topic

    async def read(self, request: CollectorRequest, body: bytes, topic: str) -> Notice | None:
        """Return the notification in a request; None for a confirmation, which is done with.

        Raises:
            RequestInvalidError: it is no message of SNS.
            UnauthenticatedError: the SNS topic has credentials, and they are missing or others.
            ForbiddenError: the SNS topic may not send to ``topic``, or is not on the map; the signature is not
                valid, the message too old, or a URL leads elsewhere; a raw message has no credentials.
            SnsUncheckedError: none of this can be found out now, or the subscription is not confirmed.
        """
        if request.header(b"x-amz-sns-rawdelivery").lower() == "true":
            return self._read_raw(request, body, topic)
        # SNS names its topic in a header too (https://docs.aws.amazon.com/sns/latest/dg/http-header.html). It
        # proves nothing, and spares reading what is certainly for somebody else.
        if named := request.header(b"x-amz-sns-topic-arn"):
            self._find(named, topic)
        if len(body) > _QUICK_BYTES:
            loop = asyncio.get_running_loop()
            message = await loop.run_in_executor(self._reader, _read_envelope, body)
        else:
            message = _read_envelope(body)
        arn = message["TopicArn"]
        section = self._find(arn, topic)
        if section.password:
            check_basic(request, section.username, section.password)
        key = await self._client.signing_key(arn, message["SigningCertURL"])
        if not is_signed(message, key):
            raise ForbiddenError("The message does not have a valid signature of SNS.")
        self._check_age(message["Timestamp"])
        if message["Type"] == "Notification":
            return Notice(arn, message["MessageId"], message["Message"].encode(), _attributes(message))
        await self._take_confirmation(message)
        return None

    def _read_raw(self, request: CollectorRequest, body: bytes, topic: str) -> Notice:
        """Return a message that came without its envelope, and so without a signature and a time."""
        arn, message_id = request.header(b"x-amz-sns-topic-arn"), request.header(b"x-amz-sns-message-id")
        section = self._find(arn, topic)
        if not section.password:
            raise ForbiddenError(
                "Messages with raw delivery have no signature. Give the SNS topic a username and a "
                "password in the collector's settings, and in the subscription's URL. Or turn raw "
                "delivery off."
            )
        check_basic(request, section.username, section.password)
        if not _SHAPES["MessageId"].fullmatch(message_id):
            raise _invalid("MessageId", "The header x-amz-sns-message-id is not an id of SNS.")
        return Notice(arn, message_id, body, {"sns_topic_arn": arn, "sns_message_id": message_id})

    def _find(self, arn: str, topic: str) -> SnsTopicSection:
        section = self._settings.topics.get(arn)
        if section is None or topic not in section.topics:
            raise ForbiddenError("The SNS topic may not send to this topic.")
        return section

    def source(self, notice: Notice) -> str:
        """Return the ``source`` of a notification's events."""
        return self._settings.topics[notice.topic_arn].source

    def _check_age(self, timestamp: str) -> None:
        try:
            at = datetime.fromisoformat(timestamp)
        except ValueError as exc:
            raise _invalid("Timestamp", "Timestamp is not a time.") from exc
        now = self._clock()
        if at > now + _AHEAD:
            # SNS signed it, so it is this machine's clock that is wrong: the message has to come again.
            raise SnsUncheckedError("The message's time is in the future. Check the clock of this machine.")
        if at < now - timedelta(seconds=self._settings.max_age_seconds):
            raise ForbiddenError(f"The message is too old: its time is {timestamp}.")

    async def _take_confirmation(self, message: Mapping[str, str]) -> None:
        arn = message["TopicArn"]
        if message["Type"] == "UnsubscribeConfirmation":
            # Its SubscribeURL would subscribe again: that is for the person who ended it, or did not mean to.
            self.unsubscribed.add(arn, message["Timestamp"])
            _LOG.warning("SNS ended a subscription and sends no more messages of this topic", topic_arn=arn)
            return
        await self._client.confirm(arn, message["SubscribeURL"])
        self.unsubscribed.remove(arn)
        _LOG.info("subscription to an SNS topic confirmed", topic_arn=arn)


class UnsubscribedTopics:
    """When SNS ended a subscription, by topic ARN; those that are not on the map any more are forgotten.

    Only a warning to operators, so a file that can't be read or written is logged and stops nothing.
    """

    def __init__(self, path: Path, known: Container[str]) -> None:
        self._path = path
        self._by_arn = {arn: at for arn, at in self._read().items() if arn in known}

    @property
    def by_arn(self) -> Mapping[str, str]:
        """The time of each end as SNS wrote it."""
        return self._by_arn

    def add(self, arn: str, timestamp: str) -> None:
        """Note that a subscription ended."""
        self._by_arn[arn] = timestamp
        self._write()

    def remove(self, arn: str) -> None:
        """Note that there is a subscription again."""
        if self._by_arn.pop(arn, None) is not None:
            self._write()

    def _read(self) -> dict[str, str]:
        try:
            found = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as exc:
            _LOG.warning(
                "the list of subscriptions that SNS ended can't be read", path=str(self._path), reason=str(exc)
            )
            return {}
        return {str(arn): str(at) for arn, at in found.items()} if isinstance(found, dict) else {}

    def _write(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(self._by_arn).encode())
            sync_folder(self._path.parent)
        except OSError as exc:
            _LOG.warning(
                "the list of subscriptions that SNS ended can't be written", path=str(self._path), reason=str(exc)
            )


def _read_envelope(body: bytes) -> dict[str, Any]:
    """Return a message of SNS as its JSON has it, the fields that are signed as texts of their shape.

    Raises:
        RequestInvalidError: it is none.
    """
    check_json(body)
    # Python converts no integer of more than 4,300 digits, and nothing of SNS is a number.
    message = json.loads(body, parse_int=float)
    kind = message.get("Type") if isinstance(message, dict) else None
    if kind not in ("Notification", *_CONFIRMATIONS):
        raise _invalid("Type", "The body is not a message of SNS.")
    if message.get("Subject") is None:
        message.pop("Subject", None)
    required = _REQUIRED if kind == "Notification" else (*_REQUIRED, "Token", "SubscribeURL")
    for name in {*required, *(_SHAPES.keys() & message.keys())}:
        shape = _SHAPES.get(name)
        value = message.get(name)
        if not isinstance(value, str) or (shape is not None and not shape.fullmatch(value)):
            raise _invalid(name, f"{name} is missing, or does not have the format that SNS uses.")
    return dict(message)


def _attributes(message: Mapping[str, Any]) -> dict[str, str]:
    """Return the attributes of a notification: SNS's own under ``sns_``, and those that its publisher gave it."""
    given = message.get("MessageAttributes") or {}
    if not isinstance(given, dict):
        raise _invalid("MessageAttributes", "MessageAttributes is not an object.")
    values: dict[str, str] = {}
    for name, each in given.items():
        value = each.get("Value") if isinstance(each, dict) else None
        if not isinstance(value, str):
            raise _invalid("MessageAttributes", f"The attribute {name[:80]!r} has no value.")
        values[name] = value
    # SNS allows a message of attributes, Pub/Sub 1,024 bytes of each.
    kept, cut = cut_attributes(values)
    facts = {
        "sns_topic_arn": message["TopicArn"],
        "sns_message_id": message["MessageId"],
        "sns_timestamp": message["Timestamp"],
    }
    if subject := message.get("Subject"):
        fitting, was_cut = cut_attributes({"sns_subject": subject})
        facts |= fitting
        cut += was_cut
    if cut:
        facts |= cut_attributes({"sns_cut": ",".join(cut)})[0]
    return facts | caller_attributes(kept.items())


def _invalid(name: str, message: str) -> RequestInvalidError:
    return RequestInvalidError.of("sns_message_invalid", message, f"/{name}")
