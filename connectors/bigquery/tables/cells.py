"""What a cell is in a wider column, in GoogleSQL: the same as model.widening.widen_value makes of it."""

import json
from dataclasses import replace

from connectors.bigquery.tables.successors import NamedColumns, places
from model.schema import Field, RowSchema
from model.widening import EXACT_FLOAT, json_name


def read_columns(columns: RowSchema, alias: str) -> dict[str, str]:
    """Return the expression of each name of a table called ``alias``: all columns of the name as its newest type.

    The cells of a name whose type never changed are a column as it is.
    """
    found = {}
    for place in places(columns.fields):
        sql, newest = _read(f"{alias}.", place, 0)
        found[place.name] = widened(sql, newest, place.field)
    return found


def widened(sql: str, old: Field, new: Field, depth: int = 0) -> str:
    """Return the expression that makes of ``sql``, which is ``old``, the cell that ``widen_value`` makes.

    ``old`` may have successors within it, ``new`` has none.
    """
    if (old.type, old.mode, old.fields) == (new.type, new.mode, new.fields):
        return sql
    if new.type == "JSON" and new.mode != "REPEATED":
        return _json(sql, old, depth)
    if old.mode == "REPEATED":
        one = widened(f"e{depth}", replace(old, mode="NULLABLE"), replace(new, mode="NULLABLE"), depth + 1)
        return _each(sql, one, depth)
    if new.type == "RECORD":
        wider = {child.name.lower(): child for child in new.fields}
        cells = []
        for place in places(old.fields):
            cell, newest = _read(f"{sql}.", place, depth)
            cells.append(f"{widened(cell, newest, wider[place.name.lower()], depth)} AS `{place.name}`")
        return f"IF({sql} IS NULL, NULL, STRUCT({', '.join(cells)}))"
    return f"CAST({sql} AS FLOAT64)" if new.type == "FLOAT64" else _text(sql, old)


def _read(prefix: str, place: NamedColumns, depth: int) -> tuple[str, Field]:
    """Return the expression of a place and the column whose type it has: the newest one.

    Each type's cells become the next one's, as they would if they had been written again each time.
    """
    first, *later = place.columns
    sql, column = f"{prefix}`{first.name}`", first
    for newer in later:
        cell, older = f"{prefix}`{newer.name}`", widened(sql, column, newer, depth)
        if newer.mode == "REPEATED":
            sql = f"IF(ARRAY_LENGTH({cell}) > 0, {cell}, {older})"
        else:
            sql = f"COALESCE({cell}, {older})"
        column = newer
    return sql, column


def _text(sql: str, old: Field) -> str:
    """Return a scalar as a text; of a null TO_JSON_STRING would make the text "null"."""
    text = f"TO_JSON_STRING({sql})"
    if old.type == "FLOAT64":
        text = f"IF({_is_whole(sql)}, CAST(CAST({sql} AS INT64) AS STRING), {text})"
    return f"IF({sql} IS NULL, NULL, {text})"


def _json(sql: str, old: Field, depth: int) -> str:
    """Return ``sql`` as JSON, null where it is null; the fields of records have their JSON names."""
    if old.mode == "REPEATED":
        one = _json(f"e{depth}", replace(old, mode="NULLABLE"), depth + 1)
        return f"IF(ARRAY_LENGTH({sql}) > 0, TO_JSON({_each(sql, one, depth)}), NULL)"
    if old.type == "JSON":
        return sql
    if old.type == "RECORD":
        # Unlike a STRUCT's, the names of a JSON_OBJECT may be any text, the empty one too.
        cells = []
        for place in places(old.fields):
            cell, newest = _read(f"{sql}.", place, depth)
            cells.append(f"{_literal(json_name(place.field))}, {_json(cell, newest, depth)}")
        return f"IF({sql} IS NULL, NULL, JSON_OBJECT({', '.join(cells)}))"
    if old.type == "STRING":
        return _scalar_of(sql, f"t{depth}")
    if old.type == "FLOAT64":
        return f"IF({sql} IS NULL, NULL, IF({_is_whole(sql)}, TO_JSON(CAST({sql} AS INT64)), TO_JSON({sql})))"
    return f"IF({sql} IS NULL, NULL, TO_JSON({sql}))"


def _scalar_of(sql: str, name: str) -> str:
    """Return a text as JSON: the number or the boolean whose text it is, else a string."""
    whole, real = f"SAFE_CAST({name} AS INT64)", f"SAFE_CAST({name} AS FLOAT64)"
    cases = (
        f"{name} IS NULL THEN NULL",
        f"{name} IN ('true', 'false') THEN TO_JSON({name} = 'true')",
        f"{_text(whole, Field(name, 'INT64'))} = {name} THEN TO_JSON({whole})",
        f"{_text(real, Field(name, 'FLOAT64'))} = {name} THEN TO_JSON({real})",
    )
    # A subquery has the text once: it may itself be long.
    return f"(SELECT CASE WHEN {' WHEN '.join(cases)} ELSE TO_JSON({name}) END FROM UNNEST([{sql}]) AS {name})"  # noqa: S608


def _is_whole(sql: str) -> str:
    return f"ABS({sql}) <= {EXACT_FLOAT} AND {sql} = TRUNC({sql})"


def _each(sql: str, one: str, depth: int) -> str:
    rows = f"UNNEST({sql}) AS e{depth} WITH OFFSET AS o{depth} ORDER BY o{depth}"
    return f"ARRAY(SELECT {one} FROM {rows})"  # noqa: S608  names are checked ones


def _literal(text: str) -> str:
    """Return a text as a GoogleSQL literal, whose escapes are JSON's."""
    return json.dumps(text, ensure_ascii=False)
