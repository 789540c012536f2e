"""What people may ask of streams, and what they are told at once."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from model.errors import (
    ForbiddenError,
    RequestInvalidError,
    SnapshotExpiredError,
    SnapshotRefusedError,
    StreamExistsError,
)
from model.principal import LOCAL, STREAMS_OPERATE, Principal
from model.stream_snapshot import SourceSnapshot
from model.stream_update import UpdateRequest
from rollout.request import StreamLaunch
from rollout.service import StreamService
from rollout.starter import stream_arguments
from rollout.updates import UpdateService
from tests.worlds.snapshot_jobs import complete_snapshot

BOT = Principal("key:bot", frozenset({STREAMS_OPERATE}), ("shop-*",))


@pytest.fixture
def service(store):
    return StreamService(store, groups=lambda: frozenset({"default", "orders"}))


def backup(name="backup", **fields):
    return StreamLaunch(name=name, kind="backup", **fields)


def pipeline(name="pipeline-orders", group="orders", **options):
    return StreamLaunch(name=name, kind="pipeline", options={"group": group, **options})


def codes(refused):
    return [(error["code"], error["pointer"]) for error in refused.value.details["errors"]]


def test_a_launched_stream_has_its_options_with_the_group_s_default(service):
    record = service.launch(backup(options={"slots": 4, "batch_bytes": None}), principal=LOCAL)
    assert (record.options, record.created_by, record.release) == ({"slots": 4}, "local", None)
    other = service.launch(StreamLaunch(name="rows", kind="pipeline", release="1.2"), principal=LOCAL)
    assert (other.options, other.release) == ({"group": "default"}, "1.2")
    assert [each.name for each in service.list_records(principal=LOCAL)] == ["backup", "rows"]


def test_a_group_that_the_registry_does_not_have_is_refused_with_those_that_are_close(store, service):
    with pytest.raises(RequestInvalidError, match="Did you mean orders") as refused:
        service.launch(pipeline(group="ordres"), principal=LOCAL)
    assert codes(refused) == [("group_unknown", "/options/group")]
    # Nobody can say while the registry can't be read.
    assert StreamService(store).launch(pipeline(group="ordres"), principal=LOCAL).is_living


def test_the_same_work_is_not_launched_twice_under_two_names(service):
    service.launch(backup(), principal=LOCAL)
    service.launch(pipeline(), principal=LOCAL)
    with pytest.raises(StreamExistsError, match="backup is already the backup"):
        service.launch(backup("backup-2"), principal=LOCAL)
    with pytest.raises(StreamExistsError, match="pipeline-orders is already the pipeline of the group orders"):
        service.launch(pipeline("orders-2"), principal=LOCAL)
    with pytest.raises(StreamExistsError, match="is STARTING"):
        service.launch(backup(), principal=LOCAL)
    service.launch(pipeline("pipeline-default", "default"), principal=LOCAL)
    service.drain("backup", principal=LOCAL)
    assert service.launch(backup("backup-2"), principal=LOCAL).generation == 1


def test_a_kinesis_stream_is_read_once_for_each_topic(service):
    def launch(name, **options):
        wanted = {"stream": "orders", "region": "eu-west-1", "topic": "orders", **options}
        return service.launch(StreamLaunch(name=name, kind="kinesis", options=wanted), principal=LOCAL)

    record = launch("kinesis-orders")
    assert stream_arguments(record, "in_1") == ["kinesis", "run", "--name", "kinesis-orders", "--instance", "in_1"]
    with pytest.raises(
        StreamExistsError, match="kinesis-orders is already the kinesis of orders in eu-west-1 for orders"
    ):
        launch("again", start="TRIM_HORIZON")
    assert launch("other", topic="members").is_living
    assert launch("third", region="us-east-1").is_living


def test_a_key_with_topics_lets_a_kinesis_stream_publish_to_these_alone(store, service):
    def launch(**options):
        return service.launch(StreamLaunch(name="clicks", kind="kinesis", options=options), principal=BOT)

    with pytest.raises(ForbiddenError, match="may not publish to the topic orders"):
        launch(topic="orders")
    with pytest.raises(ForbiddenError, match="Name one in the option topic"):
        launch(stream="clicks")
    assert launch(topic="shop-eu").is_living
    updates = UpdateService(store)
    for topic in ("orders", None):
        with pytest.raises(ForbiddenError):
            updates.create("clicks", UpdateRequest(None, {"topic": topic}, {}), principal=BOT)
    assert updates.create("clicks", UpdateRequest(None, {"slots": 2}, {}), principal=BOT).stream == "clicks"


@pytest.mark.parametrize("seconds", [-1.0, 86_401.0, float("nan")])
def test_a_drain_is_bounded_by_a_day(service, seconds):
    service.launch(backup(), principal=LOCAL)
    with pytest.raises(RequestInvalidError) as refused:
        service.drain("backup", principal=LOCAL, timeout_seconds=seconds)
    assert codes(refused) == [("out_of_range", "/timeout_seconds")]


def test_pace_and_bounds_change_in_place_and_nothing_else_does(service):
    service.launch(backup(options={"slots": 4, "batch_seconds": 2}), principal=LOCAL)
    changed = service.change("backup", {"batch_seconds": None, "batch_bytes": 2_000_000}, principal=LOCAL)
    assert changed.options == {"slots": 4, "batch_bytes": 2_000_000}
    with pytest.raises(RequestInvalidError) as refused:
        service.change("backup", {"slots": 5, "batch_bytes": 1, "group": "x"}, principal=LOCAL)
    assert codes(refused) == [
        ("option_invalid", "/options/batch_bytes"),
        ("field_unknown", "/options/group"),
        ("option_fixed", "/options/slots"),
    ]
    assert service.change("backup", {}, principal=LOCAL) == changed, "nothing was asked for"


def completed(store, stream, *, expires_in):
    """Return the id of a whole snapshot of the stream, whose source expires after a while."""
    made = store.create_snapshot(stream, with_source=True, actor="ann")
    now = datetime.now(UTC)
    source = SourceSnapshot("refeed-pipeline.orders", "s", "orders", now + expires_in)
    return complete_snapshot(store, made.id, sources=[source], taken_at=now).id


def test_a_launch_from_a_snapshot_of_another_group_or_an_expired_one_is_refused(store, service):
    service.launch(pipeline("first"), principal=LOCAL)
    good = completed(store, "first", expires_in=timedelta(days=1))
    late = completed(store, "first", expires_in=timedelta(seconds=-1))
    with pytest.raises(StreamExistsError, match="Drain or cancel it first"):
        service.launch(replace(pipeline("second"), snapshot=good), principal=LOCAL)
    service.drain("first", principal=LOCAL)
    with pytest.raises(SnapshotRefusedError, match="other subscriptions"):
        service.launch(replace(pipeline("second", group="default"), snapshot=good), principal=LOCAL)
    with pytest.raises(SnapshotExpiredError):
        service.launch(replace(pipeline("second"), snapshot=late), principal=LOCAL)
    launched = service.launch(replace(pipeline("second"), snapshot=good), principal=LOCAL)
    assert launched.snapshot_id == good
