from console.view import render_bytes
from console.visit import PagePart
from console.volumes import draw_heat

STARTS = [f"2026-01-01T0{hour}:00:00Z" for hour in range(5)]


def series(topic: str, *counts: int | None, gaps: tuple[int, ...] = ()) -> dict[str, object]:
    total = None if None in counts else sum(count or 0 for count in counts)
    bytes_ = [None if count is None else count * 10 for count in counts]
    return {
        "topic": topic,
        "total_messages": total,
        "total_bytes": None if total is None else total * 10,
        "messages": list(counts),
        "bytes": bytes_,
        "gaps": [STARTS[number] for number in gaps],
    }


def heat(*topics: dict[str, object], measure: str = "messages"):
    return draw_heat(PagePart({"step": "hour", "starts": STARTS, "topics": list(topics)}), measure)


def test_a_cell_is_as_dark_as_its_share_of_the_topic_s_own_largest() -> None:
    (row,) = heat(series("orders", 0, 6, 6, 1, 3))["rows"]
    assert row.levels == {1: "M3 0h1v1h-1z", 3: "M4 0h1v1h-1z", 6: "M1 0h2v1h-2z"}
    assert (row.total, row.unknown, row.gaps) == (16, "", "")


def test_what_nobody_knows_is_neither_empty_nor_a_gap() -> None:
    (row,) = heat(series("orders", 5, None, None, 5, 5))["rows"]
    assert (row.unknown, row.gaps, row.total) == ("M1 0h2v1h-2z", "", None)
    (row,) = heat(series("orders", 5, None, None, 5, 5), measure="bytes")["rows"]
    assert str(render_bytes(row.total)) == '<span class="unknown">unknown</span>'


def test_gaps_lead_to_their_hour_the_newest_first() -> None:
    drawn = heat(series("small", 1, 0, 1, 1, 1, gaps=(1,)), series("large", 50, 50, 50, 0, 50, gaps=(3,)))
    assert [row.topic for row in drawn["rows"]] == ["large", "small"]
    assert drawn["gaps"] == [
        {"topic": "large", "start": STARTS[3], "end": STARTS[4]},
        {"topic": "small", "start": STARTS[1], "end": STARTS[2]},
    ]
    assert drawn["rows"][0].gaps == "M3 0h1v1h-1z"


def test_of_many_topics_the_largest_are_drawn_and_the_others_counted() -> None:
    drawn = heat(*(series(f"topic-{number}", number, 0, 0, 0, 0) for number in range(1, 121)))
    assert (len(drawn["rows"]), drawn["hidden"], drawn["rows"][0].topic) == (100, 20, "topic-120")
    assert draw_heat(PagePart(problem={"code": "x"}), "messages") is None
