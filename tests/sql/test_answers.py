"""The lake answers as Google's reference engine does, or refuses: the whole grid, against recorded answers.

``known_differences.txt`` lists the cases that still differ; what is answered right has to leave it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sql import grid
from tests.sql.answers import Lake, compare, compare_queries, read_answers

KNOWN = Path(__file__).parent / "known_differences.txt"


@pytest.fixture(scope="module")
def lake() -> Iterator[Lake]:
    lake = Lake()
    yield lake
    lake.close()


def known_differences() -> set[str]:
    return set(KNOWN.read_text().splitlines())


def test_every_expression_is_answered_as_google_does(lake: Lake) -> None:
    found = {
        question: f"{question}\n  Google: {theirs}\n  lake:   {mine}"
        for question, theirs, mine in compare(lake, grid.cases(), read_answers(), literals_of=8)
    }
    known = {line for line in known_differences() if not line.startswith("rows: ")}
    assert not [text for question, text in found.items() if question not in known]
    assert not known - found.keys(), "these are answered right now: take them from known_differences.txt"


def test_every_query_over_rows_is_answered_as_google_does(lake: Lake) -> None:
    found = {
        f"rows: {question}": f"{question}\n  Google: {theirs}\n  lake:   {mine}"
        for question, theirs, mine in compare_queries(lake, grid.row_queries(), read_answers())
    }
    known = {line for line in known_differences() if line.startswith("rows: ")}
    assert not [text for question, text in found.items() if question not in known]
    assert not known - found.keys(), "these are answered right now: take them from known_differences.txt"
