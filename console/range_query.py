"""The query of a topic and a range, read back into the fields that it was written of."""

import re
from typing import Final

_MOMENT: Final = r"TIMESTAMP '([^']+)'"
# No escapes: a text with one stays in the query.
_TEXT: Final = r"'([^'\\]+)'"
_OF_ATTRIBUTE: Final = rf"a\.key = {_TEXT} AND a\.value = {_TEXT}"
_ATTRIBUTE: Final = rf"\n  AND EXISTS \(SELECT 1 FROM UNNEST\(attributes\) AS a WHERE {_OF_ATTRIBUTE}\)"  # noqa: S608
# As the API writes the query of a topic and a range (sql/range_query.py).
_RANGE_QUERY: Final = re.compile(
    rf"SELECT data, attributes, message_id, topic, publish_time, ordering_key\nFROM .+\n--.+\n"
    rf"WHERE _PARTITIONTIME >= {_MOMENT}\n  AND _PARTITIONTIME < {_MOMENT}\n  AND topic = {_TEXT}\n"
    rf"  AND publish_time >= {_MOMENT}\n  AND publish_time < {_MOMENT}"
    rf"(?P<attributes>(?:{_ATTRIBUTE})*)(?:\n  AND \(\n(?P<where>.+)\n  \))?",
    re.DOTALL,
)


def read_range(query: str) -> dict[str, str]:
    """Return the fields of the form that a query was written of, no fields of another query."""
    found = _RANGE_QUERY.fullmatch(query)
    if found is None:
        return {}
    attributes = re.findall(_ATTRIBUTE, found["attributes"])
    _, _, topic, start, end = found.groups()[:5]
    texts = ", ".join(f"{name}={value}" for name, value in attributes)
    # A text that would be several attributes, or another one, stays in the query.
    if any("," in text or "=" in text or text != text.strip() for each in attributes for text in each):
        return {}
    return {
        "query": "",
        "source": topic,
        "from": start,
        "to": end,
        "source_attributes": texts,
        "where": found["where"] or "",
    }
