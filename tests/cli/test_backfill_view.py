from typing import Any

import pytest

from client.jobs import JobCalls
from tests.cli.backfills import backfill

ID = "bf_01M7Z1H20HKNZ6PGKRYCX6J210"
ASKED: dict[str, Any] = {
    "id": ID,
    "created_by": "key:ann",
    "created_at": "2026-01-03T03:00:00.123456Z",
    "description": "New Year's orders lost their currency.",
    "labels": {"ticket": "shop-123"},
    "query": "SELECT data, attributes, message_id\nFROM backup.messages\nWHERE _PARTITIONDATE = @day",
    "parameters": {"day": {"type": "DATE", "value": "2026-01-01"}, "n": {"type": "ARRAY<INT64>", "value": [1]}},
    "window": {"from": "2026-01-01T00:00:00.000000Z", "to": "2026-01-02T00:00:00.000000Z"},
    "replays": {
        "column": "ingest_time",
        "from": "2026-01-01T02:00:00.000000Z",
        "to": "2026-01-01T03:00:00.000000Z",
    },
    "plan_id": "pl_01M7Z1H20HKNZ6PGKRYCX6J210",
    "canary": {"messages": 10, "state": "over"},
}
SHOWN = """\
bf_01M7Z1H20HKNZ6PGKRYCX6J210  FAILED  -> orders
  120,000 selected, 30,000 published, 1 failed
  at most 1,030 repeated, including a retry's
  verification incomplete, 29,000 landed, 91,000 missing
  published messages stay published
  messages_failed: 1 message could not be published.
  why        New Year's orders lost their currency.
  who        key:ann
  created    2026-01-03T03:00:00Z
  started    2026-01-03T03:00:02Z
  finished   2026-01-03T03:01:12Z
  labels     ticket=shop-123
  query      SELECT data, attributes, message_id
             FROM backup.messages
             WHERE _PARTITIONDATE = @day
  parameter  day:DATE:2026-01-01
  parameter  n:ARRAY<INT64>:[1]
  window     2026-01-01T02:00:00Z to 2026-01-01T03:00:00Z by ingest_time
  partitions 2026-01-01T00:00:00Z to 2026-01-02T00:00:00Z
  plan       pl_01M7Z1H20HKNZ6PGKRYCX6J210
  canary     10 messages, over
  approval   by key:bob at 2026-01-03T03:00:01Z, for 120,000 rows
  revert     refeed revert bf_01M7Z1H20HKNZ6PGKRYCX6J210
  next       refeed dead-letters bf_01M7Z1H20HKNZ6PGKRYCX6J210
"""


def test_show_tells_all_of_a_backfill_in_80_columns(refeed, monkeypatch):
    failed = backfill(
        "FAILED",
        started_at="2026-01-03T03:00:02Z",
        finished_at="2026-01-03T03:01:12Z",
        progress={"selected": 120_000, "published": 30_000, "failed": 1, "repeated_at_most": 1030},
        approval={
            "required": True,
            "above_rows": 100,
            "rows": 120_000,
            "by": "key:bob",
            "at": "2026-01-03T03:00:01.5Z",
        },
        verification={
            "state": "incomplete",
            "published": 30_000,
            "landed": 29_000,
            "merged": 0,
            "missing": 91_000,
        },
        error={"code": "messages_failed", "message": "1 message could not be published."},
        **ASKED,
    )
    monkeypatch.setattr(JobCalls, "read", lambda self, id_: failed)
    for no_color in ("", "1"):
        monkeypatch.setenv("NO_COLOR", no_color)
        assert refeed("describe", ID).out == SHOWN
    assert max(map(len, SHOWN.splitlines())) <= 80


WAITS = {"required": True, "above_rows": 29, "rows": 1030, "by": None, "at": None}
LANDED = {"state": "complete", "published": 2, "landed": 2, "merged": 0}


@pytest.mark.parametrize(
    ("state", "fields", "lines"),
    [
        ("PENDING", {}, ["revert     once it has ended and is verified", "next       refeed watch bf_1"]),
        (
            "PENDING",
            {"approval": WAITS, "created_by": "key:ann"},
            [
                "1,030 rows, more than 29, need an approval",
                "approval   needed from a person other than key:ann",
                "next       refeed approve bf_1, by a person other than its requester",
            ],
        ),
        (
            "PAUSED",
            {"canary": {"messages": 2, "state": "reached"}},
            [
                "paused after its canary",
                "canary     2 messages, reached: look at what arrived",
                "next       refeed resume bf_1",
            ],
        ),
        (
            "SUCCEEDED",
            {"verification": {**LANDED, "state": "pending", "landed": None}},
            ["revert     once it has ended and is verified", "next       refeed describe bf_1"],
        ),
        ("SUCCEEDED", {"verification": LANDED}, ["revert     refeed revert bf_1"]),
        ("SUCCEEDED", {"verification": {**LANDED, "merged": 2}}, ["revert     not possible: 2 rows are merged"]),
        (
            "SUCCEEDED",
            {
                "verification": {
                    **LANDED,
                    "state": "unknown",
                    "landed": None,
                    "merged": None,
                    "advice": "No source reads the topic.",
                }
            },
            [
                "verification unknown",
                "No source reads the topic.",
                "revert     not possible: no staging table of the topic is known",
            ],
        ),
        (
            "SUCCEEDED",
            {
                "verification": {
                    **LANDED,
                    "state": "pending",
                    "landed": 0,
                    "missing": 0,
                    "waiting": 2,
                    "advice": "The stream is DRAINED.",
                }
            },
            [
                "verification pending, 0 landed, at most 2 not delivered yet",
                "The stream is DRAINED.",
                "next       refeed describe bf_1",
            ],
        ),
        (
            "SUCCEEDED",
            {"verification": {**LANDED, "state": "incomplete", "landed": 0, "missing": 2, "dead_letters": 1}},
            [
                "verification incomplete, 0 landed, 2 missing (1 dead letter)",
                "next       refeed missing bf_1",
            ],
        ),
        (
            "SUCCEEDED",
            {"verification": {**LANDED, "state": "incomplete", "landed": 0, "missing": 1, "waiting": 1}},
            [
                "verification incomplete, 0 landed, at least 1 missing, at most 1 not delivered yet",
                "next       refeed missing bf_1",
            ],
        ),
        (
            "SUCCEEDED",
            {
                "verification": {**LANDED, "state": "incomplete", "landed": 0},
                "revert": {"by": "key:bob", "at": "2026-01-03T03:00:01.5Z", "rows": 2},
            },
            [
                "reverted   by key:bob at 2026-01-03T03:00:01Z, 2 rows deleted from staging",
                "next       refeed missing bf_1",
            ],
        ),
        ("FAILED", {"error": {"code": "nothing_selected", "message": "Nothing."}}, ["nothing_selected: Nothing."]),
    ],
)
def test_show_names_the_next_command_and_what_a_person_decides(refeed, monkeypatch, state, fields, lines):
    monkeypatch.setattr(JobCalls, "read", lambda self, id_: backfill(state, **fields))
    shown = [line.strip() for line in refeed("describe", "bf_1").out.splitlines()]
    assert [line for line in shown if line in lines] == lines
    assert sum(line.startswith("next ") for line in shown) == sum(line.startswith("next ") for line in lines)


def test_show_of_a_running_backfill_has_its_pace(refeed, monkeypatch):
    figures = {"selected": 9, "published": 3, "failed": 0, "repeated_at_most": 4, "rate_messages_per_second": 2.0}
    shown = backfill("RUNNING", progress={**figures, "eta_seconds": 3700.0, "event_time": None})
    monkeypatch.setattr(JobCalls, "read", lambda self, id_: shown)
    assert refeed("describe", "bf_1").out.splitlines()[:4] == [
        "bf_1  RUNNING  -> orders",
        "  9 selected, 3 published, 0 failed",
        "  at most 4 repeated",
        "  2/s, 1:01:40 left",
    ]


def test_show_says_what_keeps_a_backfill_slow_while_it_lives(refeed, monkeypatch):
    limits = {
        "rate_limit_messages_per_second": 50.0,
        "canary_messages": 1000,
        "yield_to": {"subscription": "billing", "max_oldest_unacked_seconds": 30.0},
    }
    shown = iter([backfill("RUNNING", **limits), backfill("SUCCEEDED", **limits)])
    monkeypatch.setattr(JobCalls, "read", lambda _api, _id: next(shown))
    line = "at most 50/s, pauses after 1,000 messages, yields while billing has messages older than 30 s"
    assert line in refeed("describe", "bf_1").out
    assert "at most" not in refeed("describe", "bf_1").out


def test_show_says_that_drivers_died_and_how_to_go_on(refeed, monkeypatch):
    failed = backfill("FAILED", 1, restarts=3, error={"code": "driver_died", "message": "It died."})
    monkeypatch.setattr(JobCalls, "read", lambda self, backfill_id: failed)
    said = refeed("describe", "bf_1").out
    assert "its driver died 3 times: see 'refeed events bf_1'" in said
    assert "  driver_died: It died.\n" in said
    assert said.endswith("  next       refeed retry bf_1\n")
