"""Every route of the collector against its own description, with good and bad values, over a socket."""

import json
import threading
from typing import Any

import pytest
import requests
import schemathesis
import uvicorn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from urllib3.util import Retry

from cli.processes import free_port
from collector.door import Door
from collector.http import Collector
from collector.openapi import render_document
from collector.server import make_config
from collector.settings import ROUTES
from collector.sns import SnsRoute
from connectors.sns.client import SnsClient
from tests.collector.snsworld import SnsWorld, body_of
from tests.collector.test_fuzz import SETTINGS, Everywhere, Memory
from tests.draws import equal_draws
from tests.worlds.documented import CHECKS

__all__ = ["equal_draws"]
TOPICS = ["orders", "raw", "shop.one", "not-listed"]
DOCUMENT = json.loads(render_document(has_sns=True))


@schemathesis.serializer("application/x-ndjson")
def write_lines(_context: Any, value: Any) -> bytes:
    return value.encode("utf-8", "replace") if isinstance(value, str) else json.dumps(value).encode()


def operations() -> list[Any]:
    found: Any = schemathesis.openapi.from_dict(DOCUMENT)
    return [each.ok() for each in found.get_all_operations()]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    world = SnsWorld()
    app = Collector(
        SETTINGS,
        delivery=Memory(),
        directory=Everywhere(),  # type: ignore[arg-type]
        door=Door(SETTINGS, is_open=True),
        sns=SnsRoute(SETTINGS.sns, SnsClient(world.transport), folder=tmp_path_factory.mktemp("collector")),
    )
    port = free_port()
    server = uvicorn.Server(make_config(app, port=port, head_seconds=10))
    thread = threading.Thread(target=server.run, name="collector")
    thread.start()
    address = f"http://127.0.0.1:{port}"
    session = requests.Session()
    session.mount(address, requests.adapters.HTTPAdapter(max_retries=Retry(10, backoff_factor=0.1)))
    with session:
        session.get(f"{address}/healthz", timeout=10).raise_for_status()
        yield address
    server.should_exit = True
    thread.join(timeout=30)


@pytest.mark.parametrize("operation", operations(), ids=lambda operation: operation.label)
def test_every_answer_is_as_documented(url, operation):
    fixed = [{}]
    if "{topic}" in operation.path:
        fixed += [{"path_parameters": {"topic": topic}} for topic in TOPICS]
    if operation.path == "/sns":
        fixed += [{"query": {"topic": topic}} for topic in TOPICS]
    drawn = [operation.as_strategy(mode, **each) for mode in GenerationMode for each in fixed]
    statuses = set()
    with requests.Session() as session:

        @settings(
            max_examples=60,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.one_of([each for each in drawn if not each.is_empty]))
        def run(case):
            answer = case.call(base_url=url, session=session, timeout=30)
            case.validate_response(answer, checks=CHECKS)
            statuses.add(answer.status_code)

        run()
    taken = {200, 204} & statuses
    assert taken or operation.path == "/sns", "what is drawn has good requests too"


def test_a_real_notification_is_answered_as_documented():
    assert json.loads(body_of(SnsWorld().notification())).keys() >= set(
        DOCUMENT["paths"]["/sns"]["post"]["requestBody"]["content"]["application/json"]["schema"]["required"]
    )


def test_the_document_is_served_to_anybody_and_names_every_route_and_no_topic(url):
    answer = requests.get(f"{url}/openapi.json", headers={"X-Forwarded-For": "192.0.2.7"}, timeout=10)
    assert (answer.status_code, answer.json()) == (200, DOCUMENT)
    assert set(DOCUMENT["paths"]) == {"/{topic}", *(f"/{route}" for route in ROUTES)}
    assert "orders" not in answer.text


def test_sns_is_described_only_where_it_is_taken():
    assert "/sns" not in json.loads(render_document(has_sns=False))["paths"]
