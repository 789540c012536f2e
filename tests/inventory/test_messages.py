"""The message browser over a small archive in a lake; test_bigquery has it over BigQuery's stand-in."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from backfill.plan.plan import render_data
from connectors.lake.query import QueryLimits
from connectors.lake.query_process import QueryProcesses
from inventory.messages import MAX_FULL_PAGE_SIZE, MessageBrowser, MessagePage, MessageRequest, _render_query
from model.errors import InvalidNameError, RequestInvalidError
from model.window import Window
from tests.archive import fill_archive
from warehouse.figures import MAX_SHOWN_BYTES
from warehouse.lake.queries import LakeMessages
from warehouse.lake.warehouse import LakeWarehouse
from warehouse.queries import ArchiveQuery

LARGE = b"x" * (MAX_SHOWN_BYTES + 1)


class _Rows:
    """An archive that gives these rows to every query and keeps the query."""

    table = "backup.messages"

    def __init__(self, *payloads: bytes) -> None:
        now = datetime.now(UTC)
        known = {"topic": "orders", "publish_time": now, "ingest_time": now, "ordering_key": "", "attributes": []}
        self.rows = [
            {"message_id": str(n), "data": data, "data_bytes": len(data), **known}
            for n, data in enumerate(payloads)
        ]
        self.queries: list[ArchiveQuery] = []

    def read(self, query: ArchiveQuery) -> list[dict[str, object]]:
        self.queries.append(query)
        return self.rows


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    fill_archive(home, {"orders": 7, "members": 2})
    processes = QueryProcesses(keep_spare=True)
    place = LakeWarehouse(str(home / "lake"), "backup.messages", "backup.dead_letters", "day", "500MB")
    yield MessageBrowser(LakeMessages(place, processes, QueryLimits("500MB", home / "spill", seconds=60)))
    processes.close()


def ids(page: MessagePage) -> list[str]:
    return [message["message_id"] for message in page.messages]


def test_a_message_is_found_by_its_attributes_and_by_its_id(browser):
    (found,) = browser.read_page(MessageRequest("orders", attributes={"n": "3"})).messages
    assert found.pop("ingest_time").endswith("Z")
    assert found == {
        "message_id": "m3",
        "topic": "orders",
        "publish_time": "2024-03-01T00:00:03.000000Z",
        "ordering_key": "",
        "attributes": {"n": "3"},
        "data": {"n": 3},
        "encoding": "json",
        "data_bytes": 8,
        "is_cut": False,
    }
    assert ids(browser.read_page(MessageRequest("members", message_id="m1", is_full=True))) == ["m1"]
    # A key and a value that are there, of two messages; and what a text would be in a query.
    for attributes in ({"n": "3", "m": "3"}, {"n": "' OR '1'='1"}):
        assert ids(browser.read_page(MessageRequest("orders", attributes=attributes))) == []
    past = datetime.now(UTC) - timedelta(hours=3)
    assert ids(browser.read_page(MessageRequest("orders", start=past, end=past + timedelta(hours=1)))) == []


def test_a_query_reads_the_partitions_of_its_window_alone():
    window = Window(datetime(2026, 1, 2, 23, tzinfo=UTC), datetime(2026, 1, 3, 1, tzinfo=UTC))
    query = _render_query("backup.messages", MessageRequest("orders"), window, None, 21)
    assert query.sql.count("SELECT") == 1
    assert query.sql.endswith("LIMIT 21")
    assert query.parameters["partitions_from"]["value"] == "2026-01-02T00:00:00+00:00"
    # A row reaches its partition within a day.
    assert query.parameters["partitions_to"]["value"] == "2026-01-04T01:00:00+00:00"


def test_a_payload_is_cut_unless_all_of_it_is_asked_for():
    rows = _Rows(LARGE, b"\xff\xfe")
    short = MessageBrowser(rows).read_page(MessageRequest("orders")).messages
    assert (len(short[0]["data"]), short[0]["is_cut"], short[0]["data_bytes"]) == (4096, True, 4097)
    assert (short[1]["data"], short[1]["encoding"], short[1]["is_cut"]) == ("//4=", "base64", False)
    (whole, _) = MessageBrowser(rows).read_page(MessageRequest("orders", is_full=True)).messages
    assert (len(whole["data"]), whole["is_cut"]) == (4097, False)


def test_whole_payloads_come_ten_a_page_however_many_are_asked_for():
    rows = _Rows(*[b"1"] * (MAX_FULL_PAGE_SIZE + 1))
    page = MessageBrowser(rows).read_page(MessageRequest("orders", is_full=True, page_size=1000))
    assert (len(page.messages), page.next_page_token is None) == (10, False)
    assert rows.queries[0].sql.endswith("LIMIT 11")


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        # No answer can hold them.
        *((data, "text") for data in (b"1e400", rb'"\ud800"', b"NaN", b"9" * 5000, b"[" * 5000)),
        # An answer would change their numbers or keys.
        *((data, "text") for data in (b'{"n": 1.10}', b"[1e3, -0]", b"0.1000000000000000055", b"1E2")),
        *((data, "text") for data in (b'{"n": 1, "n": 2}', b'{"a": {"n": -0.0e0}}')),
        (b'{"id": 9007199254740993, "n": [1.5, -0.0, 1e+16, 0, -7, 123456789012345678901234567890]}', "json"),
    ],
)
def test_json_is_shown_as_json_where_an_answer_keeps_it_whole(data, encoding):
    shown, found = render_data(data, None)
    assert (json.dumps(shown) if encoding == "json" else shown, found) == (data.decode(), encoding)


def test_payloads_that_are_wanted_as_text_are_never_parsed():
    rows = _Rows(b'{"n":1.10 }', b'{"n": 1}', b"\xff\xfe")
    found = MessageBrowser(rows).read_page(MessageRequest("orders", is_text=True)).messages
    assert [(each["data"], each["encoding"]) for each in found] == [
        ('{"n":1.10 }', "text"),
        ('{"n": 1}', "text"),
        ("//4=", "base64"),
    ]


def test_a_request_that_is_none_is_refused_with_its_place():
    browser = MessageBrowser(_Rows(b"1", b"2"))
    now = datetime.now(UTC)
    token = browser.read_page(MessageRequest("orders", page_size=1)).next_page_token
    assert token is not None
    for request, pointer in (
        (MessageRequest("orders", start=now, end=now), "query:from"),
        (MessageRequest("orders", end=datetime.max.replace(tzinfo=UTC)), "query:from"),
        (MessageRequest("orders", end=datetime.min.replace(tzinfo=UTC)), "query:from"),
        (MessageRequest("orders", attributes={str(n): "" for n in range(11)}), "query:attribute"),
        (MessageRequest("orders", page_token="x"), "query:page_token"),
        (MessageRequest("orders", page_token="W10"), "query:page_token"),
        (MessageRequest("members", page_token=token), "query:page_token"),
    ):
        with pytest.raises(RequestInvalidError) as refused:
            browser.read_page(request)
        assert refused.value.details["errors"][0]["pointer"] == pointer
    with pytest.raises(InvalidNameError):
        browser.read_page(MessageRequest("x'; DROP"))
