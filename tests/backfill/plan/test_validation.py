from datetime import UTC, datetime
from typing import Any

import pytest

from backfill.plan.request import BackfillRequest, YieldTo
from backfill.plan.validation import MAX_ADDED_ATTRIBUTES, validate_changes, validate_request
from model.errors import RequestInvalidError
from sql.validate import Policy, QueryRefusedError

QUERY = "SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2026-01-02'"
POLICY = Policy("backup.messages", None, datetime(2026, 1, 3, tzinfo=UTC))


def request(**changes: Any) -> BackfillRequest:
    return BackfillRequest(**{"query": QUERY, "topic": "orders", **changes})


def faults(**changes: Any) -> set[tuple[str, str]]:
    with pytest.raises(RequestInvalidError) as caught:
        validate_request(request(**changes), POLICY)
    return {(error["code"], error["pointer"]) for error in caught.value.details["errors"]}


def test_every_option_at_its_bounds_is_taken():
    valid = validate_request(
        request(
            rate_limit_messages_per_second=1 / 3600,
            max_rows=1,
            max_bytes_billed=1,
            ordering="by_key",
            attributes={"k" * 256: "v" * 1024, "é" * 128: "", "Refeed_": "not ours"},
            canary_messages=1,
            yield_to=YieldTo("live", 0.5),
            max_failed=0,
            target_subscription="billing",
        ),
        POLICY,
    )
    assert valid.window.start == datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"topic": "goog-x"}, ("name_invalid", "/topic")),
        ({"description": "x" * 2001}, ("description_too_long", "/description")),
        ({"labels": {"Team": "x"}}, ("label_invalid", "/labels")),
        ({"labels": {f"l{n}": "" for n in range(65)}}, ("too_many_labels", "/labels")),
        ({"rate_limit_messages_per_second": 0.0}, ("rate_invalid", "/rate_limit_messages_per_second")),
        ({"rate_limit_messages_per_second": float("nan")}, ("rate_invalid", "/rate_limit_messages_per_second")),
        ({"rate_limit_messages_per_second": float("inf")}, ("rate_invalid", "/rate_limit_messages_per_second")),
        ({"max_rows": 0}, ("number_invalid", "/max_rows")),
        ({"max_bytes_billed": 0}, ("number_invalid", "/max_bytes_billed")),
        ({"canary_messages": 0}, ("number_invalid", "/canary_messages")),
        ({"max_failed": -1}, ("number_invalid", "/max_failed")),
        ({"max_failed": 2**60}, ("number_invalid", "/max_failed")),
        ({"ordering": "random"}, ("ordering_invalid", "/ordering")),
        ({"attributes": {"refeed_replay": "x"}}, ("attribute_reserved", "/attributes")),
        ({"attributes": {"googclient_x": "x"}}, ("attribute_reserved", "/attributes")),
        ({"attributes": {"": "x"}}, ("attribute_invalid", "/attributes")),
        ({"attributes": {"é" * 129: "x"}}, ("attribute_invalid", "/attributes")),
        ({"attributes": {"k": "é" * 513}}, ("attribute_invalid", "/attributes")),
        (
            {"attributes": {f"k{n}": "" for n in range(MAX_ADDED_ATTRIBUTES + 1)}},
            ("too_many_attributes", "/attributes"),
        ),
        ({"yield_to": YieldTo("1", 1.0)}, ("name_invalid", "/yield_to/subscription")),
        ({"yield_to": YieldTo("live", 0.0)}, ("number_invalid", "/yield_to/max_oldest_unacked_seconds")),
        ({"target_subscription": "x"}, ("name_invalid", "/target_subscription")),
        ({"attributes": {"k": "\ud800"}}, ("text_invalid", "")),
    ],
)
def test_what_is_out_of_bounds_is_named_with_its_pointer(changes: dict[str, Any], fault: tuple[str, str]):
    assert faults(**changes) == {fault}


def test_faults_of_fields_and_of_the_query_come_together():
    with pytest.raises(RequestInvalidError) as caught:
        validate_request(
            request(query="DELETE FROM backup.messages WHERE true", max_rows=0, max_failed=-1), POLICY
        )
    pointers = [error.get("pointer") for error in caught.value.details["errors"]]
    assert pointers[:2] == ["/max_rows", "/max_failed"]
    assert any("line" in error for error in caught.value.details["errors"])


def test_a_query_that_is_the_only_fault_is_refused_as_a_query():
    with pytest.raises(QueryRefusedError):
        validate_request(request(query="SELECT 1"), POLICY)


def test_the_fingerprint_tells_every_option_from_its_absence():
    options: list[dict[str, Any]] = [
        {"max_rows": 5},
        {"start_paused": True},
        {"attributes": {"a": "b"}},
        {"plan_id": "pl_1"},
        {"allow_overlap": True},
        {"target_subscription": "billing"},
    ]
    assert request().fingerprint() == request().fingerprint()
    assert len({request(**option).fingerprint() for option in [{}, *options]}) == len(options) + 1


def test_a_replay_for_one_consumer_carries_its_name():
    assert request(attributes={"a": "b"}).added_attributes() == {"a": "b"}
    assert request(attributes={"a": "b"}, target_subscription="billing").added_attributes() == {
        "a": "b",
        "refeed_target": "billing",
    }


def test_only_what_may_change_while_a_backfill_lives_is_changed():
    changes = {"rate_limit_messages_per_second": None, "description": "why", "labels": {"a": "b"}}
    assert validate_changes(changes) == changes
    assert validate_changes({}) == {}
    with pytest.raises(RequestInvalidError) as caught:
        validate_changes({"rate_limit_messages_per_second": -1.0, "labels": {"A": ""}, "query": QUERY})
    assert {error["code"] for error in caught.value.details["errors"]} == {
        "rate_invalid",
        "label_invalid",
        "field_fixed",
    }
