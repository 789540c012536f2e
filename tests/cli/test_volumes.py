"""What ``refeed volumes`` prints."""

from datetime import UTC, datetime, timedelta

from cli.volumes import render_volumes

STARTS = [f"2026-01-01T0{hour}:00:00Z" for hour in range(3)]


def series(topic, *messages, gaps=(), **more):
    total = sum(messages)
    counts = {"messages": list(messages), "total_messages": total, "bytes": list(messages), "total_bytes": total}
    return {"topic": topic, **counts, "gaps": list(gaps), **more}


def test_a_window_whose_last_step_has_not_ended_ends_now():
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    for end, said in (
        (tomorrow, "2026-01-01 00:00 UTC to now"),
        ("2026-01-01T03:00:00Z", "2026-01-01 00:00 to 2026-01-01 03:00 UTC"),
    ):
        found = {"window": {"from": STARTS[0], "to": end}, "starts": STARTS, "step": "hour"}
        assert next(render_volumes({**found, "topics": [series("orders", 1, 1, 1)]})) == said
        assert f"No messages arrived from {said}." in next(render_volumes({**found, "topics": []}))


def test_a_gap_names_the_topics_that_had_more_than_usual_then():
    orders = series("orders", 1000, 0, 1000, gaps=(STARTS[1],))
    strayed = series("orders-next", 0, 1000, 0, surges=[{"start": STARTS[1], "usual": 0}])
    later = series("clicks", 5, 5, 1000, surges=[{"start": STARTS[2], "usual": 5}])
    window = {"from": STARTS[0], "to": "2026-01-01T03:00:00Z"}
    found = {"window": window, "starts": STARTS, "step": "hour", "topics": [orders, strayed, later]}
    lines = list(render_volumes(found))
    assert lines[-2:] == [
        "GAP  2026-01-01 01:00  orders",
        "       more than usual: orders-next had 1,000, usually 0",
    ]
