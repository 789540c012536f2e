import asyncio
import base64
import json
import threading
import uuid

import pytest

from collector import sns
from collector.sns import SnsRoute, UnsubscribedTopics
from connectors.sns.client import SnsClient
from tests.collector.conftest import problem_of
from tests.collector.snsworld import ARN, CERTIFICATE_URL, HOST, SUBSCRIBE_URL, SnsWorld, body_of, timestamp

PASSWORD = "long-enough-a-secret"
BASIC = "Basic " + base64.b64encode(f"sns:{PASSWORD}".encode()).decode()
FAR = ("192.0.2.1", 5)
RAW = {"x_amz_sns_rawdelivery": "true", "x_amz_sns_topic_arn": ARN}
# One key for all: to make one takes a tenth of a second.
WORLD = SnsWorld()
STRANGER = SnsWorld()


@pytest.fixture
def world():
    WORLD.called.clear()
    WORLD.status = 200
    return WORLD


class Post:
    """A collector that takes one SNS topic, far from its senders, and posts to it."""

    def __init__(self, yard, world, folder):
        self.yard = yard
        self.folder = folder
        self.world = world
        self.app = self.start()

    def start(self, section="{topics: [TOPIC]}", yaml="", *topics):
        found = self.yard.settings(f"{{sns: {{topics: {{'{ARN}': {section}}}}}{yaml}}}", *topics)
        app = self.yard.collector(found, is_open=False)
        app._sns = SnsRoute(found.sns, SnsClient(self.world.transport), folder=self.folder)
        self.app = app
        return app

    def __call__(self, message, topic=None, **headers):
        content = message if isinstance(message, bytes) else body_of(message)
        # What SNS sends: https://docs.aws.amazon.com/sns/latest/dg/http-header.html
        named = {"content_type": "text/plain; charset=UTF-8"} | headers
        to = f"/sns?topic={topic or self.yard.topic}"
        return self.yard.post(content, app=self.app, to=to, client=FAR, **named)


@pytest.fixture
def post(yard, world, monkeypatch, tmp_path):
    monkeypatch.setenv("SNS_PASSWORD", PASSWORD)
    return Post(yard, world, tmp_path / "collector")


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_notification_becomes_an_event_with_its_message_byte_for_byte(post, version):
    text = ' {"b" : 1.10, "a":"\\u00e9é\u2028"}\n'
    attributes = {"shop": {"Type": "String", "Value": "se"}, "uuid": {"Type": "String", "Value": "mine"}}
    message = post.world.notification(text, version=version, Subject="Hällo", MessageAttributes=attributes)
    answer = post(message)
    assert (answer.status_code, answer.json()) == (200, {"taken": 1})
    [event] = post.yard.pull(1)
    assert event.data == text.encode()
    found = dict(event.attributes)
    assert found.pop("timestamp")
    assert found == {
        "topic": post.yard.topic,
        "source": "sns",
        "uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{ARN}/{message['MessageId']}/0")),
        "content_type": "application/json",
        "sns_topic_arn": ARN,
        "sns_message_id": message["MessageId"],
        "sns_timestamp": message["Timestamp"],
        "sns_subject": "Hällo",
        "shop": "se",
        "caller_uuid": "mine",
    }


def test_a_message_that_comes_again_has_the_same_ids_and_each_item_has_its_own(post):
    message = post.world.notification('[{"n": 1}, {"n": 2},{"n":3}]')
    assert [post(message).json() for _ in range(2)] == [{"taken": 3}] * 2
    events = post.yard.pull(6)
    ids = {(event.data, event.attributes["uuid"]) for event in events}
    assert {data for data, _ in ids} == {b'{"n": 1}', b'{"n": 2}', b'{"n":3}'}
    assert len(ids) == len({found for _, found in ids}) == 3


def test_the_certificate_is_fetched_once_for_many_messages(post):
    for _ in range(3):
        assert post(post.world.notification()).status_code == 200
    assert post.world.called == [CERTIFICATE_URL]
    post.yard.pull(3)


@pytest.mark.parametrize(
    "change",
    [
        {"Message": '{"a": 2}'},
        {"MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324"},
        {"Timestamp": timestamp(1)},
        {"Subject": "new"},
        {"Signature": ""},
        {"Signature": "%%%"},
        {"Signature": base64.b64encode(b"x" * 256).decode()},
        {"SignatureVersion": "1"},
        {"SignatureVersion": "3"},
    ],
)
def test_a_message_that_was_changed_is_refused(post, change):
    assert problem_of(post({**post.world.notification(), **change}))[:2] == (403, "forbidden")
    post.yard.pull(0)


def test_what_another_key_signed_is_refused(post):
    assert problem_of(post(STRANGER.notification()))[:2] == (403, "forbidden")
    post.yard.pull(0)


@pytest.mark.parametrize(
    "url",
    [
        f"http://{HOST}/a.pem",
        f"https://{HOST}:8443/a.pem",
        f"https://user@{HOST}/a.pem",
        f"https://{HOST}@evil.example/a.pem",
        f"https://{HOST}.evil.example/a.pem",
        f"https://evil.example/{HOST}/a.pem",
        f"https://{HOST}\\@evil.example/a.pem",
        f"https://{HOST}/a.pem?to=http://evil.example",
        f"https://{HOST}/a.pem#.pem",
        f"https://{HOST}/a\n.pem",
        "https://sns.us-east-1.amazonaws.com/a.pem",
        "https://sns.s3.amazonaws.com/a.pem",
        "https://sns.s3-eu-west-1.amazonaws.com/a.pem",
        "https://169.254.169.254/latest/meta-data/a.pem",
        "file:///etc/passwd.pem",
        "/a.pem",
        "",
    ],
)
def test_no_url_of_another_host_is_fetched(post, url):
    message = post.world.notification(SigningCertURL=url)
    assert problem_of(post(message))[:2] == (403, "forbidden")
    confirm = post.world.confirmation(
        SubscribeURL=url.replace("a.pem", f"?Action=ConfirmSubscription&TopicArn={ARN}")
    )
    # A line break is no URL at all.
    assert post(confirm).status_code in (403, 422)
    assert set(post.world.called) <= {CERTIFICATE_URL}


def test_a_redirect_is_not_followed(post):
    post.world.status = 302
    assert problem_of(post(post.world.notification()))[:2] == (503, "sns_unchecked")
    assert post.world.called == [CERTIFICATE_URL]


@pytest.mark.parametrize("kind", ["Notification", "SubscriptionConfirmation", "UnsubscribeConfirmation"])
def test_a_topic_that_is_not_on_the_map_is_refused_even_when_signed(post, kind):
    other = ARN.replace("orders", "others")
    message = (
        post.world.notification(TopicArn=other)
        if kind == "Notification"
        else post.world.confirmation(kind, TopicArn=other, SubscribeURL=SUBSCRIBE_URL.replace(ARN, other))
    )
    assert problem_of(post(message))[:2] == (403, "forbidden")
    assert post.world.called == []


@pytest.mark.parametrize("kind", ["Notification", "SubscriptionConfirmation", "UnsubscribeConfirmation"])
def test_a_topic_may_send_to_its_own_pubsub_topics_alone(post, kind):
    other = ARN.replace("orders", "members")
    section = f"{{topics: [TOPIC]}}, '{other}': {{topics: [members]}}"
    post.start(section, "", post.yard.topic, "members")
    message = post.world.notification() if kind == "Notification" else post.world.confirmation(kind)
    assert problem_of(post(message, topic="members"))[:2] == (403, "forbidden")
    assert post.world.called == []


@pytest.mark.parametrize(
    "query", ["", "topic=", "topic=none", "topic=a&topic=b", "topic=TOPIC&uuid=1", "Topic=TOPIC"]
)
def test_the_url_names_one_topic_and_nothing_else(post, query):
    to = f"/sns?{query.replace('TOPIC', post.yard.topic)}"
    answer = post.yard.post(body_of(post.world.notification()), app=post.app, to=to, client=FAR)
    assert answer.status_code in (404, 422)
    post.yard.pull(0)


def test_a_confirmation_is_confirmed_where_sns_says(post):
    assert post(post.world.confirmation()).status_code == 200
    assert post.world.called == [CERTIFICATE_URL, SUBSCRIBE_URL]
    post.yard.pull(0)


@pytest.mark.parametrize(
    "url",
    [
        f"https://{HOST}/?Action=Unsubscribe&TopicArn={ARN}",
        f"https://{HOST}/?Action=ConfirmSubscription&TopicArn={ARN}x",
        f"https://{HOST}/?Action=ConfirmSubscription&Action=x&TopicArn={ARN}",
    ],
)
def test_nothing_but_a_confirmation_of_the_topic_is_called(post, url):
    assert problem_of(post(post.world.confirmation(SubscribeURL=url)))[:2] == (403, "forbidden")
    assert post.world.called == [CERTIFICATE_URL]


def test_an_end_of_a_subscription_is_shown_after_a_restart_until_it_is_confirmed_again(post):
    message = post.world.confirmation("UnsubscribeConfirmation")
    assert post(message).status_code == 200
    # The end is not taken back.
    assert post.world.called == [CERTIFICATE_URL]
    post.start()
    assert unsubscribed(post) == {ARN: message["Timestamp"]}
    assert post(post.world.confirmation()).status_code == 200
    post.start()
    assert unsubscribed(post) == {}


def test_an_end_of_a_subscription_is_forgotten_with_its_topic(post, tmp_path):
    kept = UnsubscribedTopics(tmp_path / "kept.json", {ARN})
    kept.add(ARN, "2026-01-03T10:12:44.190Z")
    assert UnsubscribedTopics(tmp_path / "kept.json", {ARN}).by_arn == kept.by_arn != {}
    assert UnsubscribedTopics(tmp_path / "kept.json", {f"{ARN}-other"}).by_arn == {}


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff"])
def test_a_damaged_list_of_ended_subscriptions_stops_nothing(post, content):
    post.folder.mkdir()
    (post.folder / "unsubscribed.json").write_bytes(content)
    post.start()
    assert unsubscribed(post) == {}
    assert post(post.world.confirmation("UnsubscribeConfirmation")).status_code == 200
    assert set(unsubscribed(post)) == {ARN}


def test_an_end_that_can_t_be_kept_is_shown_by_this_process(post):
    post.folder.write_text("a file is in the way")
    post.start()
    assert post(post.world.confirmation("UnsubscribeConfirmation")).status_code == 200
    assert set(unsubscribed(post)) == {ARN}


def unsubscribed(post):
    """What an operator sees in /readyz."""
    post.app._door._is_open = True

    async def ready(client):
        return (await client.get("/readyz")).json()

    return post.yard.call(ready, post.app)["unsubscribed"]


def test_what_somebody_kept_and_sends_again_later_is_refused(post):
    # SNS itself tries for an hour.
    assert post(post.world.notification(Timestamp=timestamp(3700))).status_code == 200
    assert problem_of(post(post.world.notification(Timestamp=timestamp(7300))))[:2] == (403, "forbidden")
    post.yard.pull(1)


def test_a_signed_message_of_the_future_is_a_fault_of_our_clock(post):
    assert problem_of(post(post.world.notification(Timestamp=timestamp(-3600))))[:2] == (503, "sns_unchecked")


@pytest.mark.parametrize("world_of", [{"name": "shop.example"}, {"name": "sns.amazonaws.com.evil"}, {"days": -1}])
def test_a_certificate_that_does_not_count_is_no_fault_of_the_sender(post, world_of):
    post.world = SnsWorld(**world_of)
    post.start()
    answer = post(post.world.notification())
    assert problem_of(answer)[:2] == (503, "sns_unchecked")
    assert answer.headers["retry-after"]


def test_a_topic_that_pubsub_has_not_is_a_fault_of_ours(post):
    post.start("{topics: [away]}", "", "away")
    assert problem_of(post(post.world.notification(), topic="away"))[:2] == (503, "topic_not_found")


def test_a_slow_body_is_tried_again(post):
    post.app._settings = post.app._settings.model_copy(update={"body_timeout_seconds": 0.05})

    async def slow():
        yield b"{"
        await asyncio.sleep(5)

    async def work(client):
        return await client.post(f"/sns?topic={post.yard.topic}", content=slow())

    assert problem_of(post.yard.call(work, post.app, FAR))[:2] == (503, "sns_unchecked")


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"{}", b"\xff", b"[" * 5_000),
        *(b'{"Type": "Notification"}', b'{"Type": ["Notification"]}', b'{"Type": "Notification", "Type": "x"}'),
        pytest.param(b'{"Type": %s}' % (b"9" * 5_000), id="a number that Python does not convert"),
    ],
)
def test_what_is_no_message_of_sns_is_refused(post, body):
    assert post(body).status_code == 422
    assert post.world.called == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MessageId", "a\nMessageId\n22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324"),
        ("Subject", "a\nTimestamp\n2026-01-01T00:00:00Z"),
        ("Timestamp", "yesterday"),
        ("Timestamp", "2026-13-01T00:00:00Z"),
        ("Message", 1),
        ("TopicArn", [ARN]),
        ("MessageAttributes", []),
        ("MessageAttributes", ["a"]),
        ("MessageAttributes", {"a": "b"}),
    ],
)
def test_a_field_of_another_shape_is_refused(post, name, value):
    message = {**post.world.notification(), name: value}
    if isinstance(value, str) or name == "MessageAttributes":
        message = post.world.sign(message)
    answer = post(message)
    # An empty list of attributes is none.
    assert answer.status_code == (200 if value == [] else 422), answer.text
    post.yard.pull(1 if value == [] else 0)


def test_an_item_that_is_refused_keeps_back_no_other_and_the_whole_goes_to_the_dead_letters(post):
    answer = post(post.world.notification('[{"n": 1}, {"n": 1, "n": 2}]'))
    assert problem_of(answer) == (422, "request_invalid", ["json_name_repeated"])
    assert [event.data for event in post.yard.pull(1)] == [b'{"n": 1}']


def test_a_message_that_is_no_json_needs_a_raw_topic(post):
    assert post(post.world.notification("hello")).status_code == 422
    post.start(yaml=", topics: {TOPIC: {format: raw}}")
    assert post(post.world.notification("[hello")).status_code == 200
    [event] = post.yard.pull(1)
    assert (event.data, "content_type" in event.attributes) == (b"[hello", False)


def test_attributes_that_are_too_long_are_cut_and_named(post):
    attributes = {"long": {"Type": "Binary", "Value": "x" * 3000}}
    assert post(post.world.notification(MessageAttributes=attributes)).status_code == 200
    found = post.yard.pull(1)[0].attributes
    assert (len(found["long"]), found["sns_cut"]) == (1024, "long")


def test_raw_delivery_needs_credentials(post):
    headers = {**RAW, "x_amz_sns_message_id": str(uuid.uuid4())}
    assert problem_of(post(b'{"a": 1}', **headers))[:2] == (403, "forbidden")
    post.start("{topics: [TOPIC], username: sns, password: 'env:SNS_PASSWORD'}")
    refused = post(b'{"a": 1}', **headers)
    assert problem_of(refused)[:2] == (401, "unauthenticated")
    # SNS sends the credentials of its URL only after this.
    assert refused.headers["www-authenticate"].startswith("Basic ")
    for wrong in ("Basic " + base64.b64encode(b"sns:other").decode(), f"Bearer {PASSWORD}", "Basic"):
        assert post(b"{}", authorization=wrong, **headers).status_code == 401
    assert post(b'{"a": 1}', authorization=BASIC, **headers).status_code == 200
    assert post(b"{}", authorization=BASIC, **{**headers, "x_amz_sns_message_id": "1"}).status_code == 422
    assert post(b"{}", authorization=BASIC, **{**headers, "x_amz_sns_topic_arn": f"{ARN}s"}).status_code == 403
    [event] = post.yard.pull(1)
    named = f"{ARN}/{headers['x_amz_sns_message_id']}/0"
    assert (event.data, event.attributes["uuid"]) == (b'{"a": 1}', str(uuid.uuid5(uuid.NAMESPACE_URL, named)))
    assert post.world.called == []


def test_a_topic_with_credentials_wants_them_for_signed_messages_too(post):
    post.start("{topics: [TOPIC], username: sns, password: 'env:SNS_PASSWORD'}")
    assert post(post.world.notification()).status_code == 401
    assert post(post.world.confirmation()).status_code == 401
    assert post.world.called == []
    assert post(post.world.notification(), authorization=BASIC).status_code == 200
    post.yard.pull(1)


def test_sns_is_no_door_to_a_topic_for_others(post):
    assert post.yard.post(b"{}", app=post.app, client=FAR).status_code == 401
    post.app._settings.check_host("0.0.0.0")


def test_answers_count_for_their_topic(post):
    post(post.world.notification())
    post(b"{}")
    post.app._door._is_open = True

    async def figures(client):
        return (await client.get("/metrics")).text

    shown = post.yard.call(figures, post.app)
    assert f'refeed_collector_answers_total{{status="200",topic="{post.yard.topic}"}} 1.0' in shown
    assert 'refeed_collector_answers_total{status="422",topic="sns"} 1.0' in shown
    post.yard.pull(1)


def test_a_message_for_somebody_else_is_refused_before_it_is_read(post, world, monkeypatch):
    monkeypatch.setattr(sns, "_read_envelope", lambda body: pytest.fail("it is read"))
    answer = post(world.notification(), x_amz_sns_topic_arn="arn:aws:sns:eu-west-1:123456789012:theirs")
    assert problem_of(answer)[:2] == (403, "forbidden")
    post.yard.pull(0)


def test_what_is_larger_than_any_message_of_sns_is_refused_before_it_is_read(post, monkeypatch):
    monkeypatch.setattr(sns, "_read_envelope", lambda body: pytest.fail("it is read"))
    assert problem_of(post(b"[" + b"{}," * 700_000 + b"1]"))[:2] == (413, "body_too_large")
    post.yard.pull(0)


def test_a_large_message_is_read_beside_the_event_loop(post, world, monkeypatch):
    """SNS takes 256 KiB, and escapes of six characters in its JSON make a message of them six times as large."""
    text = json.dumps("\x01" * 40_000)
    threads = []

    def read(body):
        threads.append(threading.current_thread().name)
        return real(body)

    real = sns._read_envelope
    monkeypatch.setattr(sns, "_read_envelope", read)
    assert post(world.notification(text)).status_code == 200
    assert [each.data for each in post.yard.pull(1)] == [text.encode()]
    assert [name.split("_")[0] for name in threads] == ["sns"]
