"""sqlglot, another reader of GoogleSQL, sees the same tables in every query that passes."""

import pytest
import sqlglot
from sqlglot import exp

from sql.validate import parse_parameters, validate_query


def tables_by_sqlglot(text: str) -> set[str]:
    statements = [statement for statement in sqlglot.parse(text, dialect="bigquery") if statement is not None]
    assert len(statements) == 1
    assert isinstance(statements[0], exp.Query)
    ctes = {cte.alias.lower() for cte in statements[0].find_all(exp.CTE)}
    aliases = {table.alias.lower() for table in statements[0].find_all(exp.Table) if table.alias} | {"m"}
    tables = set()
    for table in statements[0].find_all(exp.Table):
        name = ".".join(part.name for part in table.parts)
        # `FROM m.attributes` is an array of an earlier item, not a table.
        if name.lower() not in ctes and name.partition(".")[0].lower() not in aliases:
            tables.add(name)
    return tables


def test_both_readers_see_the_same_tables(accepted, policy):
    if "|>" in accepted.text:
        pytest.skip("sqlglot rewrites pipes to CTEs of its own")
    query = validate_query(accepted.text, parse_parameters(accepted.parameters), policy)
    try:
        tables = tables_by_sqlglot(accepted.text)
    except sqlglot.errors.ParseError as exc:
        pytest.skip(f"sqlglot can't read it: {str(exc)[:60]}")
    seen = {name.removeprefix("shop.") for name in tables}
    assert seen == set(query.tables)
