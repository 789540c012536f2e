"""A short chaos over the whole system, planned by hand; `make chaos` draws longer ones from seeds."""

import pytest

from tests.chaos.messages import APPEND_BYTES, EVENTS, ORDERS, TOPICS, entity_message, nasty_message, topic_of
from tests.chaos.run import run_chaos
from tests.chaos.schedule import Schedule

pytestmark = [pytest.mark.timeout(900)]

PLAN = Schedule(
    7,
    {
        "backup": ["failpoint:commit.after"],
        "pipeline": ["failpoint:journal.written"],
        "backfill": ["failpoint:backfill.confirmed"],
        "tables": ["failpoint:merge.rewritten"],
    },
)


@pytest.mark.java
@pytest.mark.kills
def test_a_system_whose_every_part_is_killed_under_load_loses_doubles_and_changes_nothing(tmp_path):
    said = []
    tally = run_chaos([7], 0, said.append, warehouses=("lake",), folder=tmp_path, plan=PLAN)
    assert tally.is_clean, "\n".join(said)
    assert tally.published > len(TOPICS)
    assert tally.replayed > 0
    assert tally.hit == {("lake", part, harm.partition(":")[2]) for part, (harm,) in PLAN.harms.items()}


def test_the_messages_are_of_every_kind():
    messages = [nasty_message(1, number) for number in range(2_400)]
    sizes = [len(message.data) for message in messages]
    assert min(sizes) == 0
    assert max(sizes) > APPEND_BYTES, "BigQuery gets such a row another way"
    assert any("refeed_replay" in message.attributes for message in messages)
    assert max(len(message.attributes) for message in messages) == 100
    assert max(len(key) for message in messages for key in message.attributes) == 256
    assert any(b"\x00" in message.data for message in messages)
    assert any(message.data.startswith(b"[" * 100_000) for message in messages)
    assert {ORDERS, EVENTS} < set(TOPICS)
    large = {topic_of(number) for number, message in enumerate(messages) if len(message.data) > APPEND_BYTES}
    assert large == {TOPICS[0], ORDERS}, "one that is archived only, one that the pipeline takes"
    assert sum(message.data.startswith(b'{"id": ') for message in map(entity_message, [1] * 50, range(50))) == 40
