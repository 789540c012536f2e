import asyncio

import pytest

from cli.processes import free_port
from collector.delivery import DirectDelivery
from collector.http import make_event
from connectors.pubsub import sending
from connectors.pubsub.client import PubSub
from model.errors import PubSubUnavailableError


def test_an_error_is_no_problem_any_more_once_nothing_was_sent_for_a_while(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing may be sent to a collector that says that it is not ready: then no publish clears its error."""

    async def work(away: PubSub) -> None:
        direct = DirectDelivery(away, give_up_seconds=0.1)
        [error] = await direct.deliver("orders", [make_event(b"1", b"").message])
        assert isinstance(error, PubSubUnavailableError)
        assert list(direct.problems()) == ["orders"]
        monkeypatch.setattr(sending, "_ERROR_SECONDS", 0)
        assert direct.problems() == {}

    with PubSub("shop", f"127.0.0.1:{free_port()}") as away:
        asyncio.run(work(away))
