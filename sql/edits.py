"""Edits that mend a query: the rewrites of the gate's findings as changes of the text, each tried first."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from model.table import REPLAY_COLUMNS
from sql.lexer import SourceText, Token, check_size, read_tokens
from sql.violation import Violation

# Each edit is one more reading of the query, of two milliseconds.
MAX_EDITS: Final = 8
_CLAUSES: Final = frozenset(
    {"WHERE", "GROUP", "HAVING", "QUALIFY", "WINDOW", "ORDER", "LIMIT", "UNION", "INTERSECT", "EXCEPT"}
)  # fmt: skip
_SET_OPERATIONS: Final = frozenset({"UNION", "INTERSECT", "EXCEPT"})
# Where one of these is found, others are not looked for: mending it may show them.
_FIRST_OF_MORE: Final = frozenset({"character_not_allowed", "identifier_lookalike", "table_not_allowed"})
# What may follow a table's name without being its alias.
_FROM_WORDS: Final = frozenset(
    {"JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "ON", "USING", "TABLESAMPLE", "FOR", "WITH"}
)

# What is wrong with a text, nothing when it may run.
Judge = Callable[[str], Sequence[Violation]]


@dataclass(frozen=True, slots=True)
class Edit:
    """``text`` takes the place of the characters from ``start`` to ``end``, which is exclusive."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class PlacedViolation:
    """A violation with its place in characters; ``edits`` together mend it, none where no rewrite is known to."""

    violation: Violation
    start: int
    end: int
    edits: tuple[Edit, ...]


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Return ``text`` with all edits, of which no two overlap; those at one place stay in their order.

    Example:
        >>> apply_edits("SELECT data FROM x", [Edit(11, 11, ", a"), Edit(11, 11, ", b"), Edit(17, 18, "y")])
        'SELECT data, a, b FROM y'
    """
    parts: list[str] = []
    last = 0
    for edit in sorted(edits, key=lambda each: each.start):
        parts += [text[last : edit.start], edit.text]
        last = edit.end
    return "".join([*parts, text[last:]])


def find_edits(
    text: str, violations: Sequence[Violation], judge: Judge, *, archive: str, now: datetime
) -> list[PlacedViolation]:
    """Return the violations with their places, each with edits where some are known that mend it.

    ``judge`` has judged every edit: with it the violation is gone, and no other one has come.
    """
    source = SourceText(text)
    tokens = [] if check_size(text) else read_tokens(source)[0]
    statement = _Statement(text, tokens, archive, now)
    findings: list[PlacedViolation] = []
    tried = 0
    for violation in violations:
        start = source.offset(violation.line, violation.column)
        edits = statement.edits_for(violation, start) if tried < MAX_EDITS else ()
        if edits:
            tried += 1
            if not _mends(violation, violations, judge(apply_edits(text, edits))):
                edits = ()
        findings.append(PlacedViolation(violation, start, statement.end_at(start), edits))
    return findings


def fitting_edits(findings: Iterable[PlacedViolation]) -> list[Edit]:
    """Return the edits of findings that can be applied together: of two findings whose edits overlap the first."""
    edits: list[Edit] = []
    for finding in findings:
        if not any(_overlap(edit, each) for edit in finding.edits for each in edits):
            edits += finding.edits
    return edits


def _overlap(one: Edit, other: Edit) -> bool:
    return one == other or (one.start < other.end and other.start < one.end)


def _mends(violation: Violation, before: Sequence[Violation], after: Sequence[Violation]) -> bool:
    """Return whether the violation is gone, and nothing came in its place that was not hidden by it."""
    had = Counter((each.code, each.message) for each in before)
    has = Counter((each.code, each.message) for each in after)
    key = (violation.code, violation.message)
    return has[key] < had[key] and (violation.code in _FIRST_OF_MORE or has <= had)


class _Statement:
    """A query's tokens, as far as they were read."""

    def __init__(self, text: str, tokens: Sequence[Token], archive: str, now: datetime) -> None:
        self._text = text
        self._tokens = tokens
        self._archive = archive
        self._now = now
        self._depths = _depths_of(tokens)

    def end_at(self, start: int) -> int:
        """Return where the token at ``start`` ends; one character after it where none was read."""
        ends = (token.end for token in self._tokens if token.start <= start < token.end)
        return next(ends, min(start + 1, len(self._text)))

    def edits_for(self, violation: Violation, at: int) -> tuple[Edit, ...]:
        """Return edits that are meant to mend ``violation``, which begins at ``at``; none where none are known."""
        if violation.code == "window_missing":
            return self._add_window(at)
        edit = self._edit_for(violation, at)
        return () if edit is None else (edit,)

    def _edit_for(self, violation: Violation, at: int) -> Edit | None:
        match violation.code:
            case "character_not_allowed" if violation.rewrite and violation.rewrite.endswith(" instead."):
                return Edit(at, at + 1, violation.rewrite.removeprefix("Write ").removesuffix(" instead."))
            case "identifier_lookalike" if violation.rewrite:
                return Edit(at, self._text.index("`", at + 1) + 1, violation.rewrite)
            case "table_not_allowed":
                return self._name_archive(at)
            case "literal_invalid":
                return self._compare_null(at)
            case "column_missing":
                return self._add_column(violation.message)
            case "column_type":
                return self._cast_data(violation.message)
            case "column_reserved":
                return self._rename(violation.rewrite or "")
            case _:
                return None

    def _index_at(self, at: int) -> int | None:
        return next((place for place, token in enumerate(self._tokens) if token.start >= at), None)

    def _add_window(self, at: int) -> tuple[Edit, ...]:
        """Return what bounds the scan at ``at`` to yesterday and today, in the WHERE of its SELECT."""
        first = self._index_at(at)
        if first is None:
            return ()
        ends = _path_end(self._tokens, first)
        alias = self._alias_after(ends)
        day = timedelta(days=1)
        column = f"{alias}._PARTITIONTIME" if alias else "_PARTITIONTIME"
        bounds = [f"TIMESTAMP '{moment:%Y-%m-%d}'" for moment in (self._now - day, self._now + day)]
        window = f"{column} >= {bounds[0]} AND {column} < {bounds[1]}"
        clause = self._next_clause(ends, self._depths[first])
        token = self._tokens[clause]
        if token.upper != "WHERE":
            before = self._tokens[clause - 1].end
            return (Edit(before, before, f" WHERE {window}"),)
        end = self._next_clause(clause + 1, self._depths[first])
        start = self._tokens[clause + 1].start
        if all(each.upper != "OR" for each in self._tokens[clause:end]):
            return (Edit(start, start, f"{window} AND "),)
        after = self._tokens[end - 1].end
        return Edit(start, start, f"{window} AND ("), Edit(after, after, ")")

    def _alias_after(self, place: int) -> str:
        """Return the name that the table before ``place`` has in its query, where one is written."""
        tokens = self._tokens
        if tokens[place].upper == "AS":
            place += 1
        elif tokens[place].upper in _CLAUSES | _FROM_WORDS:
            return ""
        token = tokens[place]
        return self._text[token.start : token.end] if token.kind in {"name", "quoted"} else ""

    def _next_clause(self, place: int, depth: int) -> int:
        """Return the place of the token that begins the next clause of the SELECT, or ends it."""
        while place < len(self._tokens) - 1:
            token, inner = self._tokens[place], self._depths[place]
            if inner < depth or (inner == depth and (token.upper in _CLAUSES or token.value in {";", "|>"})):
                return place
            place += 1
        return len(self._tokens) - 1

    def _name_archive(self, at: int) -> Edit | None:
        first = self._index_at(at)
        if first is None:
            return None
        end = _path_end(self._tokens, first)
        return Edit(self._tokens[first].start, self._tokens[end - 1].end, f"`{self._archive}`")

    def _compare_null(self, at: int) -> Edit | None:
        """Return the edit that makes ``= NULL`` an IS NULL, ``!= NULL`` an IS NOT NULL."""
        said = {"=": "IS NULL", "!=": "IS NOT NULL", "<>": "IS NOT NULL"}
        for operator, null in pairwise(self._tokens):
            if operator.start >= at and null.upper == "NULL" and operator.kind == "symbol":
                text = said.get(str(operator.value))
                return None if text is None else Edit(operator.start, null.end, text)
        return None

    def _add_column(self, message: str) -> Edit | None:
        items = self._select_items()
        name = next((name for name in REPLAY_COLUMNS if f"no column {name} " in message), None)
        if name is None or not items:
            return None
        end = items[-1][-1].end
        return Edit(end, end, f", {name}")

    def _cast_data(self, message: str) -> Edit | None:
        """Return the edit that makes a STRING under the name of data BYTES again."""
        for item in self._select_items():
            if message.startswith("data must be") and len(item) > 2 and _is_named(item, "DATA"):
                start, end = item[0].start, item[-3].end
                return Edit(start, end, f"CAST({self._text[start:end]} AS BYTES)")
        return None

    def _rename(self, rewrite: str) -> Edit | None:
        key, _, name = rewrite.partition(" AS ")
        for item in self._select_items():
            if name and item[-1].kind == "name" and item[-1].upper == key.upper():
                return Edit(item[-1].end, item[-1].end, f" AS {name}")
        return None

    def _select_items(self) -> list[list[Token]]:
        """Return the tokens of each column of the outermost SELECT; none where there are several of them."""
        places = [
            place
            for place, token in enumerate(self._tokens)
            if self._depths[place] == 0 and token.upper in {"SELECT", *_SET_OPERATIONS}
        ]
        if len(places) != 1:
            return []
        items: list[list[Token]] = [[]]
        for place in range(places[0] + 1, len(self._tokens) - 1):
            token = self._tokens[place]
            if self._depths[place] == 0 and (token.upper == "FROM" or token.value == ";"):
                break
            if self._depths[place] == 0 and token.kind == "symbol" and token.value == ",":
                items.append([])
            else:
                items[-1].append(token)
        return [item for item in items if item]


def _is_named(item: Sequence[Token], upper: str) -> bool:
    return item[-2].upper == "AS" and item[-1].upper == upper


def _path_end(tokens: Sequence[Token], place: int) -> int:
    """Return the place after the table's name that begins at ``place``: names, dots and dashes without blanks."""
    end = place + 1
    while tokens[end].kind != "end" and tokens[end].start == tokens[end - 1].end and _is_of_path(tokens[end]):
        end += 1
    return end


def _is_of_path(token: Token) -> bool:
    return token.kind in {"name", "quoted", "integer", "bad"} or token.value in {".", "-", "*", ":"}


def _depths_of(tokens: Sequence[Token]) -> list[int]:
    """Return how many brackets are open before each token; one that closes is as deep as what opened it."""
    depths: list[int] = []
    depth = 0
    for token in tokens:
        is_symbol = token.kind == "symbol"
        depth -= is_symbol and token.value in {")", "]"}
        depths.append(depth)
        depth += is_symbol and token.value in {"(", "["}
    return depths
