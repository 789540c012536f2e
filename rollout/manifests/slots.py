"""A slot of a schedule, and the values in a job's request that are one of its two times."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from model.moment import parse_moment, render_moment

_SLOT: Final = re.compile(r"\{\{ *slot\.(start|end) *\}\}")


# Of a backfill's request, beside the values of its query's parameters.
SLOT_FIELDS: Final = ("from", "to")


@dataclass(frozen=True, slots=True)
class Slot:
    """The time [start, end) between two instants of a schedule; it is due at ``end``, its identity."""

    start: datetime
    end: datetime
    zone: ZoneInfo

    def value(self, text: str, type_: str) -> str:
        """Return the time that a placeholder names: a TIMESTAMP, or a DATE of the schedule's zone."""
        found = _SLOT.fullmatch(text)
        moment = self.end if found is not None and found[1] == "end" else self.start
        return moment.astimezone(self.zone).date().isoformat() if type_ == "DATE" else str(render_moment(moment))

    def times(self, request: Mapping[str, Any]) -> dict[str, str]:
        """Return the times of a backfill's range; an age such as 1h counts from the slot's end."""
        return {name: self._moment(request[name]) for name in SLOT_FIELDS if isinstance(request.get(name), str)}

    def _moment(self, text: str) -> str:
        if is_slot(text):
            return self.value(text, "TIMESTAMP")
        try:
            return render_moment(parse_moment(text, self.end))
        except ValueError:
            # The backfill refuses it.
            return text


def is_slot(value: Any) -> bool:
    """Whether a value is the placeholder of one of a slot's times.

    Example:
        >>> is_slot("{{ slot.start }}"), is_slot("since {{ slot.start }}"), is_slot("{{ slot.middle }}")
        (True, False, False)
    """
    return isinstance(value, str) and _SLOT.fullmatch(value) is not None


def fill_request(
    kind: str, request: Mapping[str, Any], slot: Slot, types: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the request of a job with a slot's times in their places.

    ``types`` are those of a template's parameters; a query's parameters have their own.
    """
    filled = dict(request)
    parameters = request.get("parameters") or {}
    if kind == "backfill":
        filled["parameters"] = {
            name: {**each, "value": slot.value(each["value"], each["type"])} if is_slot(each["value"]) else each
            for name, each in parameters.items()
        }
        filled |= slot.times(request)
    elif kind == "template":
        known = types or {}
        filled["parameters"] = {
            name: slot.value(each, known.get(name, "TIMESTAMP")) if is_slot(each) else each
            for name, each in parameters.items()
        }
    else:
        for name, each in request.items():
            if is_slot(each):
                filled[name] = slot.value(each, "TIMESTAMP")
    return filled
