import pytest

from backfill.plan.reach import receives_replay
from model.message import replay_filter

KNOWN = {"refeed_replay": "t", "mine": "x"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        (replay_filter("t"), False),
        (replay_filter("other"), True),
        ("NOT attributes:refeed_replay", False),
        ("attributes:refeed_replay", True),
        ('attributes.region = "eu"', True),
        ('attributes.region = "eu" AND attributes.region = "us"', False),
        ('hasPrefix(attributes.region, "e") AND NOT attributes.region = "e"', True),
        ('attributes.mine = "y"', False),
        ("NOT attributes:refeed_backfill_id", False),
        ("NOT attributes:refeed_row", False),
        ("attributes:refeed_backfill_id", True),
        ("NOT attributes:refeed_target", True),
        ('attributes.mine = "x" AND NOT attributes:other', True),
        ("no filter at all (", True),
        (" AND ".join(f"attributes:k{n}" for n in range(14)), True),
    ],
)
def test_a_filter_lets_some_replayed_message_through_or_none(text: str, expected: bool) -> None:
    assert receives_replay(text, KNOWN) is expected
