"""What a person, or a log, sees of a backfill that is watched: golden text at 80 columns."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

import cli.backfill_watch
from cli.backfill_watch import watch_live
from client.api import RefeedApi
from client.jobs import JobCalls
from tests.waiting import wait_until
from tests.worlds.http import Answer, answering

ID = "bf_01M7Z1H20HKNZ6PGKRYCX6J210"
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[34]\d")
_ELAPSED = re.compile(r"\d:\d\d:\d\d$")

# A refresh between two states draws the same line again.
BAR = f"""\
watching {ID}; Ctrl-C does not cancel it
PENDING ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━   0:00:00
RUNNING ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 30,000/120,000 500/s, 3:00 left 0:00:00
warning: No subscription takes it. (nobody_receives)
SUCCEEDED ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 120,000/120,000  0:00:00
"""
LINES = f"""\
watching {ID}; Ctrl-C does not cancel it
PENDING
RUNNING 30,000/120,000, 500/s, 3:00 left, publish time 2026-01-01T06:10:00Z
RUNNING 60,000/120,000, 500/s, 2:00 left, publish time 2026-01-01T12:20:00Z
warning: No subscription takes it. (nobody_receives)
SUCCEEDED 120,000/120,000, publish time 2026-01-01T12:20:00Z
"""


def backfill(state, published=None, **fields):
    progress = {"selected": None, "published": 0}
    if published is not None:
        event_time = "2026-01-01T06:10:00.5Z" if published == 30_000 else "2026-01-01T12:20:00.5Z"
        progress = {"selected": 120_000, "published": published, "event_time": event_time}
        left = (120_000 - published) / 500
        progress |= {"rate_messages_per_second": 500.0, "eta_seconds": left}
    return {"id": ID, "state": state, "topic": "orders", "progress": progress, **fields}


WARNED = {"warnings": [{"code": "nobody_receives", "message": "No subscription takes it."}]}


def watch(monkeypatch, shown):
    monkeypatch.setattr(JobCalls, "watch", lambda self, backfill_id: shown)
    with RefeedApi("http://127.0.0.1:1") as api:
        assert watch_live(api, ID)["state"] == "SUCCEEDED"


@contextmanager
def terminal():
    """Give the end of a terminal that a program writes to, and what returns all that came out of it."""
    master, slave = os.openpty()
    parts = []

    def read():
        try:
            while part := os.read(master, 65536):
                parts.append(part)
        except OSError:
            # The other end is closed.
            return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with os.fdopen(slave, "w", encoding="utf-8") as end:
        yield end, lambda: b"".join(parts).decode()
    reader.join(10)
    os.close(master)


@pytest.mark.parametrize("no_color", ["", "1"])
def test_in_a_terminal_a_bar_fits_80_columns(monkeypatch, no_color):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("COLUMNS", "80"), ("TERM", "xterm-256color"), ("NO_COLOR", no_color)):
        monkeypatch.setenv(name, value)
    shown = iter(
        [
            backfill("PENDING"),
            backfill("RUNNING", 30_000),
            backfill("SUCCEEDED", 120_000, **WARNED),
        ]
    )
    with terminal() as (end, written):
        monkeypatch.setattr(sys, "stderr", end)
        watch(monkeypatch, shown)
        monkeypatch.undo()
    lines = [_ELAPSED.sub("0:00:00", line.rstrip()) for line in re.split(r"[\r\n]+", _ESCAPE.sub("", written()))]
    seen = list(dict.fromkeys(line for line in lines if line and not line.startswith(" ")))
    assert max(map(len, seen)) <= 80
    assert bool(_COLOUR.search(written())) is (not no_color)
    if no_color:
        # What is left to do has no colour that would tell it apart, so it is not drawn.
        assert [re.sub("[━╸╺ ]+", " ", line) for line in seen] == [
            re.sub("[━ ]+", " ", line) for line in BAR.splitlines()
        ]
    else:
        assert [re.sub("[╸╺]", "━", line) for line in seen] == BAR.splitlines()


@pytest.mark.parametrize("no_color", ["", "1"])
def test_without_a_terminal_a_line_comes_every_few_seconds(monkeypatch, no_color):
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr(cli.backfill_watch, "_LINE_SECONDS", 0.02)
    monkeypatch.setenv("NO_COLOR", no_color)

    def states():
        yield backfill("PENDING")
        yield backfill("RUNNING", 30_000)
        yield backfill("RUNNING", 60_000)
        wait_until(lambda: "60,000" in said.getvalue(), "the next line")
        yield backfill("SUCCEEDED", 120_000, **WARNED)

    watch(monkeypatch, states())
    assert said.getvalue() == LINES
    assert max(map(len, LINES.splitlines())) <= 80


def test_a_line_that_says_nothing_new_comes_once_a_minute_only(monkeypatch):
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr(cli.backfill_watch, "_LINE_SECONDS", 0.01)

    def states(same_seconds, lines):
        monkeypatch.setattr(cli.backfill_watch, "_SAME_LINE_SECONDS", same_seconds)
        yield backfill("RUNNING", 30_000)
        wait_until(lambda: said.getvalue().count("RUNNING 30,000") >= lines, "the same line")
        yield backfill("RUNNING", 60_000)
        wait_until(lambda: "RUNNING 60,000" in said.getvalue(), "another line")
        yield backfill("SUCCEEDED", 120_000)

    watch(monkeypatch, states(60.0, 1))
    assert said.getvalue().count("RUNNING 30,000") == 1
    watch(monkeypatch, states(0.0, 4))
    assert said.getvalue().count("RUNNING 30,000") >= 4


def test_ctrl_c_leaves_the_backfill_and_says_how_to_go_on():
    asked = []

    def answer(call):
        asked.append(f"{call.method} {call.path}")
        content = json.dumps(backfill("RUNNING", 30_000)).encode()
        return Answer(200, content, {"Content-Type": "application/json"})

    environment = {
        **{name: value for name, value in os.environ.items() if name not in {"FORCE_COLOR", "NO_COLOR"}},
        "TERM": "xterm",
        "COLUMNS": "80",
    }
    command = [sys.executable, "-m", "cli.main", "watch", ID]
    with answering(answer) as environment["REFEED_API_URL"], terminal() as (end, written):
        process = subprocess.Popen(command, env=environment, stdin=end, stdout=end, stderr=end)
        try:
            wait_until(lambda: "30,000/120,000" in written(), "the bar is drawn")
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
        finally:
            process.kill()
            process.wait(20)
    left = _ESCAPE.sub("", written()).replace("\r", "").splitlines()
    assert left[-3:] == [
        f"{ID} continues without this command. To watch it again, or to stop it:",
        f"  refeed watch {ID}",
        f"  refeed cancel {ID}",
    ]
    assert {line.split()[0] for line in asked} == {"GET"}


def verified(state, landed):
    missing = None if landed is None else 120_000 - landed
    return backfill("SUCCEEDED", 120_000, verification={"state": state, "landed": landed, "missing": missing})


@pytest.mark.parametrize(
    ("counts", "ends"),
    [
        # The pipeline commits a moment after the end.
        ([("pending", None), ("incomplete", 0), ("incomplete", 0), ("complete", 120_000)], ("complete", 120_000)),
        # Dead letters stay missing.
        ([("incomplete", 0), ("incomplete", 119_997)], ("incomplete", 119_997)),
        ([("pending", None)], ("pending", None)),
        ([("pending", None), ("unknown", None)], ("unknown", None)),
    ],
)
def test_a_watch_goes_on_until_nothing_more_lands(monkeypatch, counts, ends):
    shown = [verified(*count) for count in counts]
    reads = iter(shown[1:])
    for name in ("_SETTLE_SECONDS", "_COUNT_SECONDS"):
        monkeypatch.setattr(cli.backfill_watch, name, 0.1)
    monkeypatch.setattr(cli.backfill_watch, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(JobCalls, "watch", lambda self, backfill_id: iter(shown[:1]))
    monkeypatch.setattr(JobCalls, "read", lambda self, backfill_id: next(reads, shown[-1]))
    with RefeedApi("http://127.0.0.1:1") as api:
        found = watch_live(api, ID)
    assert (found["verification"]["state"], found["verification"]["landed"]) == ends


def test_a_backfill_that_ended_long_ago_is_not_waited_for(monkeypatch):
    old = verified("incomplete", 7) | {"finished_at": "2026-01-01T12:20:00.5Z"}
    monkeypatch.setattr(JobCalls, "watch", lambda self, backfill_id: iter([old]))
    monkeypatch.setattr(JobCalls, "read", lambda self, backfill_id: pytest.fail("it is read again"))
    with RefeedApi("http://127.0.0.1:1") as api:
        assert watch_live(api, ID) == old


def test_an_api_that_is_gone_ends_the_wait_for_a_verification(monkeypatch):
    monkeypatch.setattr(JobCalls, "watch", lambda self, backfill_id: iter([verified("incomplete", 7)]))
    with RefeedApi("http://127.0.0.1:1") as api:
        assert watch_live(api, ID)["verification"]["landed"] == 7
