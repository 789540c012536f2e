"""What a function is: its arguments, its result, and how the lake's engine does the same."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from sql.datatypes import ATTRIBUTES, NULL, SCALARS, UNKNOWN, SqlType, array_of
from sql.values import LakeGapError, Value

Kind = Literal["scalar", "aggregate", "window"]
Render = Callable[[Sequence[Value]], str]
Result = Callable[[Sequence[Value]], SqlType]


@dataclass(frozen=True, slots=True)
class Function:
    """A function; ``parameters`` are types, classes of types (ANY, STR, NUM, T ...) or PART for a date part."""

    name: str
    kind: Kind
    parameters: tuple[str, ...]
    required: int
    is_variadic: bool
    result: Result
    render: Render | None
    named: tuple[str, ...] = ()

    def takes(self, count: int) -> bool:
        """Say whether it can be called with ``count`` arguments."""
        return self.required <= count and (self.is_variadic or count <= len(self.parameters))

    def parameter(self, index: int) -> str:
        """Return what the argument at ``index`` has to be."""
        return self.parameters[min(index, len(self.parameters) - 1)] if self.parameters else "ANY"

    def lake(self, args: Sequence[Value]) -> str:
        """Return the call in the lake's words.

        Raises:
            LakeGapError: the lake's engine has nothing that gives the same.
        """
        if self.render is None:
            raise LakeGapError(f"{self.name} has no counterpart")
        return self.render(args)


@dataclass(slots=True)
class Table:
    """Functions of one theme, declared one a line."""

    functions: dict[str, Function] = field(default_factory=dict)

    def scalar(
        self,
        name: str,
        parameters: str,
        result: "str | Result",
        lake: "str | Mapping[int, str] | Render | None" = None,
        named: str = "",
    ) -> None:
        """Declare a scalar function; ``?`` marks optional parameters, ``*`` a last one that repeats."""
        self._add(name, "scalar", parameters, result, lake, named)

    def aggregate(
        self,
        name: str,
        parameters: str,
        result: "str | Result",
        lake: "str | Mapping[int, str] | Render | None" = None,
    ) -> None:
        """Declare an aggregate; ``{!}`` is where the lake's text takes DISTINCT, ``{^}`` where ORDER BY."""
        self._add(name, "aggregate", parameters, result, lake, "")

    def window(
        self,
        name: str,
        parameters: str,
        result: "str | Result",
        lake: "str | Mapping[int, str] | Render | None" = None,
    ) -> None:
        """Declare a function that needs OVER."""
        self._add(name, "window", parameters, result, lake, "")

    def _add(  # noqa: PLR0917 - one row of a table
        self,
        name: str,
        kind: Kind,
        parameters: str,
        result: "str | Result",
        lake: "str | Mapping[int, str] | Render | None",
        named: str,
    ) -> None:
        words = parameters.split()
        self.functions[name] = Function(
            name,
            kind,
            tuple(word.lstrip("?*") for word in words),
            sum(1 for word in words if word[0] not in "?*"),
            bool(words) and words[-1].startswith("*"),
            result if callable(result) else _result(result),
            lake if lake is None or callable(lake) else _template(lake),
            tuple(named.split()),
        )


def _result(text: str) -> Result:
    if text == "T0":
        return lambda args: args[0].type
    if text == "T1":
        return lambda args: args[1].type
    if text == "ELEMENT":
        return lambda args: args[0].type.element or UNKNOWN
    if text == "ARRAY<T0>":
        return lambda args: array_of(args[0].type)
    kind = _named(text)
    return lambda _: kind


def _named(text: str) -> SqlType:
    if text == "ATTRIBUTES":
        return ATTRIBUTES
    if text in {"UNKNOWN", "NULL"}:
        return UNKNOWN if text == "UNKNOWN" else NULL
    if text.startswith("ARRAY<"):
        return array_of(_named(text[6:-1]))
    return SCALARS[text]


# Where DISTINCT, ORDER BY and IGNORE NULLS go; no text of a query can hold these signs.
DISTINCT: Final = "\0D"
ORDER: Final = "\0O"
NULLS: Final = "\0N"
# Where OVER goes in a text that is more than one call; without the mark it goes to the end.
OVER: Final = "\0V"
_PLACE = re.compile(r"\{(\d|[*!^~/])\}")


def fill(template: str, args: Sequence[Value]) -> str:
    """Return ``template`` with the arguments in their places, in one pass: what an argument says is never a place.

    Example:
        >>> from sql.datatypes import STRING
        >>> fill("f({0}, {1})", [Value(STRING, "'{1}'"), Value(STRING, "b")])
        "f('{1}', b)"
    """

    def place(match: re.Match[str]) -> str:
        sign = match.group(1)
        marks = {"!": DISTINCT, "^": ORDER, "~": NULLS, "/": OVER}
        if sign in marks:
            return marks[sign]
        return ", ".join(arg.lake for arg in args) if sign == "*" else args[int(sign)].lake

    return _PLACE.sub(place, template)


def _template(lake: "str | Mapping[int, str]") -> Render:
    def render(args: Sequence[Value]) -> str:
        text = lake if isinstance(lake, str) else lake.get(len(args))
        if text is None:
            raise LakeGapError(f"it has no counterpart with {len(args)} arguments")
        return fill(text, args)

    return render


PARTS: Final = frozenset(
    [
        "MICROSECOND",
        "MILLISECOND",
        "SECOND",
        "MINUTE",
        "HOUR",
        "DAY",
        "DAYOFWEEK",
        "DAYOFYEAR",
        "WEEK",
        "ISOWEEK",
        "MONTH",
        "QUARTER",
        "YEAR",
        "ISOYEAR",
        "DATE",
        "TIME",
        "DATETIME",
        "NANOSECOND",
    ]
) | {f"WEEK({day})" for day in ("SUNDAY", "MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY")}
