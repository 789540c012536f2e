"""What the terminal prints of given topics and streams; tests/api has them with the API."""

import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from cli import terminal
from cli.inventory import render_histogram, render_streams
from cli.moments import parse_moment
from cli.terminal import COLUMNS, WHOLE, render_figures, row_length
from client.api import RefeedApi
from model.errors import InputError

MIDNIGHT = datetime(2026, 1, 2, tzinfo=UTC)


def topic(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "topic": name,
        "is_attached": True,
        "subscription": f"refeed-backup.{name}",
        "excludes_replays": True,
        "backlog_messages": 12,
        "lag_seconds": 0.84,
        "freshness_seconds": 95.0,
        "messages": 1_840_000,
        "subscriptions": [
            {"name": "pipeline-orders", "filter": "", "receives_replay": True, "backlog_messages": 7},
            {"name": f"refeed-backup.{name}", "filter": "NOT ...", "receives_replay": False},
        ],
        **fields,
    }


def stream(name: str, state: str = "RUNNING", **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "state": state,
        "seconds_since_report": 1.26,
        "totals": {"messages": 123_456_789},
        "rates": {"messages": 1234.56},
        "over_seconds": 60.0,
        "lag_seconds": None,
        "backlog_messages": None,
        "error": None,
        **fields,
    }


def histogram(step: str, width: timedelta, *counts: int) -> dict[str, Any]:
    starts = [f"{MIDNIGHT + number * width:%Y-%m-%dT%H:%M:%S.%fZ}" for number in range(len(counts) + 1)]
    return {
        "topic": "orders",
        "step": step,
        "window": {"from": starts[0], "to": starts[-1]},
        "messages": sum(counts),
        "buckets": [{"start": start, "messages": count} for start, count in zip(starts, counts, strict=False)],
    }


def answer(monkeypatch: pytest.MonkeyPatch, name: str, found: dict[str, Any]) -> list[Any]:
    asked: list[Any] = []

    def call(self: RefeedApi, *arguments: Any, **options: Any) -> dict[str, Any]:
        asked.append((*arguments, options))
        return found

    monkeypatch.setattr(RefeedApi, name, call)
    return asked


def test_topics_show_what_is_known_and_name_what_is_not_backed_up(refeed, monkeypatch):
    unknown = {"backlog_messages": None, "lag_seconds": None, "freshness_seconds": None, "messages": None}
    loose = topic("quiet", is_attached=False, subscription=None, excludes_replays=None, messages=0)
    found = {"topics": [topic("orders"), topic("members", **unknown), loose]}
    answer(monkeypatch, "list_topics", found)
    result = refeed("get", "topics")
    assert result.out.splitlines() == [
        "TOPIC    BACKED UP      LAG  BACKLOG          NEWEST  IN 7 DAYS",
        "orders         yes    0.8 s       12  1 min 35 s ago  1,840,000",
        "members        yes  unknown  unknown         unknown    unknown",
        "quiet           NO        -        -            none          0",
        "",
        "To back up the other topics: refeed attach quiet",
        "",
        "To see when messages arrived: refeed histogram orders",
    ]
    assert json.loads(refeed("get", "topics", "--json").out) == found


def test_no_topics_name_the_command_that_makes_some(refeed, monkeypatch):
    answer(monkeypatch, "list_topics", {"topics": []})
    assert "refeed attach TOPIC" in refeed("get", "topics").out


def test_streams_show_state_and_figures_and_what_is_wrong(refeed, monkeypatch):
    waits = {"code": "storage_full", "message": "The disk is full."}
    found = {
        "streams": [
            stream("backup", lag_seconds=2.0, backlog_messages=4096),
            stream("pipeline-a", "NOT_REPORTING", seconds_since_report=35.2, rates=None),
            stream("pipeline-default", "WAITING", rates=None, error=waits, totals={}),
        ]
    }
    answer(monkeypatch, "list_streams", found)
    result = refeed("get", "streams")
    lines = result.out.splitlines()
    assert lines[-7:] == [
        "pipeline-default  WAITING        1.3 s ago           -  unknown  unknown      unknown",
        "MESSAGES/S is over the last minute, or less after a start.",
        "SINCE START counts from 0 with each new process of the stream.",
        "pipeline-a: no report for 35 s; run 'refeed doctor' on its machine",
        "pipeline-default: storage_full: The disk is full.",
        "",
        "To see all streams and jobs: refeed status",
    ]
    assert "backup            RUNNING        1.3 s ago     1,234.6    2.0 s    4,096  123,456,789\n" in result.out
    assert lines[0].endswith("  SINCE START")
    assert json.loads(refeed("get", "streams", "--json").out) == found
    wide = refeed("get", "streams", "-o", "wide").out.splitlines()
    assert [line.split()[0] for line in wide[1:4]] == [each["name"] for each in found["streams"][:3]]
    assert refeed("get", "streams").out == result.out
    answer(monkeypatch, "list_streams", {"streams": []})
    assert "refeed up" in refeed("get", "streams").out


def test_a_stream_that_does_not_run_says_until_when_pubsub_keeps_what_waits():
    kept = {"retained_until": "2026-01-08T00:00:00.000000Z"}
    lines = list(render_streams([stream("backup", "DRAINED", **kept), stream("pipeline-a", **kept)]))
    assert [line for line in lines if "keeps" in line] == [
        "backup: Pub/Sub keeps pending messages until 2026-01-08 00:00 UTC"
    ]


def test_a_topic_shows_its_hours_with_gaps_and_how_to_look_closer(refeed, monkeypatch):
    found = histogram("hour", timedelta(hours=1), 0, 0, 80, 1, 0, 0, 0, 40, 0)
    asked = answer(monkeypatch, "read_histogram", found)
    answer(monkeypatch, "list_topics", {"topics": [topic("orders"), topic("members")]})
    result = refeed("histogram", "orders", "--from", "2026-01-02", "--to", "2026-01-02T09:00Z")
    assert result.out.splitlines() == [
        "orders: backed up through refeed-backup.orders",
        "lag 0.8 s, backlog 12, newest 1 min 35 s ago",
        "a replay to this topic reaches pipeline-orders (backlog 7)",
        "2026-01-02 00:00 to 2026-01-02 09:00 UTC by hour: 121 archived messages",
        "",
        "2026-01-02 00:00   0  nothing for 2 hours",
        "2026-01-02 02:00  80  ########################################",
        "2026-01-02 03:00   1  #",
        "2026-01-02 04:00   0  GAP of 3 hours",
        "2026-01-02 07:00  40  ####################",
        "2026-01-02 08:00   0  nothing since then, for 1 hour",
        "",
        "1 gap, in which no message of orders was archived.",
        (
            "For more detail: refeed histogram orders --step minute --from 2026-01-02T03:00:00Z --to "
            "2026-01-02T08:00:00Z"
        ),
    ]
    window = {"step": "hour", "start": "2026-01-02T00:00:00Z", "end": "2026-01-02T09:00:00Z"}
    assert asked == [("orders", window)]
    assert json.loads(refeed("histogram", "orders", "--json").out) == found


def test_minutes_are_the_closest_look_and_one_message_is_seen_beside_many():
    lines = list(render_histogram(histogram("minute", timedelta(minutes=1), 1, 0, 1_000_000)))
    assert lines[2:] == [
        "2026-01-02 00:00          1  #",
        # Many a topic has minutes without a message: no alarm.
        "2026-01-02 00:01          0  nothing for 1 minute",
        "2026-01-02 00:02  1,000,000  ########################################",
        "",
    ]
    assert max(map(len, lines)) <= COLUMNS
    whole = list(render_histogram(histogram("day", timedelta(days=1), 3, 4)))
    assert whole[-1].endswith("--step hour --from 2026-01-03T00:00:00Z --to 2026-01-04T00:00:00Z")
    assert list(render_histogram(histogram("day", timedelta(days=1), 0)))[1] == (
        "There are no messages in this period. To show an earlier period, use --from."
    )


def test_times_are_taken_as_a_moment_a_day_or_an_age(refeed):
    now = datetime(2026, 1, 3, 12, tzinfo=UTC)
    for text, moment in {
        "2026-01-02": "2026-01-02T00:00:00Z",
        "2026-01-02T03:00": "2026-01-02T03:00:00Z",
        "2026-01-02T03:00:00+02:00": "2026-01-02T01:00:00Z",
        "45s": "2026-01-03T11:59:15Z",
        "2h": "2026-01-03T10:00:00Z",
        "3d": "2025-12-31T12:00:00Z",
        "today": "2026-01-03T00:00:00Z",
        "yesterday": "2026-01-02T00:00:00Z",
        "12:00": "2026-01-03T12:00:00Z",
        "12:00:01": "2026-01-02T12:00:01Z",
    }.items():
        assert parse_moment(text, "--from", now=now) == moment
    for wrong in ("soon", "25:00", "", "2026-13-01", "999999d", "0001-01-01T00:00:00+10:00"):
        with pytest.raises(InputError, match="--from"):
            parse_moment(wrong, "--from", now=now)
    assert refeed("histogram", "orders", "--from", "soon").code == 2


def test_figures_that_do_not_fit_leave_the_name_whole_and_in_a_pipe_their_row(monkeypatch):
    name = "n" * 60
    lines = render_figures(["stream", "state", "lag"], [[name, "NOT_REPORTING", "unknown"]], left=2)
    assert lines[1] == f"{name}  NOT_REPORTING  unknown"
    monkeypatch.setattr(terminal, "out", Console(force_terminal=True, width=COLUMNS))
    lines = render_figures(["stream", "state", "lag"], [[name, "NOT_REPORTING", "unknown"]], left=2)
    assert lines == ["STREAM", "  STATE              LAG", name, "  NOT_REPORTING  unknown"]
    assert max(map(len, lines)) <= COLUMNS


def test_a_long_text_beside_the_name_is_cut_before_a_row_is_split():
    columns, row = ["source", "topic", "group", "staged"], ["orders", "t" * 60, "default", "1,234"]
    lines = render_figures(columns, [row], left=3)
    assert lines == [
        f"SOURCE  {'TOPIC':<55}  GROUP    STAGED",
        f"orders  {'t' * 54}…  default   1,234",
    ]
    assert max(map(len, lines)) == COLUMNS
    whole = row_length.set(WHOLE)
    assert "t" * 60 in render_figures(columns, [row], left=3)[1]
    row_length.reset(whole)


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}])
def test_a_terminal_of_80_columns_gets_what_a_pipe_gets_without_colour(refeed, monkeypatch, environment):
    answer(monkeypatch, "list_topics", {"topics": [topic("orders"), topic("members", lag_seconds=None)]})
    answer(monkeypatch, "read_histogram", histogram("hour", timedelta(hours=1), 5, 0, 70))
    answer(monkeypatch, "list_streams", {"streams": [stream("backup", "NOT_REPORTING", rates=None)]})
    commands = (("get", "topics"), ("histogram", "orders"), ("get", "streams"))
    piped = "".join(refeed(*command).out for command in commands)
    screen = io.StringIO()
    options = {"force_terminal": True, "width": COLUMNS, "soft_wrap": True, "highlight": False}
    monkeypatch.setattr(terminal, "out", Console(file=screen, _environ=environment, **options))
    assert [refeed(*command).code for command in commands] == [0, 0, 0]
    assert screen.getvalue() == piped
    # A command to copy and a sentence are as long as they are; every table fits.
    tables = [line for line in piped.splitlines() if not line.startswith(("For more detail: ", "backup: "))]
    assert max(map(len, tables)) <= COLUMNS
