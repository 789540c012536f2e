"""What ``refeed messages`` prints of given pages; tests/api/test_inventory.py has it with the API."""

from cli.terminal import COLUMNS
from client.api import RefeedApi

WINDOW = {"from": "2026-01-02T03:00:00.000000Z", "to": "2026-01-02T04:00:00.000000Z"}


def message(number, data, encoding="json", **attributes):
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
        message(1, {"id": "x" * 200}, event="placed", version="2"),
        message(2, "red \x1b[31m\nline", "text"),
        message(3, "//4=", "base64"),
    ]
    page = {"window": WINDOW, "messages": found, "next_page_token": "abc"}
    monkeypatch.setattr(RefeedApi, "list_messages", lambda self, topic, **wanted: page)
    text = refeed("messages", "orders", "--limit", "3").out
    assert text.splitlines() == [
        "1  published 2026-01-02T03:30:00.000000Z",
        "  event=placed version=2",
        '  {"id": "' + "x" * 67 + "...",
        "2  published 2026-01-02T03:30:00.000000Z",
        "  red \\x1b[31m line",
        "3  published 2026-01-02T03:30:00.000000Z",
        "  base64 //4=",
        "",
        "3 messages of orders that arrived from 2026-01-02 03:00 to 2026-01-02 04:00 UTC",
        "more: --page-token abc",
        "a whole message: refeed messages orders --full --id 1 --from ...",
        "replay: refeed backfill orders --from ... --to ...",
    ]
    assert max(len(line) for line in text.splitlines()[:8]) <= COLUMNS


def test_whole_messages_are_asked_for_page_by_page_up_to_the_limit(refeed, monkeypatch):
    asked = []

    def pages(self, topic, **wanted):
        asked.append(wanted)
        return {"window": WINDOW, "messages": [message(len(asked), [1])] * 10, "next_page_token": f"t{len(asked)}"}

    monkeypatch.setattr(RefeedApi, "list_messages", pages)
    text = refeed("messages", "orders", "--full", "--limit", "20", "-a", "k=v").out
    assert [(each["page_token"], each["page_size"]) for each in asked] == [(None, 20), ("t1", 10)]
    assert asked[0]["attribute"] == ["k=v"]
    assert text.count("  data       100 bytes, json\n[\n  1\n]\n") == 20
    assert "more: --page-token t2" in text
