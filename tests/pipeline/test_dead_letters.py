from datetime import UTC, datetime

import pytest

from pipeline.dead_letters import dead_letter_rows
from pipeline.decode import Refusal
from tests.pipeline.conftest import TAGS, messages


def letter(attributes: dict[str, str], refusal: Refusal | None = None) -> dict:
    refused = [refusal or Refusal(0, "not_json", "It is no JSON.")]
    pulled = messages(b"nope", attributes=attributes)
    return dead_letter_rows(
        pulled, refused, topic="orders", token="token", source="orders", version=None
    ).to_pylist()[0]


def test_a_replay_that_fails_again_is_the_same_message_as_before_with_untouched_attributes():
    found = letter({"own": "1", **TAGS})
    assert (found["topic"], found["message_id"]) == ("orders-old", "original")
    assert found["publish_time"] == datetime(2023, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    assert {pair["key"]: pair["value"] for pair in found["attributes"]} == {"own": "1", **TAGS}


@pytest.mark.parametrize("attributes", [{}, {**TAGS, "refeed_replay": "forged"}])
def test_another_message_is_what_pubsub_says_it_is(attributes):
    found = letter(attributes)
    assert (found["topic"], found["message_id"]) == ("orders", "1")
    assert found["publish_time"] == datetime(2024, 3, 1, 12, tzinfo=UTC)
    assert len(found["attributes"]) == len(attributes)


def test_a_reason_that_quotes_broken_text_is_written_as_escapes_and_not_without_end():
    found = letter({}, Refusal(0, "wrong_type", "\ud800" + "x" * 5000))
    assert found["error_message"].startswith("\\ud800xxx")
    assert len(found["error_message"]) < 1100
