"""Why a query is refused: each code of a violation, and what it means."""

from collections.abc import Mapping
from typing import Final

REASONS: Final[Mapping[str, str]] = {
    "aggregate_not_allowed": "An aggregate function is used where it is not allowed.",
    "archive_not_read": "The query does not read the archive. The query of a replay must read it.",
    "character_not_allowed": (
        "Outside of strings, the query has a character that GoogleSQL does not allow. The character may look "
        "like a letter or a blank."
    ),
    "clause_not_allowed": "The gate does not allow this clause, such as INTO, FOR, PIVOT, RECURSIVE or ROLLUP.",
    "column_duplicate": "Two columns of the result have the same name.",
    "column_missing": "The result lacks a column that a replay needs.",
    "column_reserved": "A column of the result has a name that BigQuery reserves.",
    "column_type": "A column of the result has the wrong type.",
    "column_unknown": "No table has a column of this name.",
    "column_unnamed": "A column of the result has no name.",
    "comment_open": "A comment has no end.",
    "date_part": "The query has another word in a place where a date part, such as DAY, is needed.",
    "function_arguments": "A function has the wrong number or kind of arguments, or a computed JSON path.",
    "function_not_allowed": "The function is not one of the allowed functions.",
    "group_ordinal": "A number in GROUP BY must be the position of a column.",
    "identifier_escape": "A quoted name contains an escape.",
    "identifier_invalid": "A quoted name is empty.",
    "identifier_lookalike": "A quoted name has characters that only look like plain letters.",
    "identifier_open": "A quoted name has no end.",
    "join_not_allowed": "A join has no condition, or a condition that this kind of join can't have.",
    "join_unlinked": (
        "Two tables are joined, and no condition says that their keys are equal. An array that contains all "
        "rows of a table counts as a table."
    ),
    "lake_unsupported": "The gate allows this part of the query, but the lake's engine can't run it "
    "(docs/sql.md#on-the-lake).",
    "legacy_sql": "The query begins with #legacySQL.",
    "limit_not_constant": "The value of LIMIT, OFFSET or TABLESAMPLE is not a constant.",
    "literal_invalid": "A literal is not a value of its type, such as DATE '2026-13-01'.",
    "message_id_computed": "The query changes message_id. The result must contain a table's column message_id "
    "without changes.",
    "name_ambiguous": "A name is ambiguous.",
    "name_duplicate": "The same name is used twice, such as for two tables in FROM.",
    "name_unknown": "The query uses a name that does not exist.",
    "not_grouped": "A column is not in GROUP BY and not in an aggregate function.",
    "number_invalid": "A letter follows a number without a blank between them.",
    "order_ordinal": "A number in ORDER BY must be the position of a column.",
    "output_unprovable": "The query selects `*` from a table, and the gate does not know the table's columns.",
    "output_value_table": "The outermost query is SELECT AS STRUCT or SELECT AS VALUE.",
    "parameter_invalid": "A parameter has no name after its @.",
    "parameter_missing": "A parameter has no value.",
    "parameter_positional": "The query uses ? as a parameter. Parameters need names, such as @from.",
    "parameter_value": "The value of a parameter does not fit its type.",
    "partition_cut": "Only a warning: the query compares _PARTITIONTIME with a time at which no partition begins.",
    "pipe_not_allowed": "The gate does not allow this pipe step, or does not allow it here.",
    "query_empty": "The query contains only blanks and comments.",
    "query_too_deep": "The query is nested more than 30 levels deep.",
    "query_too_long": "The query has more than 64 KiB or 4,000 tokens.",
    "query_too_slow": "The gate needed more than 150 ms of CPU time to read the query.",
    "query_unreadable": "The gate failed to read the query. Please report the query as a bug.",
    "row_amplification": (
        "FROM can turn one row into more than 10,000 rows (1,000,000 with LIMIT), or the query can build arrays "
        "or strings of unbounded length (docs/sql.md#how-rows-are-counted)."
    ),
    "set_operation_columns": "The queries of a UNION, INTERSECT or EXCEPT have different columns.",
    "set_operation_mixed": "Different set operations (UNION, INTERSECT, EXCEPT) are combined without parentheses.",
    "several_statements": "There is text after the semicolon.",
    "star_not_allowed": "A * is used where no list of columns is allowed.",
    "statement_not_allowed": "The statement is not a query. DML, DDL, DCL and scripting are not allowed.",
    "string_escape": "A string contains an escape that GoogleSQL does not have.",
    "string_open": "A string has no end.",
    "subquery_columns": "A subquery has the wrong number of columns.",
    "syntax": "The query is not valid GoogleSQL, or it uses a part of GoogleSQL that the gate does not know.",
    "system_variable": "System variables are not allowed.",
    "table_function": "Table functions are not allowed.",
    "table_missing": (
        "Queries may read the table, but the lake does not have it yet. Refeed creates a table together with its "
        "first row."
    ),
    "table_not_allowed": (
        "The table is not one of the allowed tables. Other spellings, wildcards, decorators and "
        "INFORMATION_SCHEMA are not allowed."
    ),
    "too_many_readings": "The query reads tables more than 1,000 times. Each reference to a CTE counts.",
    "type_mismatch": "The types of two values do not match.",
    "type_not_allowed": "A query may not use this type.",
    "window_empty": "The bounds of the time window contradict each other.",
    "window_missing": "The query reads the archive, but the gate can't prove that the query has a lower bound on "
    "the time.",
    "window_not_allowed": "A window function is used where it is not allowed.",
    "window_too_wide": "The time window has more days than REFEED_MAX_WINDOW_DAYS.",
}
