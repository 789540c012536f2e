from collections import Counter
from datetime import UTC, datetime, timedelta

from cli.demo import history
from cli.demo.history import FULL_HOURS, FULL_MESSAGES, STRAYED, find_hole, generate_hour, write_history
from cli.demo.shop import MEMBERS, ORDERS
from connectors.lake.archive import LakeArchive
from model.archive import Attempt
from model.message import REPLAY_TAGS
from model.window import Window
from tests.archive import messages

END = datetime(2026, 1, 15, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
DAYS = 5


def test_the_same_seed_gives_the_same_hour() -> None:
    first, again, other = (list(generate_hour(END - 2 * HOUR, END, seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert all(END - 2 * HOUR <= each.at < END - HOUR for each in first)


def test_the_orders_of_one_hour_went_to_another_topic_half_of_them_in_another_shape() -> None:
    hole = find_hole(END)
    topics = Counter(each.topic for each in generate_hour(hole, END, 1))
    assert topics[ORDERS] == 0
    versions = Counter(
        each.message.attributes["version"] for each in generate_hour(hole, END, 1) if each.topic == STRAYED
    )
    assert versions["3"] - versions["4"] in {0, 1}
    assert versions.total() > 100
    for hour in (hole - HOUR, hole + HOUR):
        assert Counter(each.topic for each in generate_hour(hour, END, 1))[STRAYED] == 0


def test_some_messages_have_no_room_for_a_replay_s_tags() -> None:
    full = [
        each.message
        for each in generate_hour(END - FULL_HOURS * HOUR, END, 1)
        if len(each.message.attributes) > 90
    ]
    assert len(full) == FULL_MESSAGES
    assert all(len(each.attributes) <= 100 < len(each.attributes) + len(REPLAY_TAGS) for each in full)


def test_the_archive_counts_what_was_generated_in_its_hours_and_the_hole_is_its_only_gap(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "DAYS", DAYS)
    archive = LakeArchive(str(tmp_path), "backup.messages")
    archive.create()
    # A backup has written before.
    first = Attempt("backup", 1, "backup", archive.take_lease("backup"))
    archive.commit([archive.writer().write([("other", "s", messages(1))])], first)
    written = list(write_history(archive, END, 1))
    assert len(written) == DAYS * 24
    assert archive.count_rows() == sum(written) + 1
    found = archive.volumes(Window(END - timedelta(days=DAYS), END)).by_hour
    for hours_ago in (1, 7, 30, DAYS * 24):
        hour = END - hours_ago * HOUR
        wanted = Counter(each.topic for each in generate_hour(hour, END, 1))
        assert {topic: volume.messages for topic, volume in found[hour].items()} == wanted
    orders = {hour: topics[ORDERS].messages for hour, topics in found.items() if ORDERS in topics}
    assert [END - ago * HOUR for ago in range(1, DAYS * 24) if END - ago * HOUR not in orders] == [find_hole(END)]
    assert all(MEMBERS in topics for topics in found.values())
    assert archive.committed_attempt("backup") == 1
