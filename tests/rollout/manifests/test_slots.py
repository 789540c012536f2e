"""The times of slots in requests: of a schedule's backfills without SQL, also where a day has 23 or 25 hours."""

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import pytest
from pydantic import TypeAdapter

from backfill.plan.create import BackfillCreate
from rollout.manifests.cron import Cron, Timing, parse_zone
from rollout.manifests.slots import Slot, fill_request
from sql.range_query import write_range_query

REQUEST = {"source_topic": "orders", "from": "{{ slot.start }}", "to": "{{ slot.end }}"}


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", datetime(2026, 3, 29, tzinfo=UTC), 23),
        ("Europe/Berlin", datetime(2026, 10, 25, tzinfo=UTC), 25),
        ("America/Santiago", datetime(2026, 9, 6, tzinfo=UTC), 23),
        ("Australia/Lord_Howe", datetime(2026, 10, 4, tzinfo=UTC), 23.5),
        ("UTC", datetime(2026, 3, 29, tzinfo=UTC), 24),
    ],
)
def test_nightly_replays_follow_each_other_without_a_gap_or_an_overlap_when_clocks_change(zone, day, hours):
    timing = Timing(Cron.parse("0 0 * * *"), parse_zone(zone))
    slots = list(islice(timing.after(day - timedelta(days=3)), 6))
    now = slots[-1]
    lengths = []
    for start, end in pairwise(slots):
        filled = fill_request("backfill", REQUEST, Slot(start, end, parse_zone(zone)))
        wanted = TypeAdapter(BackfillCreate).validate_python(filled)
        expected = write_range_query("backup.messages", "orders", start, end)
        assert wanted.write("backup.messages", now).query == expected
        lengths.append((end - start) / timedelta(hours=1))
    assert sorted({*lengths, 24.0}) == sorted({hours, 24.0})


def test_ages_count_from_the_slot_s_end_and_what_is_no_time_stays_as_it_is() -> None:
    slot = Slot(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC), parse_zone("UTC"))
    end = slot.end.astimezone(UTC)
    request = {"source_topic": "orders", "from": "2h", "to": "soon", "where": None}
    wanted = {"from": f"{end - timedelta(hours=2):%Y-%m-%dT%H:%M:%SZ}", "parameters": {}}
    assert fill_request("backfill", request, slot) == {**request, **wanted}
