"""Streams that start without their predecessor's home: nothing is lost, and nothing is written twice."""

import time
from collections import Counter

import pytest
from deltalake import DeltaTable

from model import failpoint
from rollout.child import Children
from tests.acceptance.conftest import Backyard
from tests.acceptance.test_pipeline import attach, plant
from tests.waiting import wait_until
from tests.worlds.bucket import bucket_lake, gs_server, s3_server, settings_at

__all__ = ["bucket_lake", "gs_server", "plant", "s3_server"]

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(900)]

TOPICS = ("orders", "members")


def test_backup_and_pipeline_lose_their_homes_after_a_seek_and_a_kill_before_the_acknowledgements(plant, tmp_path):
    plant.publish_schema()
    plant.attach(*TOPICS)
    attach(plant, *TOPICS)
    subscriptions = [f"refeed-{kind}.{topic}" for kind in ("backup", "pipeline") for topic in TOPICS]
    for subscription in subscriptions:
        plant.pubsub.create_snapshot(f"before.{subscription}", subscription)
    plant.send_some(100, 0)
    places = {name: tmp_path / name for name in ("backup", "pipeline")}
    streams = [
        plant.start_backup(REFEED_FAILPOINTS=str(places["backup"])),
        plant.start_pipeline(REFEED_FAILPOINTS=str(places["pipeline"])),
    ]
    for stream in streams:
        plant.wait_until_archived(stream)
    # Each commits what is new and dies before it acknowledges any of it.
    for place in places.values():
        failpoint.arm(place, "commit.after")
    plant.send_some(20, 1)

    def are_hit():
        for stream, place in zip(streams, places.values(), strict=True):
            assert stream.is_running or failpoint.is_hit(place, "commit.after"), stream.ended_error().message
        return all(failpoint.is_hit(place, "commit.after") for place in places.values())

    wait_until(are_hit, seconds=180, why=f"both were killed: {[stream.log_tail() for stream in streams]}")
    for stream in streams:
        stream.kill()

    # All that was acknowledged comes again too, to streams that know nothing of it.
    (plant.home / "streams").rename(plant.home / "lost")
    for subscription in subscriptions:
        plant.pubsub.seek_to_snapshot(subscription, f"before.{subscription}")
    assert plant.unacked() > 300
    plant.send_some(20, 2)
    streams = start_again(plant.start_backup, plant.start_pipeline)
    for stream in streams:
        plant.wait_until_archived(stream)
    assert [stream.stop() for stream in streams] == [0, 0]
    plant.check()
    archived = plant.archived_ids()
    assert {key: count for key, count in archived.items() if count > 1} == {}
    assert {f"{topic} {message_id}" for topic, message_id in archived} == set().union(*plant.ids.values())


def start_again(*starts):
    """Start streams until the leases of those that were killed have run out, as a supervisor does; return them."""
    streams = [start() for start in starts]

    def run():
        for place, start in enumerate(starts):
            if not streams[place].is_running:
                streams[place] = start()
        return all(stream.log.exists() and "_started" in stream.log.read_text() for stream in streams)

    wait_until(run, seconds=180, why=f"the leases ran out: {[stream.log_tail() for stream in streams]}")
    return streams


def test_a_backup_of_a_lake_in_a_bucket_goes_on_in_a_home_that_shares_nothing_with_the_first(
    bucket_lake, request, tmp_path
):
    server = request.getfixturevalue(f"{bucket_lake.partition('://')[0]}_server")
    with Children() as children:
        yard = Backyard(tmp_path / "one", children, REFEED_LAKE=bucket_lake, **settings_at(server))
        yard.wait_for_server()
        yard.attach(*TOPICS)
        backup = yard.start_backup(REFEED_FAILPOINTS=str(tmp_path))
        for topic in TOPICS:
            yard.publish(topic, 200)
        yard.wait_until_archived(backup)
        # It commits what is new, and dies before it acknowledges any of it.
        failpoint.arm(tmp_path, "commit.after")
        for topic in TOPICS:
            yard.publish(topic, 50, seed=1)
        wait_until(lambda: failpoint.is_hit(tmp_path, "commit.after"), seconds=60, why="it was killed")
        backup.kill()
        died_at = time.monotonic()

        yard.home = tmp_path / "two"
        yard.environment["REFEED_HOME"] = str(yard.home)
        (backup,) = start_again(yard.start_backup)
        paused_seconds = time.monotonic() - died_at
        for topic in TOPICS:
            yard.publish(topic, 50, seed=2)
        yard.wait_until_archived(backup)
        assert backup.stop() == 0
        table = DeltaTable(f"{bucket_lake}/{yard.settings.archive_table.replace('.', '/')}")
        rows = table.to_pyarrow_table(columns=["topic", "message_id", "data"]).to_pylist()
        ids = Counter((row["topic"], row["message_id"]) for row in rows)
        assert {key: count for key, count in ids.items() if count > 1} == {}
        assert {(row["topic"], row["message_id"]): row["data"] for row in rows} == {
            key: message.data for key, message in yard.published.items()
        }
        assert paused_seconds < 120, "a lease of 20 s, and the start of Spark"
