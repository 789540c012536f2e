"""What a function is: its arguments, its result, and how the lake's engine does the same."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from sql.datatypes import ATTRIBUTES, SCALARS, UNKNOWN, SqlType, array_of
from sql.values import LakeGapError, Value

Kind = Literal["scalar", "aggregate", "window"]
Render = Callable[[Sequence[Value]], str]
Result = Callable[[Sequence[Value]], SqlType]


@dataclass(frozen=True, slots=True)
class Function:
    """A function; ``parameters`` are type names, classes of types (ANY, STR, NUM, T ...) or PART for a date part."""

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
        return self.parameters[min(index, len(self.parameters) - 1)]

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
        """Declare an aggregate; the lake's text holds ``{!}`` where DISTINCT goes and ``{^}`` where ORDER BY goes."""
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

    def _add(
        self,
        name: str,
        kind: Kind,
        parameters: str,
        result: "str | Result",
        lake: "str | Mapping[int, str] | Render | None",
        named: str,
    ) -> None:
        words = parameters.split()
        plain = tuple(word.lstrip("?*") for word in words)
        required = sum(1 for word in words if word[0] not in "?*")
        variadic = bool(words) and words[-1].startswith("*")
        self.functions[name] = Function(
            name,
            kind,
            plain or ("ANY",),
            required,
            variadic,
            result if callable(result) else _result(result),
            lake if lake is None or callable(lake) else _template(lake),
            tuple(named.split()),
        ) if words else Function(name, kind, (), 0, False, result if callable(result) else _result(result), lake if lake is None or callable(lake) else _template(lake))  # fmt: skip


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
    if text == "UNKNOWN":
        return UNKNOWN
    if text.startswith("ARRAY<"):
        return array_of(_named(text[6:-1]))
    return SCALARS[text]


def _template(lake: "str | Mapping[int, str]") -> Render:
    def render(args: Sequence[Value]) -> str:
        text = lake if isinstance(lake, str) else lake.get(len(args))
        if text is None:
            raise LakeGapError(f"it has no counterpart with {len(args)} arguments")
        for index, arg in enumerate(args):
            text = text.replace(f"{{{index}}}", f"\0{index}\0")
        text = text.replace("{*}", ", ".join(arg.lake for arg in args))
        for index, arg in enumerate(args):
            text = text.replace(f"\0{index}\0", arg.lake)
        return text

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
