"""The lake answers as Google's reference engine does, or refuses: the whole grid, against recorded answers.

``accepted_differences.txt`` holds the few cases in which the engine is not BigQuery, each kind with its reason.
"""

from collections.abc import Iterator

import pytest

from tests.sql import grid
from tests.sql.answers import Lake, compare, compare_queries, read_accepted, read_answers


@pytest.fixture(scope="module")
def lake() -> Iterator[Lake]:
    lake = Lake()
    yield lake
    lake.close()


def assert_only_accepted(found: Iterator[tuple[str, str, str]], asked: set[str]) -> None:
    """Fail for a difference that is not accepted, and for an accepted one that is none."""
    accepted = read_accepted() & asked
    texts = {question: f"{question}\n  Google: {theirs}\n  lake:   {mine}" for question, theirs, mine in found}
    assert not [text for question, text in texts.items() if question not in accepted]
    assert not accepted - texts.keys()


def test_every_expression_is_answered_as_google_does(lake: Lake) -> None:
    cases = list(grid.cases())
    asked = {f"SELECT {case.literal}" for case in cases} | {case.by_columns for case in cases}
    assert_only_accepted(compare(lake, cases, read_answers(), literals_of=8), asked)


def test_every_query_over_rows_is_answered_as_google_does(lake: Lake) -> None:
    queries = list(grid.row_queries())
    assert_only_accepted(compare_queries(lake, queries, read_answers()), set(queries))


def test_most_of_the_grid_is_answered_and_not_refused(lake: Lake) -> None:
    cases = list(grid.cases())[::40]
    refused = [case.literal for case in cases if lake.query(f"SELECT {case.literal}").startswith("refused")]
    assert len(refused) < len(cases) / 5, refused


def test_chr_of_zero_is_empty_as_bigquerys_documentation_says(lake: Lake) -> None:
    # The engine gives U+0000: https://cloud.google.com/bigquery/docs/reference/standard-sql/string_functions#chr
    assert lake.query("SELECT CHR(0)") == '""'
