"""The demo's messages as events over HTTP, and what the archive must hold of each."""

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from collector.event import caller_attributes
from model.errors import InputError
from model.message import Message

_THREADS: Final = 4
_PIECE: Final = 250
_SECONDS: Final = 60.0


def write_collector_settings(home: Path, topics: Sequence[str]) -> dict[str, str]:
    """Write a collector's settings into ``home``: any bytes, without the requests' facts; return its variables."""
    path = home / "collector.yaml"
    # JSON is YAML too.
    path.write_text(json.dumps({"facts": [], "topics": {topic: {"format": "raw"} for topic in topics}}))
    return {"REFEED_COLLECTOR_TOPICS": ",".join(topics), "REFEED_COLLECTOR_SETTINGS": str(path)}


def post_all(
    address: str, messages: Sequence[tuple[str, Message]]
) -> Iterator[list[tuple[tuple[str, str], Message]]]:
    """Post messages to the collector at ``address``, their attributes as parameters.

    Yields some at a time (topic, uuid of the answer) and the message that must be archived.

    Raises:
        InputError: the collector did not take one of them.
    """
    waiting = iter(messages)
    with ThreadPoolExecutor(_THREADS) as pool:
        while pieces := [piece for _ in range(_THREADS) if (piece := list(islice(waiting, _PIECE)))]:
            yield from pool.map(lambda piece: _post(address, piece), pieces)


def _post(address: str, messages: Sequence[tuple[str, Message]]) -> list[tuple[tuple[str, str], Message]]:
    connection = http.client.HTTPConnection(address, timeout=_SECONDS)
    posted: list[tuple[tuple[str, str], Message]] = []
    try:
        for topic, message in messages:
            query = urlencode(message.attributes)
            connection.request("POST", f"/{quote(topic)}?{query}", body=message.data)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status not in (http.client.OK, http.client.ACCEPTED):
                raise InputError(f"The collector answered {answer.status} for {topic}: {text.decode()[:500]}")
            identity = json.loads(text)
            posted.append(((topic, identity["uuid"]), _published(topic, message, identity)))
    finally:
        connection.close()
    return posted


def _published(topic: str, message: Message, identity: Mapping[str, Any]) -> Message:
    """Return the message that the collector publishes of an event."""
    own = {"topic": topic, "source": "http", "uuid": identity["uuid"], "timestamp": identity["timestamp"]}
    return Message(message.data, caller_attributes(message.attributes.items()) | own)
