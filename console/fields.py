"""Records of the API as rows of a page, field by field: label and value, and a small table for each list."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

_MOST_ROWS: Final = 200


def describe_fields(record: Mapping[str, Any], left_out: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields that have a value: ``facts`` by name, ``maps`` of names to values, and tables of records.

    ``progress`` is a record of figures, which become facts.

    Example:
        >>> found = describe_fields({"since": None, "progress": {"merged": 1}, "files_removed": {"a.b": 7}})
        >>> found["facts"], found["maps"], found["tables"]
        ({'merged': 1}, {'files_removed': {'a.b': 7}}, [])
    """
    facts: dict[str, Any] = {}
    maps: dict[str, Mapping[str, Any]] = {}
    tables = []
    for name, value in record.items():
        if name in left_out or value is None:
            continue
        if name == "progress":
            facts |= value
        elif isinstance(value, Mapping):
            maps |= {name: value} if value else {}
        elif isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
            tables.append(_table(name, value))
        else:
            facts[name] = value
    return {"facts": facts, "maps": maps, "tables": [table for table in tables if table["rows"]]}


def _table(name: str, rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a table of records, without the columns in which none of them has anything."""

    def columns() -> Iterator[str]:
        for column in rows[0] if rows else ():
            if any(row.get(column) not in (None, [], {}) for row in rows):
                yield column

    return {
        "name": name,
        "columns": list(columns()),
        "rows": rows[:_MOST_ROWS],
        "hidden": max(0, len(rows) - _MOST_ROWS),
    }
