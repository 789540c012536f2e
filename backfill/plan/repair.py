"""How the causes of the pipeline's dead letters are repaired, by the code of their reason."""

from datetime import datetime
from typing import Final

_SCHEMA: Final = (
    "Publish a schema that fits: refeed source diff FILES, then refeed source publish FILES. A column keeps its "
    "type, so another type needs a field with a new name."
)
_PAYLOAD: Final = (
    "No schema reads this payload. To send corrected payloads, correct data in a query: refeed backfill TOPIC "
    "--query @FILE (docs/recipes.md#from-dead-letters)"
)
_REPAIRS: Final = {
    "wrong_type": _SCHEMA,
    "not_json": _PAYLOAD,
    "too_large": _PAYLOAD,
    "too_many_types": "Correct the attribute of the event type in the producer, or choose another one in "
    "event_type_attribute: refeed source publish FILES",
    "decoder_fault": "This is a bug of the pipeline's release. Report it, and update the stream to a release "
    "without it: refeed update STREAM --release VERSION",
    "row_refused": "BigQuery refused the row, and the reason says why. If the schema is wrong, publish another "
    "one: refeed source publish FILES",
    "publish_refused": "Pub/Sub refused to publish the row. Correct the topic of publish, or its permissions: "
    "refeed describe source/{source}",
}
# Only another schema, another entry of the source or another release lets these messages become rows.
_DECIDED: Final = frozenset({"wrong_type", "not_json", "too_large", "too_many_types", "decoder_fault"})


def is_unchanged(code: str, failed_at: datetime, changed_at: datetime | None) -> bool | None:
    """Return whether messages that failed last at ``failed_at`` would fail again, None where nobody knows.

    ``changed_at`` is when the registry or the pipeline's process last changed.

    Example:
        >>> from datetime import UTC
        >>> noon, one = (datetime(2026, 1, 10, hour, tzinfo=UTC) for hour in (12, 13))
        >>> is_unchanged("wrong_type", one, noon), is_unchanged("wrong_type", noon, one)
        (True, False)
        >>> is_unchanged("wrong_type", one, None), is_unchanged("publish_refused", one, noon)
        (None, None)
    """
    if changed_at is None or code not in _DECIDED:
        return None
    return changed_at < failed_at


def render_repair(source: str, code: str, *, unchanged: bool | None) -> str | None:
    """Return how to repair what made messages of a source dead letters; None for a code of another release."""
    repair = _REPAIRS.get(code)
    if repair is None:
        return None
    said = repair.format(source=source)
    if not unchanged:
        return said
    return (
        "Neither the registry nor the pipeline has changed since the newest of these messages failed, so a "
        f"redrive would fail again. {said}"
    )
