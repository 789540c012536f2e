"""The process of the API: the order in which it closes what it has opened."""

import asyncio
import base64
from typing import Any

import httpx
import pytest

from api.audit import AuditTrail
from app.service import create_app, open_services
from backfill.steer.service import BackfillService
from backup.compaction.service import CompactionService
from connectors.pubsub.client import PubSub
from jobs.notify import Notifier
from jobs.store import JobStore
from reporting.service import MergeService
from tests.backfill.conftest import FakeLauncher
from warehouse.lake.queries import LakeQueries

SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()
# How each part is closed, in the order that drains: nothing is used after it is closed.
CLOSED: list[tuple[type[Any], str]] = [
    (Notifier, "stop"),
    (Notifier, "stop"),
    (Notifier, "stop"),
    (AuditTrail, "close"),
    (CompactionService, "stop"),
    (MergeService, "stop"),
    (BackfillService, "stop"),
    (FakeLauncher, "close"),
    (BackfillService, "join"),
    (MergeService, "join"),
    (CompactionService, "join"),
    (LakeQueries, "close"),
    (JobStore, "close"),
    (PubSub, "close"),
]


@pytest.mark.parametrize("failing", [None, *dict.fromkeys(CLOSED)])
def test_each_part_is_closed_before_what_it_uses_whatever_fails(open_deployment, monkeypatch, failing):
    closed = []

    def noting(part, method):
        found = getattr(part, method)

        def close(self, **options):
            closed.append((part, method))
            found(self, **options)
            if (part, method) == failing:
                raise OSError(part.__name__)

        return close

    for part, method in dict.fromkeys(CLOSED):
        monkeypatch.setattr(part, method, noting(part, method))
    # Nobody listens there, and there is no news.
    webhook = {"REFEED_NOTIFY_URL": "http://127.0.0.1:9/", "REFEED_NOTIFY_SECRET": SECRET, "REFEED_MERGE_AT": ""}

    def run():
        with open_services(open_deployment(**webhook)) as services:
            assert services.backfills.check_readiness() == {}

    if failing is None:
        run()
    else:
        with pytest.raises(OSError, match=failing[0].__name__):
            run()
    assert closed == CLOSED


def test_an_app_that_has_ended_is_served_again(open_deployment):
    # Somebody else's Spark, which nothing here needs.
    app = create_app(open_deployment(REFEED_CONNECT_URL="sc://127.0.0.1:9", REFEED_MERGE_AT="").settings)

    async def ask():
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
        ):
            return set((await client.get("/readyz")).json()["problems"] or ()) - {"spark"}

    assert [asyncio.run(ask()) for _ in range(2)] == [set(), set()]
