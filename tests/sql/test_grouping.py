"""What may stand beside aggregates, as Google's analyzer takes it."""

from collections.abc import Iterator

import pytest

from tests.sql.answers import Lake

ROWS = "FROM UNNEST([1, 2]) AS x"
STRUCTS = "FROM (SELECT STRUCT(STRUCT(1 AS c) AS a, 2 AS b) AS s)"


@pytest.fixture(scope="module")
def lake() -> Iterator[Lake]:
    lake = Lake()
    yield lake
    lake.close()


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        # The whole item, or the whole sort key.
        (f"SELECT CHR(x + 96) {ROWS} GROUP BY CHR(x + 96)", '"a";"b"'),
        (f"SELECT (x + 1) {ROWS} GROUP BY x + 1", "2;3"),
        (f"SELECT AS STRUCT x + 1 {ROWS} GROUP BY x + 1", "(2);(3)"),
        (f"SELECT COUNT(*) {ROWS} GROUP BY x > 1 ORDER BY x > 1", "1;1"),
        (f"SELECT CHR(x + 96) AS y {ROWS} GROUP BY y HAVING y = 'a' ORDER BY CHR(x + 96)", '"a"'),
        ("SELECT * REPLACE (y + 1 AS y) FROM (SELECT 1 AS x, 2 AS y) GROUP BY x, y + 1", "1,3"),
        ("SELECT * REPLACE (y + 1 AS y) FROM (SELECT 1 AS x, 2 AS y) GROUP BY x, y", "1,3"),
        # A path or its beginning, anywhere.
        (f"SELECT x * 2 {ROWS} GROUP BY x HAVING x + 1 > 2", "4"),
        (f"SELECT s.a.c + 1 {STRUCTS} GROUP BY s.a", "2"),
        (f"SELECT s.a.c + 1 {STRUCTS} GROUP BY (s.a).c", "2"),
        (f"SELECT s.b {STRUCTS} GROUP BY s", "2"),
        (f"SELECT (SELECT x + 1) {ROWS} GROUP BY x", "2;3"),
        (f"SELECT (SELECT SUM(z + x) FROM UNNEST([1]) AS z) {ROWS} GROUP BY x", "2;3"),
        (f"SELECT COUNT(*) {ROWS} GROUP BY x HAVING (SELECT x) > 1", "1"),
        # By all.
        (f"SELECT x, x + COUNT(*) {ROWS} GROUP BY ALL", "1,2;2,3"),
        (f"SELECT x, RANK() OVER (ORDER BY x + 1) {ROWS} GROUP BY ALL", "1,1;2,2"),
        (f"SELECT 7, x + 1, COUNT(*) {ROWS} GROUP BY ALL ORDER BY x + 1", "7,2,1;7,3,1"),
    ],
)  # fmt: skip
def test_a_path_or_a_whole_item_that_is_grouped_is_taken(lake: Lake, query: str, answer: str) -> None:
    assert ";".join(sorted(lake.query(query).split(";"))) == answer


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT CONCAT(CHR(x), 'a') {ROWS} GROUP BY CHR(x)",
        f"SELECT CHR(x) IS NULL {ROWS} GROUP BY CHR(x)",
        f"SELECT COUNT(*) {ROWS} GROUP BY CHR(x) HAVING CHR(x) = 'a'",
        f"SELECT COUNT(*) {ROWS} GROUP BY x > 1 HAVING x > 1",
        f"SELECT COUNT(*) {ROWS} GROUP BY CHR(x) ORDER BY CONCAT(CHR(x), 'a')",
        f"SELECT COUNT(*) {ROWS} WHERE TRUE GROUP BY x > 1 QUALIFY RANK() OVER (ORDER BY x > 1) = 1",
        f"SELECT COUNT(*) OVER (PARTITION BY x + 1) {ROWS} GROUP BY x + 1",
        f"SELECT SUM(x + 1) OVER () {ROWS} GROUP BY x + 1",
        f"SELECT COUNT(*) + (x + 1) {ROWS} GROUP BY x + 1",
        f"SELECT STRUCT(x + 1) {ROWS} GROUP BY x + 1",
        f"SELECT [x + 1] {ROWS} GROUP BY x + 1",
        f"SELECT IF(x > 1, 'a', 'b') {ROWS} GROUP BY x > 1",
        f"SELECT CASE WHEN x > 1 THEN 1 END {ROWS} GROUP BY x > 1",
        f"SELECT CAST(x + 1 AS STRING) {ROWS} GROUP BY x + 1",
        f"SELECT NOT (x > 1) {ROWS} GROUP BY x > 1",
        f"SELECT x + 1 AS y, (x + 1) * 2 {ROWS} GROUP BY y",
        f"SELECT (SELECT x + 1) {ROWS} GROUP BY x + 1",
        f"SELECT (s.a).c + 1 {STRUCTS} GROUP BY (s.a).c",
        f"SELECT x + 1, x + 1 + COUNT(*) {ROWS} GROUP BY ALL",
        f"SELECT x + 1, RANK() OVER (ORDER BY x + 1) {ROWS} GROUP BY ALL",
        f"SELECT x + 1, COUNT(*) {ROWS} GROUP BY ALL HAVING x + 1 > 2",
    ],
)
def test_a_part_of_an_item_that_reads_as_what_is_grouped_is_refused(lake: Lake, query: str) -> None:
    assert lake.query(query) == "refused: not_grouped"
