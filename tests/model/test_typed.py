import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pytest

from model.process import DataprocBatch, Driver, Process
from model.typed import read_fields, reader, to_plain


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Part:
    colour: Colour
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Whole:
    parts: tuple[Part, ...]
    names: frozenset[str]
    notes: dict[str, Any]
    last: Part | None = None


PARTS = (Part(Colour.RED, datetime(2026, 1, 1, tzinfo=UTC)), Part(Colour.RED))
WHOLE = Whole(PARTS, frozenset({"a"}), {"at": "now"})


def test_what_is_written_as_json_is_read_again_with_its_types() -> None:
    plain = json.loads(json.dumps(WHOLE, default=lambda value: [*value] if value == {"a"} else to_plain(value)))
    found = read_fields(Whole, plain)
    assert found == WHOLE
    assert isinstance(found.parts[0].colour, Colour)
    assert found.notes["at"] == "now"


def test_a_field_that_is_missing_has_its_default_and_an_unknown_one_is_refused() -> None:
    assert read_fields(Part, {"colour": "red"}) == Part(Colour.RED)
    with pytest.raises(TypeError, match="shape"):
        read_fields(Part, {"colour": "red", "shape": "round"})
    with pytest.raises(ValueError, match="blue"):
        read_fields(Part, {"colour": "blue"})


@pytest.mark.parametrize("driver", [Process(1, 2, "boot"), DataprocBatch("batches/b"), None])
def test_of_several_dataclasses_the_one_with_the_fields_is_made(driver: Driver | None) -> None:
    plain = json.loads(json.dumps(driver, default=to_plain))
    assert reader(Driver | None)(plain) == driver


def test_json_has_no_text_for_anything_else() -> None:
    with pytest.raises(TypeError, match="set"):
        json.dumps({1}, default=to_plain)
