from datetime import datetime

import pytest

from sql.dialect import render_lake_query
from sql.validate import QueryRefusedError, parse_parameters, validate_query


def test_there_are_enough_cases_of_both_kinds(all_cases):
    assert len(all_cases["accept"]) >= 60
    assert len(all_cases["reject"]) >= 150


def test_an_accepted_query_runs_on_the_lake_with_the_rows_it_should(accepted, lake, policy):
    case = accepted
    query = validate_query(case.text, parse_parameters(case.parameters), policy)
    if "window" in case.directives:
        bounds = [datetime.fromisoformat(text) for text in case.directives["window"].split()]
        assert [query.window.start, query.window.end] == bounds
    if case.directives.get("lake") == "no":
        assert query.lake_violations
        return
    rendered = render_lake_query(query)
    cursor = lake.execute(rendered.sql, dict(rendered.parameters) or None)
    columns = [column[0].lower() for column in cursor.description or ()]
    assert {"data", "attributes", "message_id", "topic", "publish_time", "ordering_key"} <= set(columns)
    rows = [row[columns.index("message_id")] for row in cursor.fetchall()]
    assert (
        len(rows) <= 8
        if case.directives.get("lake") == "sample"
        else sorted(rows) == case.directives["rows"].split()
    )


def test_a_refused_query_says_every_reason(refused, policy):
    case = refused
    with pytest.raises(QueryRefusedError) as caught:
        validate_query(case.text, parse_parameters(case.parameters), policy)
    assert sorted(v.code for v in caught.value.violations) == case.directives["codes"].split()
    lines = case.text.split("\n")
    for violation in caught.value.violations:
        assert 1 <= violation.line <= len(lines)
        assert 1 <= violation.column <= len(lines[violation.line - 1]) + 1
