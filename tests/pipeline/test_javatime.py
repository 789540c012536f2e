from datetime import UTC, datetime

import pytest

from model.errors import DescriptorError
from pipeline.javatime import LocalToUtc, TimePattern

# What java.time prints for 2024-03-01T09:05:07.012345Z.
MOMENT = datetime(2024, 3, 1, 9, 5, 7, 12345, tzinfo=UTC)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2024-03-01T09:05:07.012Z"),
        ("uuuu/M/d H:m:s", "2024/3/1 9:5:7"),
        ("dd MMM yy hh:mm a", "01 Mar 24 09:05 AM"),
        ("yyyyMMdd HHmmss Z", "20240301 090507 +0000"),
        ("yyyy-MM-dd HH:mm:ssxxx VV", "2024-03-01 09:05:07+00:00 UTC"),
        ("yyyy 'o''clock' HH", "2024 o'clock 09"),
        ("yyyy-MM-dd HH:mm:ss.SSSSSSSSS", "2024-03-01 09:05:07.012345000"),
    ],
)
def test_a_pattern_writes_what_java_writes_and_reads_it_again(pattern, text):
    assert TimePattern(pattern).format(MOMENT) == text
    read = TimePattern(pattern).parse(text)
    assert TimePattern(pattern).format(read.replace(tzinfo=UTC)) == text


def test_what_is_in_brackets_may_be_missing():
    pattern = TimePattern("yyyy-MM-dd HH:mm[:ss][ XXX]")
    assert pattern.parse("2024-03-01 09:05").isoformat() == "2024-03-01T09:05:00"
    assert pattern.parse("2024-03-01 09:05:07 +02:00").isoformat() == "2024-03-01T09:05:07"


@pytest.mark.parametrize("text", ["2024-02-30T00:00:00", "x", "2024-02-03 00:00:00", "2024-02-03T00:00:00Z"])
def test_what_is_no_time_of_the_pattern_is_a_fault(text):
    with pytest.raises(ValueError, match=r"does not fit the pattern yyyy|day"):
        TimePattern("yyyy-MM-dd'T'HH:mm:ss").parse(text)


@pytest.mark.parametrize(
    "pattern", ["QQQ yyyy", "'open", "yyyy GGG", "d MMMM yyyy", "ddd yyyy", "yyyy yyyy", "[yyyy", "yyyy]"]
)
def test_a_pattern_that_is_not_supported_is_named(pattern):
    with pytest.raises(DescriptorError, match="time pattern"):
        TimePattern(pattern)


def test_a_local_time_without_a_year_is_told_before_any_message_comes():
    with pytest.raises(DescriptorError, match="has no year"):
        LocalToUtc("UTC, dd/MM HH:mm, yyyy")
    assert LocalToUtc("UTC, yyyy-MM-dd HH:mm, HH:mm").convert("2024-03-01 09:05") == "09:05"
    with pytest.raises(ValueError, match="does not fit the pattern"):
        LocalToUtc("UTC, [yyyy-]MM-dd, yyyy").convert("03-01")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("yyyy-MM-dd hh:mm a", "2024-03-01 13:00 PM"),
        ("yyyy-MM-dd hh:mm[ a]", "2024-03-01 03:30"),
        ("yyyy-MM-dd HH:mm a", "2024-03-01 03:30 PM"),
        ("yyyy-MM-dd HH:mm a", "2024-03-01 13:30 AM"),
    ],
)
def test_an_hour_that_does_not_fit_its_half_of_the_day_is_a_fault_as_in_java(pattern, text):
    with pytest.raises(ValueError, match="does not fit the pattern yyyy"):
        TimePattern(pattern).parse(text)


@pytest.mark.parametrize(("text", "hour"), [("12:30 AM", 0), ("1:30 am", 1), ("12:30 PM", 12), ("11:30 pm", 23)])
def test_an_hour_of_half_a_day_is_from_1_to_12(text, hour):
    assert TimePattern("yyyy h:mm a").parse(f"2024 {text}").hour == hour


def test_hours_of_half_a_day_without_the_half_are_told_before_any_message_comes():
    with pytest.raises(DescriptorError, match="without `a`"):
        LocalToUtc("UTC, yyyy-MM-dd hh:mm, yyyy-MM-dd HH:mm")
    assert LocalToUtc("UTC, yyyy-MM-dd HH:mm, hh:mm").convert("2024-03-01 15:30") == "03:30"


@pytest.mark.parametrize(
    ("zone", "hour"), [("+02:00", "10"), ("-0330", "15"), ("UTC", "12"), ("Z", "12"), ("EET", "10")]
)
def test_a_zone_is_a_name_or_an_offset(zone, hour):
    assert LocalToUtc(zone).convert("2024-01-01T12:00:00")[11:13] == hour


@pytest.mark.parametrize(
    ("local", "utc"),
    [
        # Clocks go forward at 02:00: 02:30 never comes and counts as 03:30.
        ("2024-03-31T02:30:00", "2024-03-31T01:30:00Z"),
        # Clocks go back at 03:00: 02:30 comes twice and the first counts.
        ("2024-10-27T02:30:00", "2024-10-27T00:30:00Z"),
        ("2024-07-01T12:00:00.5", "2024-07-01T10:00:00.500000Z"),
    ],
)
def test_a_local_time_that_never_comes_or_comes_twice_is_what_java_makes_of_it(local, utc):
    assert LocalToUtc("Europe/Stockholm").convert(local) == utc
