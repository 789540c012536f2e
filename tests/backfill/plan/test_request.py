from dataclasses import fields
from typing import Any

from backfill.plan.options import RunOptions
from backfill.plan.request import CHANGEABLE, BackfillRequest, YieldTo
from model.declaration import declared_fields
from tests.document import openapi_document

SCHEMAS: dict[str, Any] = openapi_document()["components"]["schemas"]
FIELDS = {field.name: field for field in declared_fields(BackfillRequest)}


def test_every_field_says_what_it_means() -> None:
    assert FIELDS.keys() == {field.name for field in fields(BackfillRequest)}
    assert [name for name, field in FIELDS.items() if not field.spec.description] == []


def test_every_field_stands_in_openapi_with_its_meaning_its_bounds_and_in_every_answer() -> None:
    asked, shown = SCHEMAS["BackfillRequest"], SCHEMAS["Backfill"]
    assert asked["properties"].keys() == FIELDS.keys()
    for name, field in FIELDS.items():
        found = asked["properties"][name]
        assert found["description"] == field.spec.description
        assert (found.get("minimum"), found.get("maximum")) == (field.spec.least, field.spec.most)
    assert asked["required"] == ["query", "topic"]
    assert FIELDS.keys() <= set(shown["required"])
    # OpenAPI's document leaves null out.
    assert shown["examples"][0].keys() >= {name for name, field in FIELDS.items() if field.default is not None}


def test_a_job_gives_its_request_back() -> None:
    request = BackfillRequest("SELECT 1", "orders", yield_to=YieldTo("live", 3.0), max_failed=2, labels={"a": "b"})
    assert BackfillRequest.from_json({**request.to_json(), "window": {}, "warnings": []}) == request
    assert RunOptions.from_specification({"run": request.to_json()}).max_failed == 2


def test_a_job_of_an_older_refeed_has_the_defaults_of_later_fields() -> None:
    found = BackfillRequest.from_json({"query": "SELECT 1", "topic": "orders", "max_failed": None})
    assert found == BackfillRequest("SELECT 1", "orders")


def test_a_backfill_that_lives_changes_in_three_fields() -> None:
    assert {"description", "labels", "rate_limit_messages_per_second"} == set(CHANGEABLE)
