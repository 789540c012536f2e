"""``SAFE.`` on the lake: calls that give NULL where they fail, as GoogleSQL has it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from sql import literals
from sql.datatypes import INTERVAL
from sql.values import LakeGapError, Value, without_errors, without_quotes

_VOLATILE: Final = re.compile(r"\b(?:error|random|gen_random_uuid|uuid)\(")
# They fail where an argument does, and in no other way; what they do not give is not computed.
_NEVER_FAILING: Final = frozenset({"COALESCE", "IF", "IFNULL", "NULLIF"})


def tried(name: str, call: Callable[[Sequence[Value]], str], args: Sequence[Value]) -> str:
    """Return the lake's text for a call that gives NULL where it fails; where an argument fails, the query does.

    The engine computes what a query says twice only once, and takes it out of its TRY for that: the query fails
    then. It looks into no lambda, so the call stands in one, over a list of what it is called with.

    Raises:
        LakeGapError: the lake's text for the call raises an error of its own, or differs at each look.

    Example:
        >>> from sql.datatypes import INT64
        >>> tried("CHR", lambda args: f"chr({args[0].lake})", [Value(INT64, "t1.n")])
        "list_transform([{'a0': t1.n}], lambda given: TRY(chr(given['a0'])))[1]"
    """
    if name in _NEVER_FAILING:
        return call(args)
    fields: list[str] = []

    def moved(arg: Value) -> Value:
        if arg.type == INTERVAL and arg.amount is not None:
            # The amount may fail by itself; that it is too much is the call's own failure.
            amount, unit = arg.amount
            return replace(arg, lake=literals.interval(moved(amount), unit).lake)
        # A constant pattern is read when the query is planned: one that is none has to fail later.
        if arg.lake == "NULL" or (arg.is_literal and not name.startswith("REGEXP_")):
            return arg
        fields.append(f"'a{len(fields)}': {arg.lake}")
        return replace(arg, lake=f"given['a{len(fields) - 1}']", is_literal=False)

    text = without_errors(call([moved(arg) for arg in args]))
    if _VOLATILE.search(without_quotes(text)):
        raise LakeGapError("it fails by itself or differs at each look")
    values = f"{{{', '.join(fields)}}}" if fields else "0"
    return f"list_transform([{values}], lambda given: TRY({text}))[1]"
