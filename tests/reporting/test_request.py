from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobs.store import Idempotency
from model.errors import RequestInvalidError
from reporting.request import MergeCreate, MergeRequest

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)


def test_nothing_asked_for_is_everything_from_the_last_merge_on() -> None:
    assert MergeRequest.parse() == MergeRequest(source=None, since=None, is_dry_run=False)
    assert MergeCreate("all", since="2026-01-02", dry_run=True).parse() == MergeRequest.parse(
        since="2026-01-02", is_dry_run=True
    )
    assert MergeRequest.parse("all") == MergeRequest.parse(None)


@pytest.mark.parametrize(
    ("given", "since"),
    [
        ({"since": "2026-03-01T10:00:00+02:00"}, datetime(2026, 3, 1, 8, tzinfo=UTC)),
        ({"since": "2026-03-01"}, datetime(2026, 3, 1, tzinfo=UTC)),
        ({"since": "2026-03-01T10:00:00"}, datetime(2026, 3, 1, 10, tzinfo=UTC)),
        ({"since": "yesterday"}, datetime(2026, 3, 1, tzinfo=UTC)),
        ({"since": "02:00"}, datetime(2026, 3, 2, 2, tzinfo=UTC)),
        ({"since": "2h"}, datetime(2026, 3, 2, 10, tzinfo=UTC)),
        ({"day": "2026-03-02"}, datetime(2026, 3, 2, tzinfo=UTC)),
        ({"day": "today"}, datetime(2026, 3, 2, tzinfo=UTC)),
        ({"day": "yesterday"}, datetime(2026, 3, 1, tzinfo=UTC)),
        ({"day": "2000-01-01"}, datetime(2000, 1, 1, tzinfo=UTC)),
    ],
)
def test_an_earlier_beginning_is_a_time_or_a_day_in_utc(given: dict[str, str], since: datetime) -> None:
    assert MergeRequest.parse(now=NOW, **given).since == since


@pytest.mark.parametrize(
    ("given", "pointer"),
    [
        ({"since": "tomorrow"}, "/since"),
        ({"since": "2026-13-01"}, "/since"),
        ({"since": "0001-01-01T00:00:00+14:00"}, "/since"),
        ({"since": "1999-12-31"}, "/since"),
        ({"since": (NOW + timedelta(seconds=1)).isoformat()}, "/since"),
        ({"day": "2026-02-30"}, "/date"),
        ({"day": "2026-03-03"}, "/date"),
        ({"day": "00:00"}, "/date"),
        ({"day": "2h"}, "/date"),
        ({"day": "tomorrow"}, "/date"),
        ({"since": "2026-03-01", "day": "2026-03-01"}, "/date"),
    ],
)
def test_what_is_no_beginning_is_refused_with_its_place(given: dict[str, str], pointer: str) -> None:
    with pytest.raises(RequestInvalidError) as refused:
        MergeRequest.parse(now=NOW, **given)
    (error,) = refused.value.details["errors"]
    assert (error["code"], error["pointer"]) == ("since_invalid", pointer)


def fingerprint(source: str | None = None, **given: Any) -> str:
    found = Idempotency.of("key", MergeRequest.parse(source, now=NOW, **given).to_json())
    return found.fingerprint


def test_the_same_request_has_the_same_fingerprint_and_another_one_another() -> None:
    same = fingerprint("orders", since="2026-03-01T01:00:00+01:00")
    assert fingerprint("orders", day="2026-03-01") == same
    others = {fingerprint(), fingerprint("orders")}
    assert len({*others, same, fingerprint("orders", is_dry_run=True)}) == 4
