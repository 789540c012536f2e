"""A short chaos with a fixed seed; `make chaos` runs longer ones."""

from pathlib import Path

import pytest

from tests.chaos.run import run_chaos
from tests.chaos.yard import TOPICS, nasty_message

pytestmark = [pytest.mark.timeout(900)]


@pytest.mark.java
@pytest.mark.acceptance
def test_a_stream_that_is_killed_and_stopped_under_load_loses_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    tally = run_chaos([7], 4, said.append, tmp_path)
    assert tally.is_clean, "\n".join(said)
    assert tally.published > len(TOPICS)
    assert tally.kills == 4


def test_the_messages_are_of_every_kind() -> None:
    messages = [nasty_message(1, number) for number in range(11)]
    assert any(not message.data for message in messages)
    assert any("refeed_replay" in message.attributes for message in messages)
    assert max(len(message.attributes) for message in messages) == 100
    assert any(b"\x00" in message.data for message in messages)
