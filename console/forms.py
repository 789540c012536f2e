"""The page before an action: what it will do, and the form that has it done."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Any
from uuid import uuid4

from console.view import find_time
from console.visit import Visit
from model.errors import RequestRefusedError


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of an action's form; ``options`` makes it a menu of value and text."""

    name: str
    label: str
    kind: str = "text"
    value: str = ""
    options: tuple[tuple[str, str], ...] = ()
    help: str = ""


@dataclass(frozen=True, slots=True)
class ActionPage:
    """The page before an action: ``effects`` says what it will do, ``typed`` is to be typed where it is dangerous.

    Without ``is_possible`` the page has no form: the effects say why there is nothing to do.
    ``etag`` binds the action to what the page showed; the API refuses it when that has changed since.
    """

    title: str
    effects: tuple[str, ...]
    button: str
    back: str
    etag: str | None = None
    fields: tuple[FormField, ...] = ()
    typed: str | None = None
    check: Mapping[str, Any] | None = None
    is_possible: bool = True
    # Where the thing decides which scope its action needs.
    scope: str = ""
    template: str = "action.html"
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Action:
    """An action at ``path`` below /console: what its page says, and what it calls; ``perform`` returns a path."""

    path: str
    scope: str
    describe: Callable[[Visit, Mapping[str, str]], ActionPage]
    perform: Callable[[Visit, Mapping[str, str]], str]


def key_field(given: Mapping[str, str]) -> FormField:
    """Return the hidden field by which a form that is sent twice creates one thing."""
    return FormField("key", "", kind="hidden", value=read_key(given))


def read_key(given: Mapping[str, str]) -> str:
    """Return the form's idempotency key, or a new one."""
    return given.get("key") or str(uuid4())


def form_fault(fault: str, *, status: int = 422, **details: str) -> RequestRefusedError:
    """Return the error of a form that can't be sent, in the form of a refusal by the API."""
    return RequestRefusedError(fault, detail=fault, status=status, **details)


def read_time(params: Mapping[str, str], name: str, zone: tzinfo = UTC) -> datetime | None:
    """Return the time that is written under ``name``, None where nothing is; without an offset it is of ``zone``.

    Raises:
        RequestRefusedError: something else is written there.
    """
    text = params.get(name, "").strip()
    found = find_time(text, zone)
    if text and found is None:
        raise form_fault(f"{name} is not a time: {text[:40]!r}. Write it as 2026-01-31T22:00:00Z.")
    return found


def parse_number(text: str, name: str, kind: Callable[[str], float] = float) -> float:
    """Return the number in a field.

    Raises:
        RequestRefusedError: it is none; ``name`` says of which field.
    """
    try:
        return kind(text.strip())
    except ValueError:
        raise form_fault(f"{name} is not a number: {text.strip()[:40]!r}.") from None
