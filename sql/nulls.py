"""Calls and operators that the lake's engine would answer with NULL before it looks at what fails beside it."""

from typing import Final

from sql.syntax import (
    ArrayLiteral,
    Call,
    Cast,
    Chain,
    Comparison,
    Constant,
    Element,
    Expression,
    FieldAccess,
    Interval,
    Path,
    Placeholder,
    Unary,
)  # fmt: skip
from sql.values import NOT_CONSTANT, Value

# They do not compute what they do not give, in either engine.
_CHOOSING: Final = frozenset({"COALESCE", "IF", "IFNULL"})


def hides_a_failure(node: Expression, values: dict[int, Value]) -> bool:
    """Say whether ``node`` has an operand that is known to be NULL beside one that may fail.

    Google computes every operand, and the query fails. The lake's engine knows the answer when it plans the query.
    """
    parts = _operands(node)
    nulls = [_is_null(part, values) for part in parts]
    return any(nulls) and any(
        not is_null and _may_fail(part, values) for part, is_null in zip(parts, nulls, strict=True)
    )


def _operands(node: Expression) -> list[Expression]:
    """Return what has to be computed for ``node``, and makes it NULL where it is NULL."""
    match node:
        case Call(name=name, arguments=arguments, over=None) if name[-1] not in _CHOOSING:
            found = [argument for argument in arguments if isinstance(argument, Expression)]
        case Chain(operators=operators, operands=operands) if operators[0] not in {"AND", "OR"}:
            found = list(operands)
        case Comparison(left=left, right=right):
            found = [left, right]
        case Element(base=base, index=index):
            found = [base, index]
        case Cast(operand=operand) | Unary(operand=operand):
            found = [operand]
        case _:
            found = []
    return [part.amount if isinstance(part, Interval) else part for part in found]


def _is_null(node: Expression, values: dict[int, Value]) -> bool:
    value = values.get(id(node))
    if isinstance(node, Constant | Placeholder):
        return (isinstance(node, Constant) and node.type == "NULL") or (
            value is not None and value.constant is None
        )
    if isinstance(node, Call) and node.name[-1] in _CHOOSING:
        parts = [part for part in node.arguments if isinstance(part, Expression)]
        return bool(parts) and all(_is_null(part, values) for part in parts)
    return any(_is_null(part, values) for part in _operands(node))


def _may_fail(node: Expression, values: dict[int, Value]) -> bool:
    value = values.get(id(node))
    if value is not None and value.constant is not NOT_CONSTANT:
        return False
    match node:
        case Constant() | Placeholder() | Path():
            return False
        case FieldAccess(base=base):
            return _may_fail(base, values)
        case Unary(operator="-", operand=Constant()):
            return False
        case ArrayLiteral(items=items):
            return any(_may_fail(item, values) for item in items)
        case _:
            return True
