# ruff: noqa: E501 - questions and answers, each in one piece
"""Times in a zone: what Google's reference engine answered around transitions, on the lake and where a value is known."""

from collections.abc import Iterator

import pytest

from tests.sql.answers import Lake


@pytest.fixture(scope="module")
def lake() -> Iterator[Lake]:
    lake = Lake()
    yield lake
    lake.close()


GOOGLES_ANSWERS = [
    # Below DAY the row's own offset stays.
    ("TIMESTAMP_TRUNC(TIMESTAMP '2024-10-27 01:30:00+00', HOUR, 'Europe/Stockholm')", "1729990800000000us"),
    ("TIMESTAMP_TRUNC(TIMESTAMP '2024-10-27 01:30:00+00', MINUTE, 'Europe/Stockholm')", "1729992600000000us"),
    ("TIMESTAMP_TRUNC(TIMESTAMP '2024-10-27 01:30:00.5+00', SECOND, 'Europe/Stockholm')", "1729992600000000us"),
    ("TIMESTAMP_TRUNC(TIMESTAMP '2024-10-27 01:30:00.123456+00', MILLISECOND, 'Europe/Stockholm')", "1729992600123000us"),
    ("DATE_TRUNC(TIMESTAMP '2024-10-27 01:30:00+00', HOUR, 'Europe/Stockholm')", "1729990800000000us"),
    ("TIMESTAMP_TRUNC(t, HOUR, 'Europe/Stockholm') FROM UNNEST([TIMESTAMP '2024-10-27 00:30:00+00', '2024-10-27 01:30:00+00', '2024-03-31 01:30:00+00', NULL]) AS t", "1729987200000000us;1729990800000000us;1711846800000000us;NULL"),
    ("TIMESTAMP_TRUNC(t, HOUR, 'Australia/Lord_Howe') FROM UNNEST([TIMESTAMP '2024-04-06 14:45:00+00', '2024-04-06 15:15:00+00', '2024-10-05 15:45:00+00']) AS t", "1712412000000000us;1712413800000000us;1728140400000000us"),
    ("TIMESTAMP_TRUNC(t, HOUR, 'Asia/Kathmandu') FROM UNNEST([TIMESTAMP '2024-04-06 14:50:00+00', '2024-04-06 14:10:00+00']) AS t", "1712412900000000us;1712409300000000us"),
    ("TIMESTAMP_TRUNC(t, HOUR, z) FROM UNNEST([TIMESTAMP '2024-10-27 01:30:00+00']) AS t, UNNEST(['Europe/Stockholm', 'Australia/Lord_Howe', 'UTC', NULL]) AS z", "1729990800000000us;1729990800000000us;1729990800000000us;NULL"),
    # Midnights that the clock shows twice, or skips.
    ("TIMESTAMP_TRUNC(TIMESTAMP '2026-11-01 05:30:00+00', DAY, 'America/Havana')", "1793505600000000us"),
    ("TIMESTAMP_TRUNC(t, DAY, 'America/Havana') FROM UNNEST([TIMESTAMP '2023-11-05 04:30:00+00', '2023-11-05 05:30:00+00', '2023-11-05 12:00:00+00']) AS t", "1699156800000000us;1699156800000000us;1699156800000000us"),
    ("TIMESTAMP_TRUNC(t, MONTH, 'America/Havana') FROM UNNEST([TIMESTAMP '2026-11-01 05:30:00+00', '2026-11-30 12:00:00+00']) AS t", "1793505600000000us;1793505600000000us"),
    ("TIMESTAMP_TRUNC(t, WEEK, 'America/Havana') FROM UNNEST([TIMESTAMP '2023-11-05 05:30:00+00', '2023-11-08 12:00:00+00']) AS t", "1699156800000000us;1699156800000000us"),
    ("TIMESTAMP_TRUNC(TIMESTAMP '2023-11-05 05:30:00+00', DAY, 'America/Havana')", "1699156800000000us"),
    ("TIMESTAMP(DATE '2023-11-05', 'America/Havana')", "1699156800000000us"),
    ("TIMESTAMP_TRUNC(t, DAY, 'America/Sao_Paulo') FROM UNNEST([TIMESTAMP '2018-11-04 03:30:00+00', '2018-11-04 12:00:00+00', '2018-02-18 02:30:00+00']) AS t", "1541300400000000us;1541300400000000us;1518832800000000us"),
    ("TIMESTAMP_TRUNC(t, DAY, 'Pacific/Apia') FROM UNNEST([TIMESTAMP '2011-12-31 12:00:00+00', '2011-12-30 09:00:00+00']) AS t", "1325325600000000us;1325152800000000us"),
    # Local times that the clock shows twice, or skips, by half an hour and by two.
    ("TIMESTAMP(d, 'Australia/Lord_Howe') FROM UNNEST([DATETIME '2024-04-07 01:45:00', '2024-10-06 02:15:00']) AS d", "1712414700000000us;1728143100000000us"),
    ("TIMESTAMP(d, 'Antarctica/Troll') FROM UNNEST([DATETIME '2024-10-27 01:30:00', '2024-10-27 02:30:00', '2024-03-31 02:30:00']) AS d", "1729985400000000us;1729989000000000us;1711852200000000us"),
    ("TIMESTAMP(d, 'Europe/Stockholm') FROM UNNEST([DATETIME '2024-10-27 02:30:00', '2024-03-31 02:30:00', '2024-10-27 10:00:00', NULL]) AS d", "1729989000000000us;1711848600000000us;1730019600000000us;NULL"),
    ("TIMESTAMP(d, 'Pacific/Apia') FROM UNNEST([DATETIME '2011-12-30 10:30:00']) AS d", "1325277000000000us"),
    ("TIMESTAMP(s, 'Europe/Stockholm') FROM UNNEST(['2024-10-27 02:30:00', '2024-03-31T02:30:00.5', '2024-7-1', '2024-7-1 1:2:3', NULL]) AS s", "1729989000000000us;1711848600500000us;1719784800000000us;1719788523000000us;NULL"),
    ("PARSE_TIMESTAMP('%Y-%m-%d %H:%M', s, 'Australia/Lord_Howe') FROM UNNEST(['2024-04-07 01:45', '2024-10-06 02:15']) AS s", "1712414700000000us;1728143100000000us"),
    # Before the year 1 there is no time, in no zone.
    ("TIMESTAMP_TRUNC(TIMESTAMP '0001-01-01 00:00:00+00', HOUR, 'America/New_York')", "error"),
    ("TIMESTAMP_TRUNC(TIMESTAMP '0001-01-01 00:00:00+00', DAY, 'Asia/Tokyo')", "error"),
    ("EXTRACT(DATE FROM TIMESTAMP '0001-01-01 00:00:00+00' AT TIME ZONE 'America/New_York')", "error"),
    ("SAFE.TIMESTAMP_TRUNC(t, DAY, 'Asia/Tokyo') FROM UNNEST([TIMESTAMP '0001-01-01 00:00:00+00', '2024-10-27 01:30:00+00']) AS t", "NULL;1729954800000000us"),
    ("TIMESTAMP(DATETIME '0001-01-01 00:00:00', 'Asia/Tokyo')", "error"),
    # Offsets with seconds, of times before the zone's first rule.
    ("TIMESTAMP_TRUNC(TIMESTAMP '1850-01-01 00:00:00+00', HOUR, 'Europe/Stockholm')", "-3786828808000000us"),
    ("TIMESTAMP_TRUNC(TIMESTAMP '1850-01-01 00:00:00+00', MINUTE, 'Europe/Stockholm')", "-3786825628000000us"),
    ("DATETIME(TIMESTAMP '1850-01-01 00:00:00+00', 'Europe/Stockholm')", "1850-01-01 00:53:28.000000"),
    ("TIMESTAMP(DATETIME '1850-01-01 00:00:00', 'Europe/Stockholm')", "-3786828808000000us"),
    ("TIMESTAMP('1850-01-01 00:00:00', 'Europe/Stockholm')", "-3786828808000000us"),
    ("FORMAT_TIMESTAMP('%F %T', TIMESTAMP '1850-01-01 00:00:00+00', 'Europe/Stockholm')", '"1850-01-01 00:53:00"'),
    ("FORMAT_TIMESTAMP('%F %T', t, 'America/New_York') FROM UNNEST([TIMESTAMP '0001-01-02 00:00:00+00', '1850-01-01 00:00:00+00', '2024-10-27 01:30:00+00']) AS t", '"0001-01-01 19:04:00";"1849-12-31 19:04:00";"2024-10-26 21:30:00"'),
    ("EXTRACT(SECOND FROM TIMESTAMP '1850-01-01 00:00:00+00' AT TIME ZONE 'Europe/Stockholm')", "28"),
    # A text that is read in a zone names none itself; nor does a DATETIME.
    ("TIMESTAMP('2024-10-27 02:30:00+01', 'Europe/Stockholm')", "error"),
    ("TIMESTAMP(s, 'UTC') FROM UNNEST(['2024-10-27 02:30:00+01']) AS s", "error"),
    ("DATETIME('2024-01-01 10:00:00+02')", "error"),
    ("DATETIME('2024-01-01T10:00:00')", "2024-01-01 10:00:00.000000"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "answer"), GOOGLES_ANSWERS)
def test_times_in_a_zone_are_those_of_google(lake: Lake, query: str, answer: str) -> None:
    assert lake.query(f"SELECT {query}") == answer


@pytest.mark.parametrize(
    "expression",
    [
        "DATETIME '2024-01-01 10:00:00+02'",
        "DATETIME_ADD('2024-01-01 10:00:00 UTC', INTERVAL 1 DAY)",
        "DATETIME '2024-01-01 10:00:00' = '2024-01-01 10:00:00+00'",
        "DATE_DIFF(DATETIME '2024-01-01 10:00:00', '2024-01-01', DAY)",
        "DATE_DIFF('2024-01-01', DATETIME '2024-01-01 10:00:00', DAY)",
        "DATETIME_TRUNC(DATETIME '2024-10-27 02:30:00.123456', NANOSECOND)",
        "TIMESTAMP_TRUNC(TIMESTAMP '2024-10-27 02:30:00.123456+00', NANOSECOND)",
        "ENDS_WITH(b'a', 'å')",
        "CONCAT('å', b'a')",
    ],
)
def test_literals_that_google_refuses_are_refused(lake: Lake, expression: str) -> None:
    assert lake.query(f"SELECT {expression}").startswith("refused: ")
