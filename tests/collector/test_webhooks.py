"""Real webhooks over HTTP: they arrive byte for byte, become rows of typed tables, and are merged."""

import asyncio
import gzip
import json
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.pipeline.inferred_stream import Stream

WEBHOOKS = Path(__file__).parents[3] / "shared" / "data" / "github_webhooks.ndjson.gz"

pytestmark = pytest.mark.skipif(not WEBHOOKS.exists(), reason="the webhook payloads are not beside the project")


def test_every_webhook_arrives_byte_for_byte_and_is_staged_and_merged(yard, tmp_path):
    payloads = [json.loads(line)["data"] for line in gzip.decompress(WEBHOOKS.read_bytes()).splitlines()]
    bodies = [json.dumps(payload, indent=1).encode() for payload in payloads]
    assert len(bodies) == 216

    async def post(client):
        return await asyncio.gather(
            *(client.post(f"/{yard.topic}?sender=github", content=body) for body in bodies)
        )

    answers = yard.call(post)
    assert {answer.status_code for answer in answers} == {200}
    found = yard.pull(216)
    assert sorted(message.data for message in found) == sorted(bodies)
    by_uuid = {answer.json()["uuid"]: body for answer, body in zip(answers, bodies, strict=True)}
    assert {message.attributes["uuid"]: message.data for message in found} == by_uuid
    # One table for fifty types of event, whose action stands for the entity.
    stream = Stream(tmp_path, yard.pubsub, b"sources:\n  hooks: {topic: hooks, schema: inferred, key: action}\n")
    for message in found:
        stream.send_message(message.data, message.attributes)
    stream.drain(batches=2)
    staged = stream.rows("staging.hooks")
    assert len({row["_message_id"] for row in staged}) == len(staged) == 216
    [source] = stream.registry.read().merge_sources().values()
    assert source is not None
    with closing(stream.warehouse.open_merger(tmp_path)) as merger:
        merger.merge(source, now=datetime.now(UTC), since=None, is_dry_run=False)
    actions = {payload["action"] for payload in payloads if "action" in payload}
    merged = [row["action"] for row in stream.rows("reporting.hooks")]
    assert sorted(action for action in merged if action is not None) == sorted(actions)
