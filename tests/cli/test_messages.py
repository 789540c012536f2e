"""What ``refeed messages`` prints of given pages; tests/api/test_inventory.py has it with the API."""

from cli.terminal import COLUMNS
from client.api import RefeedApi

REPLAY = "refeed backfill orders --from 2026-01-02T03:30:00Z --to 2026-01-02T03:30:01Z"
WINDOW = {"from": "2026-01-02T03:00:00.000000Z", "to": "2026-01-02T04:00:00.000000Z"}


def message(number, data, encoding="text", **attributes):
    return {
        "message_id": str(number),
        "topic": "orders",
        "publish_time": "2026-01-02T03:30:00.000000Z",
        "ingest_time": "2026-01-02T03:30:01.000000Z",
        "ordering_key": "",
        "attributes": attributes,
        "data": data,
        "encoding": encoding,
        "data_bytes": 100,
        "is_cut": False,
    }


def test_messages_fit_the_terminal_and_can_not_steer_it(refeed, monkeypatch):
    found = [
        message(1, '{"id":"' + "x" * 200 + '", "n":1.10}', event="placed", version="2"),
        message(2, "red \x1b[31m\nline"),
        message(3, "//4=", "base64"),
    ]
    page = {"window": WINDOW, "messages": found, "next_page_token": "abc"}
    monkeypatch.setattr(RefeedApi, "list_messages", lambda self, topic, **wanted: page)
    result = refeed("messages", "orders", "--limit", "3")
    text = result.out
    assert result.err == "more: --page-token abc\n"
    assert text.splitlines() == [
        "1  published 2026-01-02T03:30:00.000000Z",
        "  event=placed version=2",
        '  {"id":"' + "x" * 68 + "...",
        "2  published 2026-01-02T03:30:00.000000Z",
        "  red \\x1b[31m line",
        "3  published 2026-01-02T03:30:00.000000Z",
        "  base64 //4=",
        "",
        "3 messages of orders that arrived from 2026-01-02 03:00 to 2026-01-02 04:00 UTC, latest arrival first",
        "a whole message: refeed messages orders --full --id 1 --from 2026-01-02T03:30:01Z",
        f"replay all messages of that time: {REPLAY}",
    ]
    assert max(len(line) for line in text.splitlines()[:8]) <= COLUMNS


def test_whole_messages_are_asked_for_page_by_page_up_to_the_limit(refeed, monkeypatch):
    asked = []

    def pages(self, topic, **wanted):
        asked.append(wanted)
        return {
            "window": WINDOW,
            "messages": [message(len(asked), '{"a":1.10,  "a":2}\n[]')] * 10,
            "next_page_token": f"t{len(asked)}",
        }

    monkeypatch.setattr(RefeedApi, "list_messages", pages)
    result = refeed("messages", "orders", "--full", "--limit", "20", "-a", "k=v 2")
    text = result.out
    assert [(each["page_token"], each["page_size"]) for each in asked] == [(None, 20), ("t1", 10)]
    assert (asked[0]["attribute"], asked[0]["as_text"]) == (["k=v 2"], "true")
    assert text.count('  data       100 bytes, text\n{"a":1.10,  "a":2}\n[]\n') == 20
    assert text.endswith(" --to 2026-01-02T03:30:01Z --attribute 'k=v 2'\n")
    assert result.err == "more: --page-token t2\n"
