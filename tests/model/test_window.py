from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.window import Window

moments = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 hypothesis adds the zone


@st.composite
def windows(draw):
    start = draw(moments)
    return Window(start, start + draw(st.timedeltas(timedelta(0), timedelta(days=40))))


@given(windows(), moments)
def test_a_moment_inside_lies_on_one_of_the_windows_days(window, moment):
    if window.contains(moment):
        assert moment.date() in window.days()


@given(windows(), windows())
def test_windows_overlap_exactly_when_an_instant_lies_in_both(first, second):
    shared = not first.is_empty and not second.is_empty and first.start < second.end and second.start < first.end
    assert first.overlaps(second) == second.overlaps(first)
    assert first.overlaps(second) == shared


@given(st.lists(windows(), min_size=1))
def test_the_hull_holds_every_window(all_windows):
    hull = Window.hull(all_windows)
    assert all(hull.start <= window.start and window.end <= hull.end for window in all_windows)


def test_a_window_ends_before_its_end():
    midnight = datetime(2024, 3, 2, tzinfo=UTC)
    assert Window(midnight - timedelta(days=1), midnight).days() == [midnight.date() - timedelta(days=1)]


def test_naive_times_and_an_end_before_the_start_are_refused():
    noon = datetime(2024, 3, 1, 12, tzinfo=UTC)
    with pytest.raises(ValueError, match="aware"):
        Window(noon.replace(tzinfo=None), noon)
    with pytest.raises(ValueError, match="can't end"):
        Window(noon, noon - timedelta(seconds=1))
