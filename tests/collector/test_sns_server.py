"""An SNS server of somebody else's, moto's, signs notifications and posts them to a collector's socket."""

import asyncio
import uuid
from xml.etree import ElementTree as ET

import httpx
import pytest

from collector.sns import SnsRoute
from connectors.sns.client import SnsClient
from tests.collector.snsworld import HOST
from tests.worlds.bucket import moto_server

pytestmark = pytest.mark.cloud

_SIGNED = "AWS4-HMAC-SHA256 Credential=a/20260101/eu-west-1/sns/aws4_request, SignedHeaders=host, Signature=a"


@pytest.fixture(scope="module")
def moto(tmp_path_factory):
    with moto_server(tmp_path_factory.mktemp("moto")) as url:
        yield url


class Detour(httpx.AsyncHTTPTransport):
    """Brings calls of SNS's host to moto, under that host's name."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = httpx.URL(url)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        assert (request.url.scheme, request.url.host, request.headers["host"]) == ("https", HOST, HOST)
        # moto finds the service and its region by what signs a call.
        request.headers["authorization"] = _SIGNED
        request.url = request.url.copy_with(scheme="http", host=self._url.host, port=self._url.port)
        return await super().handle_async_request(request)


def call(moto: str, action: str, **parameters: str) -> ET.Element:
    """Call SNS's API, and return the answer."""
    form = {"Action": action, "Version": "2010-03-31", **parameters}
    answer = httpx.post(moto, data=form, headers={"authorization": _SIGNED}, timeout=30)
    assert answer.status_code == 200, answer.text
    return ET.fromstring(answer.text)


def text_of(answer: ET.Element, name: str) -> str:
    [found] = answer.findall(f".//{{*}}{name}")
    return found.text or ""


def test_what_moto_signs_and_posts_becomes_events(yard, moto, tmp_path):
    arn = text_of(call(moto, "CreateTopic", Name=yard.topic), "TopicArn")
    settings = yard.settings(f"sns: {{topics: {{'{arn}': {{topics: [TOPIC]}}}}}}")
    app = yard.collector(settings, is_open=False)
    app._sns = SnsRoute(settings.sns, SnsClient(Detour(moto)), folder=tmp_path)
    texts = ['{"n": 1.0,  "\\u00e9": "é"}', '[{"n": 2}, {"n": 3}]']

    def publish(port):
        endpoint = f"http://127.0.0.1:{port}/sns?topic={yard.topic}"
        call(moto, "Subscribe", TopicArn=arn, Protocol="http", Endpoint=endpoint)
        return [text_of(call(moto, "Publish", TopicArn=arn, Message=text), "MessageId") for text in texts]

    first, second = yard.serve(lambda port: asyncio.to_thread(publish, port), app=app)
    events = {event.data: dict(event.attributes) for event in yard.pull(3)}
    assert events.keys() == {texts[0].encode(), b'{"n": 2}', b'{"n": 3}'}
    named = [f"{arn}/{first}/0", f"{arn}/{second}/0", f"{arn}/{second}/1"]
    assert {each["uuid"] for each in events.values()} == {
        str(uuid.uuid5(uuid.NAMESPACE_URL, name)) for name in named
    }
    assert {each["sns_topic_arn"] for each in events.values()} == {arn}
