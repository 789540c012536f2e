"""The formats of a release: all in one list, and none changes without its number."""

import json
from dataclasses import fields
from typing import Any, get_args

import pytest

from connectors.bigquery.writes.large_rows import LargeRows
from connectors.bigquery.writes.part_writer import PendingRows
from connectors.lake.files import WrittenFile
from model.format import Format
from pipeline.registry import Source
from pipeline.repository import REPOSITORY_SCHEMA
from rollout.formats import ReleaseFormats, own_formats
from streams.control import Order, StreamControl
from streams.ids import IDS_SCHEMA, TABLE_IDS_SCHEMA
from streams.journal import EntryState
from streams.lease import Holder
from warehouse.open import KINDS


def names_of(kind: type) -> str:
    return " ".join(field.name for field in fields(kind))


_WORD = "dictionary<values=string, indices=int32, ordered=0>"
# What is written under each number. A line that changes asks: can the release before still read it? If not, the
# format takes its next number (and goes on reading the old one); if so, the line is brought up to date.
WRITTEN = {
    ("journal", 1): (
        f"topic:{_WORD} subscription:{_WORD} message_id:string publish_time:timestamp[us, tz=UTC] ack_id:string "
        f"| table:{_WORD} | pending done recovered"
    ),
    ("control", 1): "number order timeout_seconds batch_seconds batch_bytes | run drain cancel pause stand_by",
    ("lease", 1): "stream host pid epoch expires_at journal again",
    ("plan", 2): (
        "name topic subscription staging reporting group variant message descriptor version schema key event_time "
        "partition dedup_order event_type_attribute is_soft_delete scalars_as_text publish is_published_by_key"
    ),
    ("schema_repository", 1): (
        "source event_type hash version prototype schema shape table_name ingest_time attributes"
    ),
    ("lake.parts", 1): "path size_bytes rows partition modified_at_ms stats",
    ("bigquery.parts", 1): "table stream staged first end | table rows",
}


def written_now() -> dict[str, str]:
    columns = " ".join(f"{field.name}:{field.type}" for field in IDS_SCHEMA)
    (more,) = (f"{field.name}:{field.type}" for field in TABLE_IDS_SCHEMA if field.name not in IDS_SCHEMA.names)
    return {
        "journal": f"{columns} | {more} | {' '.join(EntryState)}",
        "control": f"{names_of(StreamControl)} | {' '.join(get_args(Order))}",
        "lease": names_of(Holder),
        "plan": names_of(Source),
        "schema_repository": " ".join(field.name for field in REPOSITORY_SCHEMA.fields),
        "lake.parts": names_of(WrittenFile),
        "bigquery.parts": f"{names_of(PendingRows)} | {names_of(LargeRows)}",
    }


def all_formats() -> dict[str, Format]:
    own = own_formats()
    beside = {f"{name}.{what}": each for name, formats in own.warehouses.items() for what, each in formats.items()}
    return {**own.state, **beside}


@pytest.mark.parametrize("name", sorted(written_now()))
def test_an_encoding_does_not_change_under_its_number(name: str) -> None:
    assert WRITTEN.get((name, all_formats()[name].writes)) == written_now()[name]


def test_a_release_reads_what_it_writes_and_says_so_of_every_warehouse() -> None:
    assert all(found.can_read(found) for found in all_formats().values())
    assert set(own_formats().warehouses) == set(KINDS)


def test_formats_come_back_from_their_text_also_those_of_a_release_that_has_others() -> None:
    own = own_formats()
    assert ReleaseFormats.from_json(json.loads(json.dumps(own.to_json()))) == own
    later: dict[str, Any] = {**own.to_json(), "version": "9.0"}
    later["state"] = {
        **later["state"],
        "journal": {"writes": 3, "reads": [2, 3]},
        "new": {"writes": 1, "reads": [1]},
    }
    found = ReleaseFormats.from_json(later)
    assert found.state["journal"] == Format(3, (2, 3))
    assert not own.state["journal"].can_read(found.state["journal"])
