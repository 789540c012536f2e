"""The arguments of a function call: does each fit, and do they fit together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sql import literals
from sql.datatypes import DATE, DATETIME, INTERVAL, STRING, TIMESTAMP, SqlType, common_type, fits
from sql.functions.registry import PARTS, Function
from sql.names import Scope
from sql.syntax import Call, Expression, Lambda, NamedArgument, Path
from sql.values import BROKEN, NOT_CONSTANT, Value

if TYPE_CHECKING:
    from sql.expression_binder import ExpressionBinder

# Arguments that say how a call works, known before it runs: the place, the least and the most.
_SETTINGS: Final[dict[str, tuple[int, float | None, float | None]]] = {
    "STRING_AGG": (1, None, None), "LAG": (1, None, None), "LEAD": (1, None, None),
    "NTILE": (0, 1, None), "NTH_VALUE": (1, 1, None), "PERCENTILE_CONT": (1, 0, 1), "PERCENTILE_DISC": (1, 0, 1),
    "HLL_COUNT.INIT": (1, 10, 24), "APPROX_QUANTILES": (1, 1, None), "APPROX_TOP_COUNT": (1, 1, None),
    "APPROX_TOP_SUM": (2, 1, None),
}  # fmt: skip
# Where functions take a time zone.
_ZONED: Final = {
    "DATE": 1, "DATETIME": 1, "TIMESTAMP": 1, "STRING": 1, "CURRENT_TIME": 0, "TIME": 1,
    "DATE_TRUNC": 2, "TIMESTAMP_TRUNC": 2, "FORMAT_TIMESTAMP": 2, "PARSE_TIMESTAMP": 2,
}  # fmt: skip
BYTES: Final = SqlType("BYTES")
# Functions whose named arguments the lake knows.
_NAMED_ON_LAKE: Final = frozenset({"JSON_SET", "JSON_STRIP_NULLS", "JSON_KEYS"})
# What functions of several meanings take together.
_SIGNATURES: Final[dict[str, tuple[str, ...]]] = {
    "DATE": ("DATE", "DATETIME", "TIMESTAMP", "TIMESTAMP STRING", "INT64 INT64 INT64"),
    "DATETIME": (
        "DATE", "DATETIME", "TIMESTAMP", "TIMESTAMP STRING", "DATE TIME", "INT64 INT64 INT64 INT64 INT64 INT64",
    ),
    "TIME": ("TIME", "DATETIME", "TIMESTAMP", "TIMESTAMP STRING", "INT64 INT64 INT64"),
    "TIMESTAMP": ("TIMESTAMP", "STRING", "STRING STRING", "DATE", "DATE STRING", "DATETIME", "DATETIME STRING"),
    "STRING": ("TIMESTAMP", "TIMESTAMP STRING", "DATE", "DATETIME", "TIME", "JSON", "BOOL"),
    "TIMESTAMP_TRUNC": ("TIMESTAMP STRING", "TIMESTAMP STRING STRING", "DATETIME STRING"),
    "LAST_DAY": ("DATE", "DATETIME", "DATE STRING", "DATETIME STRING"),
    "DATE_DIFF": ("DATE DATE STRING", "DATETIME DATETIME STRING", "TIMESTAMP TIMESTAMP STRING"),
    "DATE_TRUNC": ("DATE STRING", "DATETIME STRING", "TIMESTAMP STRING", "TIMESTAMP STRING STRING"),
}  # fmt: skip
_CLASSES: Final = {
    "STR": ("STRING", "BYTES"),
    "NUM": ("INT64", "FLOAT64", "NUMERIC", "BIGNUMERIC"),
    "JSONISH": ("STRING", "JSON"),
    "MOMENT": ("DATE", "DATETIME", "TIMESTAMP"),
    "WHEN": ("DATE", "DATETIME", "TIMESTAMP", "STRING"),
}


class ArgumentBinding:
    """Binds the arguments of one call."""

    def __init__(self, binder: ExpressionBinder, node: Call, scope: Scope) -> None:
        self._binder = binder
        self._node = node
        self._scope = scope

    def bind(self, function: Function) -> list[Value] | None:
        """Return the values of the call's arguments; None where a fault makes the rest meaningless."""
        scope, node = self._scope, self._node
        is_aggregate = function.kind == "aggregate" and node.over is None
        if is_aggregate:
            scope.in_aggregate, scope.has_aggregates = True, True
        try:
            values = [self._argument(function, index, argument) for index, argument in enumerate(node.arguments)]
        finally:
            if is_aggregate:
                scope.in_aggregate = False
        if any(value is None for value in values):
            return None
        found = [value for value in values if value is not None]
        if not self._is_taken_together(function, found):
            kinds = ", ".join(str(value.type) for value in found)
            self._fault("type_mismatch", f"{function.name} does not take {kinds}.")
            return None
        if function.name in _ZONED and len(found) > _ZONED[function.name]:
            zone = found[_ZONED[function.name]]
            self._binder.check_zone(node, zone)
            if node.name[0] == "SAFE" and zone.constant is NOT_CONSTANT and zone.type == STRING:
                # A zone that there is not ends a query, whatever is around it.
                self._binder.gap(node, f"SAFE.{function.name} with a computed time zone")
            if function.name in {"DATE", "DATETIME"} and zone.type == STRING:
                found[0] = literals.bent(found[0], TIMESTAMP)
        self._check_settings(function, found)
        if function.name == "TIMESTAMP_TRUNC" and found[0].type == DATE:
            self._binder.gap(node, "TIMESTAMP_TRUNC of a DATE: use DATE_TRUNC")
        return self._unified(function, found)

    def _is_taken_together(self, function: Function, values: list[Value]) -> bool:
        """Say whether some meaning of a function takes all of ``values``."""
        signatures = [text.split() for text in _SIGNATURES.get(function.name, ())]
        kinds_given = {value.type for value in values}
        if function.name == "DATE_DIFF" and DATETIME in kinds_given and any(v.is_literal for v in values[:2]):
            # A literal of STRING is read as a DATE, which stands beside no DATETIME.
            return False
        return not signatures or any(
            len(kinds) == len(values)
            and all(
                fits(value.type, SqlType(kind), is_literal=value.is_literal and kind != "TIME")
                for kind, value in zip(kinds, values, strict=True)
            )
            for kinds in signatures
        )

    def _check_settings(self, function: Function, values: list[Value]) -> None:
        """Refuse a setting of a call (how many, how far) that is not written out, or is outside its range."""
        place, low, high = _SETTINGS.get(function.name, (len(values), None, None))
        if place >= len(values) or not values[place].type.is_known:
            return
        node = self._node.arguments[place]
        number = literals.number_of(node, values[place])
        is_outside = number is not None and (
            (low is not None and number < low) or (high is not None and number > high)
        )
        what = f"Argument {place + 1} of {function.name}"
        if not values[place].is_literal or values[place].constant is None:
            self._fault("function_arguments", f"{what} must be a literal or a parameter, and must not be NULL.")
        elif is_outside:
            self._fault("function_arguments", f"{what} is {number}, outside its range.")

    def _argument(self, function: Function, index: int, argument: object) -> Value | None:
        if isinstance(argument, Lambda):
            self._fault("function_arguments", "Lambdas are not allowed.")
            return None
        if isinstance(argument, NamedArgument):
            if argument.name.text.lower() not in function.named or not isinstance(argument.value, Expression):
                self._fault(
                    "function_arguments", f"{function.name} has no argument named {argument.name.text[:40]}."
                )
                return None
            if function.name not in _NAMED_ON_LAKE:
                self._binder.gap(argument, f"{function.name} with {argument.name.text}")
            return replace(self._binder.bind(argument.value, self._scope), named=argument.name.text.lower())
        assert isinstance(argument, Expression)  # the grammar knows no fourth kind
        wanted = function.parameter(index)
        if wanted == "PART":
            return self._part(argument)
        value = self._binder.bind(argument, self._scope)
        if not value.type.is_known or wanted in {"ANY", "T"}:
            return value
        if wanted == "ARRAY":
            allowed = value.type.element is not None or value.type.name == "NULL"
        elif wanted == "ITEM":
            allowed = value.type.element is None
        elif wanted == "TEXTS":
            allowed = value.type.element is not None and value.type.element.name in {"STRING", "BYTES", "NULL"}
        elif wanted == "ORDERED":
            allowed = value.type.is_orderable
        elif wanted == "MOMENT" and (
            (value.is_literal and value.type == STRING)
            or (value.type.name == "NULL" and function.parameters.count("MOMENT") == 1)
        ):
            kind = TIMESTAMP if function.name == "TIMESTAMP_TRUNC" else DATE
            value, allowed = literals.bent(value, kind), True
        elif wanted in _CLASSES:
            allowed = value.type.name in (*_CLASSES[wanted], "NULL")
        else:
            kind = INTERVAL if wanted == "INTERVAL" else SqlType(wanted)
            allowed = fits(value.type, kind, is_literal=value.is_literal)
            if allowed:
                value = literals.bent(value, kind)
        if not allowed:
            what = {
                "STR": "STRING or BYTES",
                "NUM": "a number",
                "JSONISH": "STRING or JSON",
                "TEXTS": "an ARRAY of STRING",
                "MOMENT": "a date or time",
                "WHEN": "a date, a time or STRING",
                "ORDERED": "a value that can be sorted",
                "ITEM": "a value that is not an ARRAY",
            }.get(wanted, wanted)
            self._binder.fault(
                argument,
                "type_mismatch",
                f"{function.name} needs {what} as argument {index + 1}. This is {value.type}.",
            )
            return None
        return value

    def _part(self, argument: Expression) -> Value | None:
        name = argument.names[0].text.upper() if isinstance(argument, Path) and len(argument.names) == 1 else ""
        if name not in PARTS:
            self._binder.fault(argument, "date_part", "Expected a date part such as DAY.")
            return None
        return Value(STRING, "NULL", constant=name)

    def _unified(self, function: Function, values: list[Value]) -> list[Value]:
        """Bring every argument of kind T to one type, and literals of STRING beside BYTES to BYTES."""
        texts = [n for n in range(len(values)) if function.parameters and function.parameter(n) == "STR"]
        if BYTES in {values[n].type for n in texts}:
            for n in texts:
                text = values[n].constant
                if values[n].type == STRING and not (isinstance(text, str) and text.isascii()):
                    # Beside BYTES, Google takes a literal of ASCII alone for one of them.
                    self._fault("type_mismatch", f"{function.name} needs only STRING or only BYTES.")
                elif values[n].type != BYTES:
                    values[n] = literals.as_bytes(values[n])
        places = [n for n in range(len(values)) if function.parameters and function.parameter(n) == "T"]
        if len(places) < 2:
            return values
        chosen = [values[n] for n in places]
        target = common_type([(value.type, value.is_literal) for value in chosen])
        if target is None:
            kinds = ", ".join(str(value.type) for value in chosen)
            self._fault(
                "type_mismatch", f"{function.name} needs values of one type. These have the types {kinds}."
            )
            return [BROKEN for _ in values]
        for place in places:
            values[place] = literals.bent(values[place], target)
        return values

    def _fault(self, code: str, message: str) -> None:
        self._binder.fault(self._node, code, message)
