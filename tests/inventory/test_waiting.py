"""What waits for the pipelines of a topic, by Pub/Sub's figures and by those of the streams."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from connectors.pubsub.stats import SubscriptionStats
from inventory.streams import read_streams
from inventory.waiting import describe_idle, find_waiting
from model.stream import StoredReport, StreamReport
from pipeline.registry import Source

SOURCE = Source("orders", "orders", "refeed-pipeline.orders", "staging.orders", "", "default", "plain")
LAUNCH = "refeed launch pipeline-default --kind pipeline --group default"


def streams(tmp_path, state="stopped", **status):
    report = StreamReport("pipeline-default", "in_1", "m", 7, state, status)
    return read_streams(tmp_path, None, [StoredReport(report, datetime.now(UTC), 1.0)])


@pytest.mark.parametrize(
    ("stats", "messages"),
    [
        ({}, None),
        ({SOURCE.subscription: SubscriptionStats(0, 0.0)}, None),
        # The oldest was published after the replay had ended.
        ({SOURCE.subscription: SubscriptionStats(9, 30.0)}, None),
        ({SOURCE.subscription: SubscriptionStats(9, 90.0)}, 9),
    ],
)
def test_the_messages_of_a_replay_wait_while_one_as_old_does(tmp_path, stats, messages):
    found = find_waiting([SOURCE], streams(tmp_path), stats, datetime.now(UTC) - timedelta(minutes=1))
    assert (found and found.messages) == messages


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (
            "stopped",
            "The stream pipeline-default is DRAINED. To launch it again: refeed launch pipeline-default",
        ),
        (
            "starting",
            "The stream pipeline-default is STARTING. To see its backlog: refeed describe stream/pipeline-default",
        ),
        (
            None,
            f"No stream reads the group default. To launch one: {LAUNCH}",
        ),
    ],
)
def test_the_advice_names_the_stream_and_the_command(tmp_path, state, said):
    running = [] if state is None else streams(tmp_path, state)
    stats = {SOURCE.subscription: SubscriptionStats(1, 90.0)}
    found = find_waiting([SOURCE], running, stats, datetime.now(UTC) - timedelta(minutes=1))
    assert found.advice == f"1 message in refeed-pipeline.orders is not delivered yet. {said}"


@pytest.mark.parametrize(
    ("state", "sample", "messages"),
    [
        ("stopped", None, "unknown"),
        ("starting", None, "unknown"),
        ("running", None, None),
        ("running", (-30, 10.0), None),
        ("running", (-30, 60.0), 4),
        # A sample of before the end did not count all messages of the replay.
        ("running", (-90, 0.0), "unknown"),
    ],
)
def test_where_pub_sub_has_no_figures_those_of_the_stream_count(tmp_path, state, sample, messages):
    now = datetime.now(UTC)
    status = {}
    if sample is not None:
        at, age = sample
        status["backlog"] = {"oldest_unacked_seconds": age, "sampled_at": now.timestamp() + at, "messages": 4}
    found = find_waiting([SOURCE], streams(tmp_path, state, **status), None, now - timedelta(minutes=1))
    shown = None if found is None else "unknown" if found.messages is None else found.messages
    assert shown == messages
    assert find_waiting([SOURCE], [], None, now) is None


def test_what_waits_for_any_source_of_the_topic_counts(tmp_path):
    other = replace(SOURCE, name="copies", subscription="copies", group="eu")
    stats = {SOURCE.subscription: SubscriptionStats(2, 90.0), "copies": SubscriptionStats(3, 90.0)}
    found = find_waiting([SOURCE, other], streams(tmp_path), stats, datetime.now(UTC))
    assert found.messages == 5
    assert "No stream reads the group eu" in found.advice


UNKNOWN = (
    "The subscription refeed-pipeline.orders does not exist yet, so the pipeline gets no message that "
    "is published before its stream runs."
)
STARTING = "The stream pipeline-default is STARTING. To see its backlog: refeed describe stream/pipeline-default"
DRAINED = "The stream pipeline-default is DRAINED. To launch it again: refeed launch pipeline-default"


@pytest.mark.parametrize(
    ("state", "receives", "said"),
    [
        ("running", {SOURCE.subscription: True}, []),
        ("running", {}, []),
        ("stopped", {SOURCE.subscription: False}, []),
        (
            "stopped",
            {SOURCE.subscription: True, "shipping": True},
            [f"The messages wait in refeed-pipeline.orders until its stream runs. {DRAINED}"],
        ),
        (
            "starting",
            {SOURCE.subscription: True},
            [f"The messages wait in refeed-pipeline.orders until its stream runs. {STARTING}"],
        ),
        (
            None,
            {},
            [f"{UNKNOWN} No stream reads the group default. To launch one: {LAUNCH}"],
        ),
    ],
)
def test_a_plan_says_that_the_pipeline_does_not_run(tmp_path, state, receives, said):
    running = [] if state is None else streams(tmp_path, state)
    assert describe_idle([SOURCE], running, receives) == said
