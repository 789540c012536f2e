"""Flags of a command that are made of the declared fields of a request."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin

import typer

from backfill.plan.request import YieldTo
from cli.parameters import ParameterOption, parse_pairs, parse_parameters
from model.declaration import DeclaredField, declared_fields, json_name
from model.errors import InputError
from model.query_parameter import QueryParameter

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class _Form:
    """How values of one type are written in the terminal; ``parse`` takes what was written, and the flag."""

    type: Any
    parse: Callable[[Any, str], Any] = lambda value, _flag: value
    metavar: str | None = None


def _parse_yield(text: str, flag: str) -> dict[str, Any]:
    subscription, _, seconds = text.rpartition(":")
    try:
        return {"subscription": subscription, "max_oldest_unacked_seconds": float(seconds)}
    except ValueError as exc:
        raise InputError(
            f"{flag} needs the form SUBSCRIPTION:SECONDS, such as live-orders:30, not {text!r}."
        ) from exc


# Types of which a value is more than one word; all others are written as they are.
_FORMS: Final[Mapping[Any, _Form]] = {
    Mapping[str, str]: _Form(list[str], parse_pairs, "KEY=VALUE"),
    Mapping[str, QueryParameter]: _Form(list[str], lambda texts, _flag: parse_parameters(texts) or None),
    YieldTo: _Form(str, _parse_yield, "SUBSCRIPTION:SECONDS"),
}


def takes_fields(
    declaration: type, names: Iterable[str] | None = None, *, help_texts: Mapping[str, str] | None = None
) -> Callable[[_Command], _Command]:
    """Give a command the flags of these fields, in this order, or of all; it gets their values as ``**given``.

    A name that is not a field's is a parameter of the command's own; those that are not named come before the
    flags where they are positional, else after them. ``help_texts`` go before the declaration's own.
    """
    fields = {field.name: field for field in declared_fields(declaration)}

    def decorate(command: _Command) -> _Command:
        own = dict(inspect.signature(command, eval_str=True).parameters)
        own.pop("given", None)
        first = [own.pop(name) for name, each in list(own.items()) if each.kind is each.POSITIONAL_OR_KEYWORD]
        named = [
            own.pop(name) if name in own else _parameter(fields[name], help_texts or {})
            for name in (fields if names is None else names)
        ]
        signature = inspect.Signature([*first, *named, *own.values()])
        command.__signature__ = signature  # type: ignore[attr-defined]
        return command

    return decorate


def flag_of(declaration: type, name: str) -> str:
    """Return the flag of a field.

    Example:
        >>> from backfill.plan.request import BackfillRequest
        >>> flag_of(BackfillRequest, "rate_limit_messages_per_second"), flag_of(BackfillRequest, "max_rows")
        ('--rate-limit', '--max-rows')
    """
    return next(_flag(field) for field in declared_fields(declaration) if field.name == name)


def read_given(declaration: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given fields as the API takes them; those that were not given are left out.

    Raises:
        InputError: the text of a flag is not of its form.
    """
    fields = {field.name: field for field in declared_fields(declaration)}
    found = {
        json_name(name): _form(fields[name]).parse(value, _flag(fields[name]))
        for name, value in given.items()
        # A flag without a value says yes or nothing.
        if value is not None and value is not False
    }
    return {name: value for name, value in found.items() if value is not None}


def _parameter(field: DeclaredField, help_texts: Mapping[str, str]) -> inspect.Parameter:
    form, spec = _form(field), field.spec
    is_required = field.default is MISSING
    default: Any = inspect.Parameter.empty if is_required else False if field.kind is bool else None
    if field.kind == Mapping[str, QueryParameter]:
        annotation: Any = ParameterOption
    else:
        option = typer.Option(
            _flag(field),
            metavar=spec.metavar or form.metavar,
            help=help_texts.get(field.name) or spec.help or spec.description,
            show_default=not is_required,
        )
        annotation = Annotated[form.type if is_required or field.kind is bool else form.type | None, option]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _flag(field: DeclaredField) -> str:
    return "--" + (field.spec.flag or field.name).replace("_", "-")


def _form(field: DeclaredField) -> _Form:
    if get_origin(field.kind) is Literal:
        return _Form(str, metavar="|".join(get_args(field.kind)))
    return _FORMS.get(field.kind) or _Form(field.kind)
