"""Samples beside their originals: told apart by id and topic, byte for byte, and only where that is certain."""

from datetime import UTC, datetime, timedelta
from typing import Any

from backfill.plan.originals import compare_samples
from model.principal import LOCAL, Principal
from model.window import Window
from warehouse.queries import ArchiveQuery

DAY = datetime(2026, 1, 1, tzinfo=UTC)
WINDOW = Window(DAY, DAY + timedelta(days=1))


class Archived:
    """An archive with these messages; it keeps the queries."""

    table = "backup.messages"

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.rows = list(rows)
        self.asked: list[ArchiveQuery] = []

    def read(self, query: ArchiveQuery) -> list[dict[str, Any]]:
        self.asked.append(query)
        return self.rows


def message(message_id: str | None, topic: str | None = "orders", data: bytes = b"x") -> dict[str, Any]:
    row = {"message_id": message_id, "topic": topic, "publish_time": DAY, "ingest_time": DAY}
    return {**row, "attributes": [{"key": "a", "value": "1"}], "data": data, "data_bytes": len(data)}


def compare(archive: Archived, *samples: dict[str, Any], reader: Principal = LOCAL) -> list[dict[str, Any]]:
    return compare_samples(samples, archive, WINDOW, added={}, reader=reader, max_bytes=77)


def test_a_payload_is_compared_as_its_own_text() -> None:
    archive = Archived(message("1", data=b'{"id": 9007199254740993, "n": 1.10}'))
    (found,) = compare(archive, message("1", data=b'{"id":9007199254740993,"n":1.1}'))
    assert found["archived"]["data"] == '{"id": 9007199254740993, "n": 1.10}'
    assert found["published"]["data"] == '{"id":9007199254740993,"n":1.1}'
    (query,) = archive.asked
    assert (query.window, query.max_bytes_billed) == (WINDOW, 77)
    assert {value["value"] for value in query.parameters.values()} >= {"1", "orders", DAY.isoformat()}


def test_payloads_are_cut_and_binary_ones_are_base64() -> None:
    archive = Archived(message("1", data=b"\xff" * 4097) | {"data_bytes": 10_000})
    (found,) = compare(archive, message("1", data=b""))
    archived = found["archived"]
    assert (archived["encoding"], archived["is_cut"], archived["data_bytes"]) == ("base64", True, 10_000)
    assert (found["published"]["data"], found["published"]["is_cut"]) == ("", False)


def test_an_id_of_two_topics_is_nobody_s_unless_the_topic_is_known() -> None:
    both = Archived(message("1", "orders", b"o"), message("1", "members", b"m"))
    known, unknown, made_up, none = compare(
        both, message("1", "members"), message("1", None), message("2"), message(None)
    )
    assert known["archived"]["data"] == "m"
    assert [each["archived"] for each in (unknown, made_up, none)] == [None, None, None]
    (single,) = compare(Archived(message("1", "orders", b"o")), message("1", None))
    assert single["archived"]["topic"] == "orders"


def test_without_an_id_nothing_is_asked() -> None:
    archive = Archived(message("1"))
    assert compare(archive) == []
    assert compare(archive, message(None))[0]["archived"] is None
    assert archive.asked == []
