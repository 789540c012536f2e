"""Charts of messages a second."""

from console.rates import draw_rates


def test_an_interval_that_nobody_measured_is_no_bar_of_zero() -> None:
    times = [f"2026-01-01T00:0{minute}:00Z" for minute in range(4)]
    rates = (10.0, None, 0.0)
    intervals = [
        {
            "start": start,
            "end": end,
            "over_seconds": 60.0,
            "rate_messages_per_second": rate,
            "rate_limit_messages_per_second": 1000.0,
            "state": "RUNNING",
        }
        for start, end, rate in zip(times, times[1:], rates, strict=False)
    ]
    drawn = draw_rates(intervals)
    assert [(bar["is_known"], bar["height"]) for bar in drawn["bars"]] == [
        (True, 100.0),
        (False, 100.0),
        (True, 0.0),
    ]
    # A limit that nothing came near is said in words, so that the bars keep their height.
    assert (drawn["limit"], drawn["is_limit_above"], drawn["most"]) == ("", True, 10.0)
    assert draw_rates([]) is None
