"""Validates a backfill's request, and names everything that is wrong with it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from backfill.plan.request import CHANGEABLE, BackfillRequest, Ordering, YieldTo
from model.declaration import DeclaredField, declared_fields
from model.errors import InvalidNameError, RequestInvalidError, fault_at
from model.label import is_label
from model.message import (
    MAX_ATTRIBUTE_KEY_BYTES,
    MAX_ATTRIBUTE_VALUE_BYTES,
    MAX_ATTRIBUTES,
    REPLAY_TAGS,
    parse_resource_id,
)
from model.window import Window
from sql.validate import Policy, QueryRefusedError, ValidatedQuery, parse_parameters, validate_query

MAX_DESCRIPTION_CHARACTERS: Final = 2000
MAX_LABELS: Final = 64
# A message needs room for the tags, and for the one that names a single consumer.
MAX_ADDED_ATTRIBUTES: Final = MAX_ATTRIBUTES - len(REPLAY_TAGS) - 1
_FIELDS: Final = {each.name: each for each in declared_fields(BackfillRequest)}
_RATE: Final = _FIELDS["rate_limit_messages_per_second"].spec
_AGE: Final = {each.name: each.spec for each in declared_fields(YieldTo)}["max_oldest_unacked_seconds"]
_RESERVED: Final = ("goog", "refeed_")

Refuse = Callable[[str, str, str], None]


@dataclass(frozen=True, slots=True)
class ValidRequest:
    """A validated request: its query, and the partitions that it may read."""

    query: ValidatedQuery
    window: Window


def _no_check(_query: ValidatedQuery) -> None:
    """Accept every query that the gate lets through."""


def validate_request(
    request: BackfillRequest, policy: Policy, *, check: Callable[[ValidatedQuery], None] = _no_check
) -> ValidRequest:
    """Return the validated request; ``check`` raises where the warehouse can't answer its query.

    Raises:
        QueryRefusedError: the query alone is wrong; it names every violation.
        RequestInvalidError: other fields are wrong, perhaps with the query; ``details["errors"]`` has them all.
    """
    errors = _field_errors(request)
    if any(error["code"] == "text_invalid" for error in errors):
        raise RequestInvalidError(
            "A string contains an unpaired surrogate, so it is not valid Unicode.", errors=errors
        )
    try:
        query = validate_query(request.query, parse_parameters(request.parameters), policy)
        check(query)
    except QueryRefusedError as exc:
        if not errors:
            raise
        errors += exc.details["violations"]
    _raise_any(errors)
    assert query.window is not None, "the gate gives every replay a window"
    return ValidRequest(query, query.window)


def validate_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is to change of a backfill that lives, by the names of a request's fields.

    A ``rate_limit_messages_per_second`` of None lifts the limit.

    Raises:
        RequestInvalidError: some are wrong; ``details["errors"]`` has them all.
    """
    errors: list[dict[str, Any]] = []
    refuse = _refuser(errors)
    if not _is_unicode(changes):
        refuse("text_invalid", "A string contains an unpaired surrogate, so it is not valid Unicode.", "")
    for name in CHANGEABLE:
        _check_field(name, changes.get(name), refuse)
    for name in changes.keys() - CHANGEABLE:
        refuse("field_fixed", f"{name} can't be changed after the backfill is created.", f"/{name}")
    _raise_any(errors)
    return dict(changes)


def _field_errors(request: BackfillRequest) -> list[dict[str, Any]]:
    errors: list[dict[str, Any]] = []
    refuse = _refuser(errors)
    if not _is_unicode(request.to_json()):
        # JSON can write half of a surrogate pair; no store, log or answer can.
        refuse("text_invalid", "A string contains an unpaired surrogate, so it is not valid Unicode.", "")
    for name in _FIELDS:
        _check_field(name, getattr(request, name), refuse)
    return errors


def _check_field(name: str, value: Any, refuse: Refuse) -> None:
    if value is None:
        return
    if name in _CHECKS:
        _CHECKS[name](value, refuse)
    elif _FIELDS[name].kind is int:
        _check_count(_FIELDS[name], value, refuse)


def _refuser(errors: list[dict[str, Any]]) -> Refuse:
    def refuse(code: str, message: str, pointer: str) -> None:
        errors.append(fault_at(pointer, code, message))

    return refuse


def _raise_any(errors: list[dict[str, Any]]) -> None:
    if errors:
        raise RequestInvalidError("; ".join(error["message"] for error in errors), errors=errors)


def _check_name(text: str, kind: str, pointer: str, refuse: Refuse) -> None:
    try:
        parse_resource_id(text, kind)
    except InvalidNameError as exc:
        refuse(exc.code, exc.message, pointer)


def _check_description(text: str, refuse: Refuse) -> None:
    if len(text) > MAX_DESCRIPTION_CHARACTERS:
        message = f"A description can have at most {MAX_DESCRIPTION_CHARACTERS} characters."
        refuse("description_too_long", message, "/description")


def _check_labels(labels: Mapping[str, str], refuse: Refuse) -> None:
    if len(labels) > MAX_LABELS:
        refuse("too_many_labels", f"A backfill can have at most {MAX_LABELS} labels.", "/labels")
    for key, value in labels.items():
        if not is_label(key, value):
            refuse(
                "label_invalid",
                f"Label {key[:70]}={value[:70]}: a key must begin with a lower-case letter and can have up to "
                f"63 characters. A value can have up to 63 characters. Both can have only lower-case letters, "
                f"digits, _ and -.",
                "/labels",
            )


def _check_attributes(attributes: Mapping[str, str], refuse: Refuse) -> None:
    if len(attributes) > MAX_ADDED_ATTRIBUTES:
        message = f"You can add at most {MAX_ADDED_ATTRIBUTES} attributes to the messages."
        refuse("too_many_attributes", message, "/attributes")
    for key, value in attributes.items():
        shown = key[:70]
        if not key or len(key.encode(errors="replace")) > MAX_ATTRIBUTE_KEY_BYTES:
            message = f"Attribute {shown!r}: a key must have 1 to {MAX_ATTRIBUTE_KEY_BYTES} bytes."
            refuse("attribute_invalid", message, "/attributes")
        if key.startswith(_RESERVED):
            message = f"Attribute {shown!r}: keys that begin with goog or refeed_ are reserved."
            refuse("attribute_reserved", message, "/attributes")
        if len(value.encode(errors="replace")) > MAX_ATTRIBUTE_VALUE_BYTES:
            message = f"Attribute {shown!r}: a value can have at most {MAX_ATTRIBUTE_VALUE_BYTES} bytes."
            refuse("attribute_invalid", message, "/attributes")


def _check_count(field: DeclaredField, count: int, refuse: Refuse) -> None:
    if not field.spec.allows(count):
        message = f"{field.name} must be a whole number from {field.spec.least} to {field.spec.most}."
        refuse("number_invalid", message, f"/{field.name}")


def _check_ordering(ordering: str, refuse: Refuse) -> None:
    if ordering not in get_args(Ordering):
        refuse("ordering_invalid", f"ordering must be one of {', '.join(get_args(Ordering))}.", "/ordering")


def _check_rate(rate: float, refuse: Refuse) -> None:
    if not _RATE.allows(rate):
        message = (
            f"A rate limit must be at least one message an hour, and at most {_RATE.most:,.0f} messages a "
            f"second. To stop a backfill, pause the backfill."
        )
        refuse("rate_invalid", message, "/rate_limit_messages_per_second")


def _check_yield(yield_to: YieldTo, refuse: Refuse) -> None:
    _check_name(yield_to.subscription, "subscription", "/yield_to/subscription", refuse)
    if not _AGE.allows(yield_to.max_oldest_unacked_seconds):
        message = f"The value must be more than 0 and at most {_AGE.most:,.0f} seconds."
        refuse("number_invalid", message, "/yield_to/max_oldest_unacked_seconds")


def _is_unicode(value: Mapping[str, Any]) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


# What is wrong with a field's value, beside the bounds of a whole number.
_CHECKS: Final[Mapping[str, Callable[[Any, Refuse], None]]] = {
    "topic": lambda text, refuse: _check_name(text, "topic", "/topic", refuse),
    "description": _check_description,
    "labels": _check_labels,
    "rate_limit_messages_per_second": _check_rate,
    "ordering": _check_ordering,
    "attributes": _check_attributes,
    "yield_to": _check_yield,
    "target_subscription": lambda text, refuse: _check_name(text, "subscription", "/target_subscription", refuse),
}
