"""What a caller asks for, and everything that is wrong with it."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from model.errors import InvalidNameError, RequestInvalidError
from model.message import parse_resource_id
from model.window import Window
from sql.dialect import LakeQuery, render_lake_query
from sql.validate import Policy, QueryRefusedError, ValidatedQuery, parse_parameters, validate_query

MAX_DESCRIPTION_CHARACTERS: Final = 2000
MAX_LABELS: Final = 64
# Google Cloud's rule for labels: https://cloud.google.com/resource-manager/docs/labels-overview
_LABEL_KEY: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE: Final = re.compile(r"[a-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """A query over the archive and the topic its rows go to; parameters are in the API's shape."""

    query: str
    topic: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    description: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the request as the API takes it."""
        return asdict(self)

    def fingerprint(self) -> str:
        """Return a digest that is the same for the same request."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ValidRequest:
    """What a request that may run comes to: its query, as written and for the lake, and what it may read."""

    query: ValidatedQuery
    lake: LakeQuery
    window: Window


def validate_request(request: BackfillRequest, policy: Policy) -> ValidRequest:
    """Return what a request that may run comes to.

    Raises:
        QueryRefusedError: the query alone is wrong; it names every violation.
        RequestInvalidError: other fields are wrong, perhaps with the query; ``details["errors"]`` has them all.
    """
    errors = _field_errors(request)
    if any(error["code"] == "text_invalid" for error in errors):
        raise RequestInvalidError("A text holds half of a surrogate pair.", errors=errors)
    try:
        query = validate_query(request.query, parse_parameters(request.parameters), policy)
        lake = render_lake_query(query)
    except QueryRefusedError as exc:
        if not errors:
            raise
        errors += exc.details["violations"]
    if errors:
        raise RequestInvalidError("; ".join(error["message"] for error in errors), errors=errors)
    assert query.window is not None, "the gate gives every replay a window"
    return ValidRequest(query, lake, query.window)


def _field_errors(request: BackfillRequest) -> list[dict[str, Any]]:
    errors: list[dict[str, Any]] = []

    def refuse(code: str, message: str, pointer: str) -> None:
        errors.append({"code": code, "message": message, "pointer": pointer})

    if not _is_unicode(request):
        # JSON can write half of a surrogate pair; no store, log or answer can.
        refuse("text_invalid", "A text holds half of a surrogate pair.", "")
    try:
        parse_resource_id(request.topic)
    except InvalidNameError as exc:
        refuse(exc.code, exc.message, "/topic")
    if len(request.description) > MAX_DESCRIPTION_CHARACTERS:
        refuse(
            "description_too_long", f"A description has {MAX_DESCRIPTION_CHARACTERS} characters.", "/description"
        )
    if len(request.labels) > MAX_LABELS:
        refuse("too_many_labels", f"A backfill has {MAX_LABELS} labels at most.", "/labels")
    for key, value in request.labels.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            refuse(
                "label_invalid",
                f"Label {key[:70]}={value[:70]}: keys are a lower-case letter and up to 62 lower-case letters, "
                "digits, _ or -; values up to 63 of those.",
                "/labels",
            )
    return errors


def _is_unicode(request: BackfillRequest) -> bool:
    try:
        json.dumps(request.to_json(), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
