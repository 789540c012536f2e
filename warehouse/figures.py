"""What is known of the rows of a query before they are replayed, in figures; None is unknown, never 0."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

MAX_SAMPLES: Final = 10
# Topics and hours that are named, the largest first.
MAX_GROUPS: Final = 10_000
MAX_SHOWN_BYTES: Final = 4096
# A selection is read within the hour; a backfill that waits for an approval or is retried, within days.
SELECTION_KEPT_DAYS: Final = 3


@dataclass(frozen=True, slots=True)
class QueryNote:
    """A remark on a query for people, with a stable code."""

    code: str
    message: str

    def to_json(self) -> dict[str, str]:
        """Return it in the API's shape."""
        return {"code": self.code, "message": self.message}


@dataclass(frozen=True, slots=True)
class QueryFigures:
    """The sums over a query's rows, and the first rows themselves.

    ``bytes`` are those of the payloads, ``message_bytes`` those of payloads and attributes, without the tags;
    ``selection_bytes`` are those by which a selection is bounded;
    ``bytes_scanned`` is what the query reads, and ``bytes_billed`` what is paid for, None where nothing is.
    ``rows_by_hour`` counts by publish_time; ``is_cut`` is whether there are more topics or hours than
    :data:`MAX_GROUPS`. ``without_room``, ``without_text`` and ``refused`` count messages that Pub/Sub would
    refuse: those without room for the tags, with an attribute that has no key or no value, or with one that
    breaks its limits; ``rewritten`` counts those with an attribute of their own that a tag or an added attribute
    replaces. ``is_kept`` is whether the rows are kept for a create that quotes the plan.
    """

    bytes_scanned: int
    bytes_billed: int | None = None
    rows: int | None = None
    bytes: int | None = None
    message_bytes: int | None = None
    selection_bytes: int | None = None
    rows_by_topic: Mapping[str, int] = field(default_factory=dict)
    rows_by_hour: Mapping[datetime, int] = field(default_factory=dict)
    first_publish_time: datetime | None = None
    last_publish_time: datetime | None = None
    is_cut: bool = False
    without_room: int | None = None
    without_text: int | None = None
    refused: int | None = None
    rewritten: int | None = None
    samples: Sequence[Mapping[str, Any]] = ()
    is_kept: bool = False
    notes: Sequence[QueryNote] = ()
