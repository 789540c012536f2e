import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.errors import InvalidNameError
from model.message import backup_subscription_id, parse_resource_id, replay_token

resource_ids = st.from_regex(r"[A-Za-z][A-Za-z0-9\-_.~+%]{2,254}", fullmatch=True).filter(
    lambda text: not text.startswith("goog")
)


@pytest.mark.parametrize("text", ["orders", "github.pull_request", "a-b_c.d~e+f%20", "A" * 255])
def test_what_pubsub_takes_is_a_name(text):
    assert parse_resource_id(text) == text


@pytest.mark.parametrize(
    "text", ["", "ab", "1orders", "google-orders", "with space", "a/b", "ключ", "A" * 256, "abc\n"]
)
def test_what_pubsub_refuses_is_refused_with_the_rule(text):
    with pytest.raises(InvalidNameError, match="a letter, and then have 2 to 254"):
        parse_resource_id(text)


@given(resource_ids)
def test_the_backup_subscription_of_every_topic_has_a_name_that_pubsub_takes(topic):
    assert parse_resource_id(backup_subscription_id(topic), "subscription")


@given(st.lists(st.text("ab", min_size=240, max_size=255), min_size=2, max_size=2, unique=True))
def test_two_long_topics_never_share_a_subscription(topics):
    first, second = (backup_subscription_id("t" + topic[:254]) for topic in topics)
    assert (first == second) == (topics[0][:254] == topics[1][:254])


@given(st.text(min_size=1), resource_ids, resource_ids)
def test_a_token_belongs_to_one_secret_and_one_topic(secret, topic, other):
    assert (replay_token(secret, topic) == replay_token(secret, other)) == (topic == other)
    assert replay_token(secret, topic) != replay_token(secret + "x", topic)
