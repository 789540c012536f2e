"""Streams that start without their predecessor's home: nothing is lost, and nothing is written twice."""

import pytest

from tests.acceptance.test_pipeline import attach, plant
from tests.waiting import wait_until

__all__ = ["plant"]

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(900)]

TOPICS = ("orders", "members")


def test_backup_and_pipeline_lose_their_homes_after_a_seek_and_after_a_kill_before_the_acknowledgements(
    plant, tmp_path
):
    plant.publish_schema()
    plant.attach(*TOPICS)
    attach(plant, *TOPICS)
    subscriptions = [f"refeed-{kind}.{topic}" for kind in ("backup", "pipeline") for topic in TOPICS]
    for subscription in subscriptions:
        plant.pubsub.create_snapshot(f"before.{subscription}", subscription)
    plant.send_some(100, 0)
    streams = [plant.start_backup(), plant.start_pipeline()]
    for stream in streams:
        plant.wait_until_archived(stream)
    assert [stream.stop() for stream in streams] == [0, 0]

    # All that was acknowledged comes again, to streams that know nothing of it.
    for subscription in subscriptions:
        plant.pubsub.seek_to_snapshot(subscription, f"before.{subscription}")
    assert plant.unacked() > 300
    lose_homes(plant)
    plant.send_some(20, 1)
    markers = {name: tmp_path / name for name in ("backup", "pipeline")}
    # Each commits what is new and dies before it acknowledges any of it.
    armed = {name: f"commit.after=0:{marker}" for name, marker in markers.items()}
    streams = [
        plant.start_backup(REFEED_FAILPOINTS=armed["backup"]),
        plant.start_pipeline(REFEED_FAILPOINTS=armed["pipeline"]),
    ]

    def are_hit():
        for stream, marker in zip(streams, markers.values(), strict=True):
            assert stream.is_running or marker.exists(), stream.ended_error().message
        return all(marker.exists() for marker in markers.values())

    wait_until(are_hit, seconds=180, why=f"both were killed: {[stream.log_tail() for stream in streams]}")
    for stream in streams:
        stream.kill()

    lose_homes(plant)
    streams = start_again(plant.start_backup, plant.start_pipeline)
    for stream in streams:
        plant.wait_until_archived(stream)
    assert [stream.stop() for stream in streams] == [0, 0]
    plant.check()
    archived = plant.archived_ids()
    assert {key: count for key, count in archived.items() if count > 1} == {}
    assert {f"{topic} {message_id}" for topic, message_id in archived} == set().union(*plant.ids.values())


def lose_homes(plant) -> None:
    """Take the streams' state away; what is left of a killed stream's JVM may write there still."""
    lost = len(list(plant.home.glob("lost-*")))
    (plant.home / "streams").rename(plant.home / f"lost-{lost}")


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
