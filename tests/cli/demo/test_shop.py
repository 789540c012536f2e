from collections import Counter

from cli.demo.shop import MEMBERS, ORDERS, PICTURES, PRODUCTS, generate_messages
from model.message import REPLAY_ATTRIBUTE


def test_the_same_seed_makes_the_same_messages() -> None:
    assert list(generate_messages(500, 7)) == list(generate_messages(500, 7))
    assert list(generate_messages(500, 7)) != list(generate_messages(500, 8))


def test_a_shorter_run_is_the_beginning_of_a_longer_one() -> None:
    assert list(generate_messages(50, 1)) == list(generate_messages(200, 1))[:50]


def test_every_hard_case_of_a_backup_is_among_them() -> None:
    messages = list(generate_messages(5000, 1))
    topics = Counter(topic for topic, _ in messages)
    assert set(topics) == {ORDERS, PRODUCTS, MEMBERS, PICTURES}
    assert topics.most_common(1)[0][0] == ORDERS
    assert all(message.data or message.attributes for _, message in messages)
    assert any(not message.data for _, message in messages)
    assert any(not message.attributes for _, message in messages)
    assert any("" in message.attributes.values() for _, message in messages)
    assert any(REPLAY_ATTRIBUTE in message.attributes for _, message in messages)
    assert any(not is_utf8(message.data) for _, message in messages)


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
