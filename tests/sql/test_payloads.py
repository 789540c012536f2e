"""No message makes a query fail that Google answers, whatever its payload holds, and each is answered as there."""

import pytest

from tests.sql import payloads
from tests.sql.answers import Lake, is_same

QUESTIONS = payloads.questions()
RECORDED = payloads.read_record()


@pytest.fixture(scope="module")
def lake():
    lake = Lake()
    yield lake
    lake.close()


@pytest.mark.parametrize("call", QUESTIONS)
def test_every_payload_is_answered_as_google_does(lake, call):
    kind, literals = QUESTIONS[call]
    found = lake.column(call, kind, literals)
    assert found != ["error"]
    answers = zip(literals, RECORDED[call], found, strict=True)
    assert not [answer for answer in answers if not is_same(answer[2], answer[1], answer[0])]


@pytest.mark.parametrize("call", payloads.CALLS)
def test_what_nests_too_deep_or_is_too_long_fails_no_query(lake, call):
    assert "error" not in lake.column(call, "STRING", [*map(payloads.as_text, payloads.DEEP)])


@pytest.mark.parametrize("text", [r'{"a":"\ud83d\ude00"}', r'{"b":"\\\\ud83d","a":"\ud83d\ude00"}'])
@pytest.mark.parametrize("call", ["JSON_VALUE(c0, '$.a')", "LAX_STRING(PARSE_JSON(c0).a)"])
def test_a_pair_of_surrogates_is_one_character(lake, call, text):
    assert lake.column(call, "STRING", [payloads.as_text(text)]) == ['"\U0001f600"']


def test_half_a_pair_behind_an_escaped_backslash_hides_in_no_pair(lake):
    text = payloads.as_text(r'{"a":"\\ud83d\ude00"}')
    assert lake.column("JSON_VALUE(c0, '$.a')", "STRING", [text]) == ['"\\\\ud83d\ufffd"']
