"""Makes mutants of code: one small fault each, found in the syntax tree, with a name that outlives moved lines."""

import ast
import hashlib
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

_OPPOSITES: Final[dict[type[ast.cmpop], tuple[str, str]]] = {
    ast.Lt: ("<", ">="),
    ast.LtE: ("<=", ">"),
    ast.Gt: (">", "<="),
    ast.GtE: (">=", "<"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
_EDGES: Final[dict[type[ast.cmpop], tuple[str, str]]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
}
_SYNC: Final = re.compile(r"_?f?sync(_|$)")
# What they say is no promise, and neither is the order of checks and of what tests look at.
_TALK: Final = re.compile(r"log|_log|logger|debug|info|warning|exception|say|write|print|sleep")
# No promise says on which side of a bound a moment, a time that passed or a number of bytes is to its last digit.
_MEASURED: Final = re.compile(
    r"(monotonic|time|clock|now)\(|\bnow\b|_at\b|silence|mtime|(_|\b)(seconds|n?bytes)\b", re.IGNORECASE
)
# What others see of the engine, so that its order is a promise.
_EFFECT: Final = re.compile(
    r"_?(ack|begin|close|commit|drop|expect|fence|finish|flush|forget|f?sync|give|join|move|name_|notify|"
    r"publish|rename|replace|restart|rmtree|send|set$|shutdown|stop|abandon|unlink|write)"
)
_SILENT: Final = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom)
_EXITS: Final = (ast.Return, ast.Raise, ast.Continue, ast.Break)
# One more of a larger number is another tuning, not a fault.
_MAX_EDGE: Final = 3


class MutantError(Exception):
    """A mutant can't be made, or says nothing."""


@dataclass(frozen=True)
class Mutant:
    """One fault: ``new`` in the place of ``old``, which is there once, or at the place ``at`` in the text.

    One by hand brings a mended fault back and names its test. ``fails_with`` matches that test's error where it is
    no assertion. A generated one says which ``lines`` its tests have to run; none means any line of the file.
    """

    id: str
    file: str
    old: str
    new: str
    item: str = ""
    fault: str = ""
    test: str = ""
    fails_with: str = ""
    at: int | None = None
    lines: tuple[int, ...] = ()

    def render(self, text: str) -> str:
        """Return the file's text with the fault in it.

        Raises:
            MutantError: the old text is not there, or more than once.
        """
        if self.at is not None:
            return text[: self.at] + self.new + text[self.at + len(self.old) :]
        if (found := text.count(self.old)) != 1:
            raise MutantError(f"its old text is {found} times in {self.file}, not once")
        return text.replace(self.old, self.new)


def generate(root: Path, rooms: Mapping[str, Iterable[str]], count: int, seed: int) -> list[Mutant]:
    """Return ``count`` mutants of the rooms' files, as many of each kind and room as there are.

    A mutant's rank comes from its own name and the seed, so that a change of the code changes few of the choice.
    """
    groups: defaultdict[tuple[str, str], list[Mutant]] = defaultdict(list)
    for room, files in rooms.items():
        for file in files:
            for mutant in find(file, (root / file).read_text()):
                groups[mutant.fault, room].append(mutant)
    ranked = [sorted(found, key=lambda mutant: _rank(mutant.id, seed)) for _, found in sorted(groups.items())]
    turns = (mutant for turn in itertools.zip_longest(*ranked) for mutant in turn if mutant is not None)
    return list(itertools.islice(turns, count))


def _rank(name: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}:{name}".encode()).digest()


def find(file: str, text: str) -> Iterator[Mutant]:
    """Yield every mutant of a file: ``file:function:kind:occurrence``."""
    seen: Counter[str] = Counter()
    for kind, place, at, old, new in _Finder(text).faults():
        name = f"{file}:{place.owner or 'module'}:{kind}"
        seen[name] += 1
        yield Mutant(f"{name}:{seen[name]}", file, old, new, fault=kind, at=at, lines=place.lines)


class _Place(NamedTuple):
    """The function, and the lines that a test has to run."""

    owner: str
    lines: tuple[int, ...]


_Fault = tuple[str, _Place, int, str, str]


class _Finder:
    """Walks through a module and knows in which function and at which lines it is."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._bytes = text.encode()
        self._starts = [0]
        for line in self._bytes.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._tree = ast.parse(text)
        self._uses: defaultdict[str, set[int]] = defaultdict(set)
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._uses[node.id].add(node.lineno)

    def faults(self) -> Iterator[_Fault]:
        yield from self._body(self._tree.body, "", inside=False)

    def _body(self, body: list[ast.stmt], owner: str, *, inside: bool) -> Iterator[_Fault]:
        for place, statement in enumerate(body):
            yield from self._statement(statement, owner, inside=inside)
            pair = body[place - 1 : place + 1]
            if inside and place and _is_ordered(*pair):
                one, other = map(self._at, pair)
                between = self._cut(one[1], other[0])
                swapped = self._cut(*other) + between + self._cut(*one)
                lines = tuple(line for each in pair for line in _lines(each))
                yield self._fault("swapped-calls", _Place(owner, lines), (one[0], other[1]), swapped)

    def _statement(self, node: ast.stmt, owner: str, *, inside: bool) -> Iterator[_Fault]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            # What it says of itself is no promise.
            if node.name not in {"__repr__", "__str__"}:
                within = inside or not isinstance(node, ast.ClassDef)
                yield from self._body(node.body, f"{owner}.{node.name}".lstrip("."), inside=within)
            return
        if isinstance(node, ast.If) and [_called(each) for each in node.body] == ["hit"]:
            # A failpoint does nothing but where a test asks it to.
            return
        place = _Place(owner, _lines(node)) if inside else self._place_of_value(node, owner)
        if (
            isinstance(node, ast.If)
            and not node.orelse
            and isinstance(node.body[0], _EXITS)
            and not _names(node.test)
        ):
            yield self._fault("guard-removed", place, self._at(node), "pass")
        if _is_call(node, _SYNC):
            yield self._fault("sync-left-out", place, self._at(node), "pass")
        if not isinstance(node, _SILENT) and (_is_call(node) or not _called(node)):
            yield from self._expressions(node, place)
        for field in ("body", "orelse", "finalbody"):
            yield from self._body(getattr(node, field, []), owner, inside=inside)
        for part in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
            yield from self._body(part.body, owner, inside=inside)

    def _place_of_value(self, node: ast.stmt, owner: str) -> "_Place":
        """Return where the value of a module or a class is used: where it is assigned, no test runs."""
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        lines = tuple(sorted(line for name in names for line in self._uses[name]))
        return _Place(".".join(each for each in (owner, *names) if each), lines)

    def _expressions(self, node: ast.stmt, place: "_Place") -> Iterator[_Fault]:
        for child in ast.iter_child_nodes(node):
            found = child.context_expr if isinstance(child, ast.withitem) else child
            if isinstance(found, ast.expr) and found is not getattr(node, "annotation", None):
                for each in ast.walk(found):
                    for kind, begin, end, new in self._changes(each):
                        yield self._fault(kind, place, (begin, end), new)

    def _changes(self, node: ast.AST) -> Iterator[tuple[str, int, int, str]]:
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                begin, end = self._at(left)[1], self._at(right)[0]
                between = self._cut(begin, end)
                is_measured = _MEASURED.search(self._cut(*self._at(node))) or any(
                    map(_is_allowance, (left, right))
                )
                for kind, table in (
                    ("comparison-flipped", _OPPOSITES),
                    ("edge-moved", {} if is_measured else _EDGES),
                ):
                    if type(op) in table:
                        yield kind, begin, end, between.replace(*table[type(op)], 1)
            case ast.UnaryOp(op=ast.Not()):
                begin, _ = self._at(node)
                yield "not-dropped", begin, begin + len("not"), ""
            case ast.BoolOp(op=op, values=[*_, last]) if not _names(last):
                yield "condition-dropped", *self._at(last), str(isinstance(op, ast.And))
            case ast.Call(func=ast.Name(id="min" | "max"), args=[one, other], keywords=[]):
                kept = other if isinstance(one, ast.Constant) else one
                yield "bound-removed", *self._at(node), f"({self._cut(*self._at(kept))})"
            case ast.Constant(value=int() as value) if not isinstance(value, bool) and 0 <= value <= _MAX_EDGE:
                yield "off-by-one", *self._at(node), str(value + 1)

    def _fault(self, kind: str, place: "_Place", at: tuple[int, int], new: str) -> _Fault:
        return kind, place, len(self._bytes[: at[0]].decode()), self._cut(*at), new

    def _at(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = self._starts[node.lineno - 1] + node.col_offset
        return begin, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _cut(self, begin: int, end: int) -> str:
        return self._bytes[begin:end].decode()


def _lines(node: ast.stmt) -> tuple[int, ...]:
    """Return a statement's own lines: the head of one that has a body."""
    body = getattr(node, "body", None)
    end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
    return tuple(range(node.lineno, max(end, node.lineno) + 1))


def _called(node: ast.stmt) -> str:
    """Return the name of what a statement does nothing but call."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return ""
    called = node.value.func
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def _is_call(node: ast.stmt, pattern: re.Pattern[str] | None = None) -> bool:
    """Return whether a statement is a call that does something, or one whose name the pattern matches."""
    name = _called(node)
    return bool(name) and (pattern.match(name) is not None if pattern else _TALK.match(name) is None)


def _is_ordered(one: ast.stmt, other: ast.stmt) -> bool:
    """Return whether two statements have effects on two things, each another effect, that others see in order."""
    if not _is_call(one, _EFFECT) or not _is_call(other, _EFFECT) or _called(one) == _called(other):
        return False
    return _thing(one) != _thing(other) or _thing(one) == "self"


def _thing(node: ast.stmt) -> str:
    """Return the text of what a statement's call is about: its object, or a function's first argument."""
    assert isinstance(node, ast.Expr)
    assert isinstance(node.value, ast.Call)
    call = node.value
    about = call.func.value if isinstance(call.func, ast.Attribute) else call.args[0] if call.args else call.func
    return ast.unparse(about)


def _is_allowance(node: ast.expr) -> bool:
    """Return whether an expression is something more or less a constant: how much is a tuning."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add | ast.Sub):
        return False
    if isinstance(node.left, ast.Constant) or isinstance(node.right, ast.Constant):
        return False
    return any(isinstance(each, ast.Name) and each.id.isupper() for each in ast.walk(node))


def _names(node: ast.expr) -> bool:
    """Return whether an expression gives its parts names, which what follows needs."""
    return any(isinstance(each, ast.NamedExpr) for each in ast.walk(node))
