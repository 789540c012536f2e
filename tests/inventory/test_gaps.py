"""Gaps in the inbox: found in the counts alone, once a minute, and never in the way of the other items."""

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from api.routes_status import InboxOut
from cli.status import _inbox_lines
from inventory.gaps import GapItems
from inventory.service import Inventory
from model.errors import ForbiddenError, WarehouseError
from model.principal import LOCAL, MESSAGES, Principal
from model.volume import HourVolumes, Volume

HOUR = timedelta(hours=1)


class CountedHours:
    """Counts of one topic without a message in the hour before the last whole one; each call is counted."""

    def __init__(self):
        self.asked = 0
        self.is_away = False
        this_hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
        self.hole = this_hour - 2 * HOUR

    def hours(self, window):
        self.asked += 1
        if self.is_away:
            raise WarehouseError("It is away.")
        every = (window.start + number * HOUR for number in range(int(window.width / HOUR)))
        return HourVolumes({hour: {"orders": Volume(100, 1000)} for hour in every if hour != self.hole})

    def __getattr__(self, name):
        raise AssertionError(f"{name} may cost a query")


def inventory_of(counts, home):
    queries = SimpleNamespace(counts=counts, messages=None)
    pubsub = None
    return Inventory(pubsub, queries, home=home, replay_secret="s", reports=list, groups=lambda: None)


def test_a_gap_waits_in_the_inbox_with_its_topic_and_hour(tmp_path):
    counts = CountedHours()
    (item,) = inventory_of(counts, tmp_path).list_inbox(principal=LOCAL)
    assert (item.kind, item.resource, item.id, item.since) == ("gap", "topic", "orders", counts.hole)
    assert item.message.startswith(f"No message arrived from {counts.hole:%Y-%m-%dT%H}:00:00")
    shown = json.loads(InboxOut.model_validate({"items": [item]}, from_attributes=True).model_dump_json())["items"]
    assert (shown[0]["state"], shown[0]["created_by"]) == (None, None)
    lines = list(_inbox_lines(shown))
    assert (lines[0], lines[-1]) == ("gap  orders", "  refeed histogram orders")


def test_gaps_are_looked_for_once_a_minute():
    counts = CountedHours()
    gaps = GapItems(counts)
    assert gaps.list_items() == gaps.list_items() != []
    assert counts.asked == 1
    counts.hole += HOUR
    fresh = GapItems(counts, remembered_seconds=0.0)
    first = fresh.list_items()
    counts.hole -= 5 * HOUR
    assert fresh.list_items() != first


def test_an_archive_that_is_away_leaves_the_other_items_alone(tmp_path):
    counts = CountedHours()
    counts.is_away = True
    inventory = inventory_of(counts, tmp_path)
    assert (inventory.list_inbox(principal=LOCAL), inventory.list_inbox(principal=LOCAL)) == ([], [])
    assert counts.asked == 1, "nor is it asked again at once"
    with pytest.raises(ForbiddenError):
        inventory.list_inbox(principal=Principal("key:x", frozenset({MESSAGES})))
