"""Requests that nobody thought of: each gets an answer, and none of them is a fault of ours."""

import asyncio
import json
import os
import zlib
from pathlib import Path
from urllib.parse import quote

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.delivery import Delivery, TopicState
from collector.door import Door
from collector.http import Collector
from collector.settings import CollectorSettings, LimitSection, SnsSection, SnsTopicSection, TopicSection
from collector.sns import SnsRoute
from connectors.pubsub.sending import decode_message
from connectors.sns.client import SnsClient
from model.message import MAX_ATTRIBUTE_KEY_BYTES, MAX_ATTRIBUTE_VALUE_BYTES, MAX_ATTRIBUTES, Message
from tests.collector.snsworld import ARN, SnsWorld, body_of
from tests.draws import equal_draws

__all__ = ["equal_draws"]
_EXAMPLES = int(os.environ.get("REFEED_FUZZ_MUTANTS", "100"))
_QUICK = settings(
    max_examples=_EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
WORLD = SnsWorld()
# Nothing is written there: no message that is drawn ends a subscription.
FOLDER = Path("/nonexistent")


class Memory(Delivery):
    """Takes everything, and keeps it as Pub/Sub would get it."""

    status = 200

    def __init__(self):
        self.taken: list[tuple[str, Message]] = []

    async def start(self):
        pass

    async def stop(self):
        pass

    async def deliver(self, topic, messages):
        self.taken += [(topic, decode_message(message)) for message in messages]
        return [None] * len(messages)

    def problems(self):
        return {}

    def waiting_events(self):
        return {}


class Everywhere:
    def knows(self, topic):
        return True

    async def find(self, topic):
        return TopicState.READ


SETTINGS = CollectorSettings(
    allowed=("orders", "raw", "shop.*"),
    topics={"raw": TopicSection(format="raw"), "shop.one": TopicSection(arrays="event")},
    rate_limits=LimitSection(),
    max_body_bytes=20_000,
    sns=SnsSection(topics={ARN: SnsTopicSection(topics=("orders",))}),
)

texts = st.text(max_size=30)
header_values = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=60)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
json_bodies = st.builds(
    lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"), json_values
)
bodies = st.one_of(
    st.binary(max_size=200),
    json_bodies,
    st.lists(json_bodies, max_size=5).map(b"\n".join),
    # Changed in one place: nearly right is what hides.
    st.builds(
        lambda body, at, byte: body[: at % (len(body) + 1)] + byte + body[at % (len(body) + 1) :],
        json_bodies,
        st.integers(0, 300),
        st.binary(min_size=1, max_size=2),
    ),
    json_bodies.map(lambda body: zlib.compress(body, wbits=31)),
)
paths = st.one_of(
    st.sampled_from(
        ["orders", "raw", "shop.one", "shop.two", "sns", "healthz", "readyz", "metrics", "none", "", "*"]
    ),
    texts.map(quote),
)
headers = st.fixed_dictionaries(
    {},
    optional={
        "content-type": st.sampled_from(["application/json", "application/x-ndjson", "text/plain", "a/b+json", ""])
        | header_values,
        "content-encoding": st.sampled_from(["gzip", "identity", "br"]) | header_values,
        "accept": st.sampled_from(["image/gif", "*/*"]) | header_values,
        "origin": header_values,
        "authorization": header_values,
        "x-forwarded-for": header_values,
        "x-amz-sns-rawdelivery": st.sampled_from(["true", "false"]),
        "x-amz-sns-topic-arn": st.sampled_from([ARN]) | header_values,
    },
)


def ask(method, path, query, sent, body):
    memory = Memory()
    app = Collector(
        SETTINGS,
        delivery=memory,
        directory=Everywhere(),  # type: ignore[arg-type]
        door=Door(SETTINGS, is_open=True),
        sns=SnsRoute(SETTINGS.sns, SnsClient(WORLD.transport), folder=FOLDER),
    )

    async def run():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            raw = [(name.encode(), value.encode("latin-1")) for name, value in sent.items()]
            return await client.request(method, f"/{path}", params=query or None, headers=raw, content=body)

    return asyncio.run(run()), memory.taken


def check_taken(taken):
    """Pub/Sub would take each of them, and none has somebody else's word for ours."""
    for topic, message in taken:
        assert message.attributes["topic"] == topic
        assert len(message.attributes["uuid"]) == 36
        assert len(message.attributes) <= MAX_ATTRIBUTES
        for name, value in message.attributes.items():
            assert 0 < len(name.encode()) <= MAX_ATTRIBUTE_KEY_BYTES
            assert len(value.encode()) <= MAX_ATTRIBUTE_VALUE_BYTES
            assert not name.startswith(("goog", "refeed_"))


@_QUICK
@given(
    method=st.sampled_from(["POST", "GET", "POST", "OPTIONS", "PUT", "HEAD"]),
    path=paths,
    query=st.lists(st.tuples(texts | st.sampled_from(["uuid", "topic", "goog1", "refeed_x"]), texts), max_size=4),
    sent=headers,
    body=bodies,
)
def test_every_request_gets_an_answer_that_is_no_fault_of_ours(method, path, query, sent, body):
    answer, taken = ask(method, path, query, sent, body)
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert taken == [], "what is refused is not taken"
        assert method == "HEAD" or answer.json()["status"] == answer.status_code
    elif method == "POST" and answer.status_code == 200 and path in ("raw", "shop.one"):
        [(_, message)] = taken
        # gzip is unpacked; all else is as it came.
        assert "content-encoding" in sent or message.data == body
    check_taken(taken)


@_QUICK
@given(
    field=st.sampled_from(
        [
            *("Type", "MessageId", "TopicArn", "Message", "Timestamp", "Signature", "SignatureVersion"),
            *("SigningCertURL", "Subject", "MessageAttributes"),
        ]
    ),
    value=json_values | st.just("Notification") | st.just(ARN),
    is_signed=st.booleans(),
)
def test_a_notification_with_any_field_is_taken_or_refused(field, value, is_signed):
    message = {**WORLD.notification(), field: value}
    if is_signed and field not in ("Type", "Signature", "SignatureVersion") and isinstance(value, str):
        message = {**WORLD.sign(message), "SigningCertURL": message["SigningCertURL"]}
    body = body_of(message)
    answer, taken = ask("POST", "sns", [("topic", "orders")], {}, body)
    assert answer.status_code in (200, 403, 413, 422), answer.text
    assert (answer.status_code == 200) == bool(taken)
    check_taken(taken)


@_QUICK
@given(body=bodies)
def test_no_body_is_mistaken_for_a_notification(body):
    answer, taken = ask("POST", "sns", [("topic", "orders")], {}, body)
    assert (answer.status_code, taken) == (422, [])
