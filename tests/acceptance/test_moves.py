"""Streams that start without their predecessor's home: nothing is lost, and nothing is written twice."""

import pytest

from model import failpoint
from tests.acceptance.test_pipeline import attach, plant
from tests.waiting import wait_until

__all__ = ["plant"]

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
