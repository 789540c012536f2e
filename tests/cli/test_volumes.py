"""What ``refeed volumes`` prints."""

from cli.volumes import render_volumes

STARTS = [f"2026-01-01T0{hour}:00:00Z" for hour in range(3)]


def series(topic, *messages, gaps=(), **more):
    total = sum(messages)
    counts = {"messages": list(messages), "total_messages": total, "bytes": list(messages), "total_bytes": total}
    return {"topic": topic, **counts, "gaps": list(gaps), **more}


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
