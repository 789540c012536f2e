from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from pydantic import TypeAdapter, ValidationError

from model.declaration import Declared, FieldSpec, declared_fields, example_of


@dataclass(frozen=True, slots=True)
class Lens(Declared):
    """A part of a camera."""

    glass: Annotated[str, FieldSpec(description="Its kind.", longest=5)]


@dataclass(frozen=True, slots=True)
class Camera(Declared):
    """Something to take pictures with."""

    name: Annotated[str, FieldSpec(description="Its name.", shortest=1, example="box")]
    price: Annotated[float | None, FieldSpec(description="In euros.", above=0, most=1e6)] = None
    lens: Annotated[Lens | None, FieldSpec(description="Null is a pinhole.")] = None
    labels: Annotated[Mapping[str, str], FieldSpec(description="For lists.")] = field(default_factory=dict)
    sold: int = 0


CAMERAS: TypeAdapter[Camera] = TypeAdapter(Camera)


def faults(**document: Any) -> set[tuple[str, tuple[int | str, ...]]]:
    with pytest.raises(ValidationError) as caught:
        CAMERAS.validate_python(document)
    return {(error["type"], error["loc"]) for error in caught.value.errors()}


def test_json_becomes_the_dataclass_and_what_it_is_made_of() -> None:
    found = CAMERAS.validate_python({"name": "box", "price": 3, "lens": {"glass": "BK7"}})
    assert found == Camera("box", 3.0, Lens("BK7"))


def test_types_are_strict_and_fields_known_at_every_depth() -> None:
    assert faults(name=1, price="3", lens={"glass": "long one", "z": 1}, labels={"a": 1}, z=1) == {
        ("string_type", ("name",)),
        ("float_type", ("price",)),
        ("string_too_long", ("lens", "glass")),
        ("unexpected_keyword_argument", ("lens", "z")),
        ("string_type", ("labels", "a")),
        ("unexpected_keyword_argument", ("z",)),
    }


def test_a_schema_has_descriptions_bounds_and_an_example() -> None:
    schema = CAMERAS.json_schema()
    assert schema["examples"] == [{"name": "box"}]
    assert schema["properties"]["name"] == {
        "type": "string",
        "minLength": 1,
        "title": "Name",
        "description": "Its name.",
        "examples": ["box"],
    }
    price = schema["properties"]["price"]
    assert (price["description"], price["exclusiveMinimum"], price["maximum"]) == ("In euros.", 0, 1e6)
    assert schema["additionalProperties"] is False


def test_a_declaration_is_read_in_its_order() -> None:
    found = list(declared_fields(Camera))
    assert [each.name for each in found] == ["name", "price", "lens", "labels"]
    assert [each.kind for each in found] == [str, float, Lens, Mapping[str, str]]
    assert [each.default for each in found][1:] == [None, None, {}]
    assert example_of(Camera) == {"name": "box"}
