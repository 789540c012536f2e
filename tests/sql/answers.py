"""The answers of Google's engine to the grid: how they are recorded, and how the lake's are compared with them.

``python -m tests.sql.answers record`` asks what is not recorded yet and forgets what left the grid;
``python -m tests.sql.answers seeds 1 2 3`` records some calls made from the registry of functions;
``python -m tests.sql.answers ask SEED`` asks about such calls and about new combinations of the grid, and compares
at once. All need the dependency group ``oracle``.
"""

import gzip
import json
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from connectors.lake.udfs import register_functions
from model.table import TableSchema
from sql.datatypes import SqlType, lake_type
from sql.tables import read_type
from sql.validate import Policy, QueryRefusedError, ValidatedQuery
from sql.verdict import judge_query
from tests.sql import grid
from tests.sql.differences import as_documented, is_hidden, read_accepted
from tests.sql.judge import Judge, JudgeError, render_float, render_numeric
from tests.sql.questions import FORMS, Questions, in_batches, kind_of

RECORD: Final = Path(__file__).parent / "answers.jsonl.gz"
SEEDS: Final = Path(__file__).parent / "seeds.jsonl.gz"
# What is recorded of the calls of a seed, so that comparing takes seconds.
MOST_OF_A_SEED: Final = 600
MOST_OF_A_FUNCTION: Final = 12
FREE: Final = Policy("backup.messages", None, datetime(2024, 1, 10, 12, tzinfo=UTC), replay=False)
BATCH: Final = 40
_ERRORS: Final = ("error", "invalid")
# "Most functions including IEEE 754 arithmetic operations are expected to return a value that is exact in all
# places of the mantissa. [...] Progressive margins can be used to compare floating point results that were
# produced using computations potentially involving high precision loss such as trigonometry, running averages,
# etc."; kDefaultFloatMargin is 2^4 ULP:
# https://github.com/google/zetasql/blob/master/zetasql/common/float_margin.h
MARGIN: Final = 2**4
_IS_ROUGH: Final = re.compile(
    r"\b(?:A?(?:SIN|COS|TAN)H?|ATAN2|COT|EXP|LN|LOG10|POW|POWER|CBRT|CORR|COVAR_\w+|STDDEV\w*|VAR_\w+|VARIANCE)\("
)
# "If a floating-point type is returned, the result is non-deterministic", and of AVG: "If the argument is
# `[+|-]Infinity` for any row in the group, returns either `[+|-]Infinity` or `NaN`."
# https://github.com/google/googlesql/blob/master/docs/aggregate_functions.md
_ADDS: Final = re.compile(r"\b(?:SUM|AVG|(COVAR_\w+|VAR_\w+|VARIANCE))\(")
# Of CORR: "the input is converted to FLOAT64 before aggregation, resulting in a potentially unstable result".
# https://github.com/google/googlesql/blob/master/docs/statistical_aggregate_functions.md
_CORRELATES: Final = "CORR("
_NUMBER: Final = re.compile(r"(?<![\w.])-?\d+(?:\.\d*)?(?:e[+-]?\d+)?(?![\w.])")
_FLOAT: Final = re.compile(r"(?<![\w\"])-?(?:\d[\d.]*(?:e[+-]?\d+)?|inf|nan)f\b")


def read_answers() -> dict[str, list[str]]:
    """Return the recorded answers: of the literal form, and of the form by columns where that is another."""
    lines = gzip.decompress(RECORD.read_bytes()).decode().splitlines() if RECORD.exists() else []
    return {line[0]: line[1:] for line in map(json.loads, lines)}


def ask(judge: Judge, sql: str) -> str:
    """Return the engine's answer to a query as text; "error" or "invalid" where it gives none."""
    try:
        rows = judge.answer(as_documented(sql))
    except JudgeError as exc:
        text = str(exc)
        kinds = {"[OUT_OF_RANGE]": "error", "[INVALID_ARGUMENT]": "invalid", "[UNIMPLEMENTED]": "unknown"}
        return next((kind for sign, kind in kinds.items() if text.startswith(sign)), f"unknown {text[:60]}")
    return ";".join(",".join(row) for row in rows)


def ask_case(judge: Judge, case: grid.Case) -> list[str]:
    """Return the answers to a case's literal form and, where it differs, to its form by columns."""
    literal = ask(judge, f"SELECT {case.literal}")
    if not case.columns:
        return [literal]
    columns = ask(judge, case.by_columns)
    return [literal] if literal == columns else [literal, columns]


def is_same(ours: str, theirs: str, question: str) -> bool:
    """Say whether an answer of the lake is Google's: refusing is.

    A FLOAT64 of a function that no standard rounds may differ as Google's own tests let it differ; within another
    such call the difference grows again. A sum may differ by the last digits of its greatest addend, and a
    correlation by those of 1.0.
    """
    if theirs.startswith("unknown") or ours.startswith("refused"):
        return True
    if theirs in _ERRORS:
        return ours == "error"
    if ours == theirs:
        return True
    mine, wanted = _FLOAT.findall(ours), _FLOAT.findall(theirs)
    rough, lost = len(_IS_ROUGH.findall(question)), _lost_digits(question)
    if rough == 0 == lost or len(mine) != len(wanted) or _FLOAT.sub("", ours) != _FLOAT.sub("", theirs):
        return False
    pairs = [(float(a[:-1]), float(b[:-1])) for a, b in zip(mine, wanted, strict=True)]
    if "AVG(" in question and "inf" in question.lower():
        pairs = [pair for pair in pairs if any(map(math.isfinite, pair))]
    return all(_is_close(a, b, MARGIN**rough if rough else 0, lost) for a, b in pairs)


def _lost_digits(question: str) -> float:
    """Return how far a sum of the numbers in a question may be off by its order, 0.0 where nothing is added."""
    if _CORRELATES in question:
        # It is the sum of products divided by what that sum is at most, so 1.0 is the greatest.
        return MARGIN * math.ulp(1.0)
    found = _ADDS.search(question)
    if found is None:
        return 0.0
    most = max((abs(float(number)) for number in _NUMBER.findall(question)), default=0.0)
    return MARGIN * math.ulp(most * most if found[1] else most) if most else 0.0


def _is_close(mine: float, wanted: float, margin: int, lost: float) -> bool:
    if mine == wanted:
        return math.copysign(1, mine) == math.copysign(1, wanted)
    if not (math.isfinite(mine) and math.isfinite(wanted)):
        return math.isnan(mine) and math.isnan(wanted)
    if abs(mine - wanted) <= lost:
        return True
    return mine != 0 != wanted and abs(mine - wanted) <= margin * math.ulp(max(abs(mine), abs(wanted)))


class Lake:
    """Answers expressions as the lake does, in the words of the judge."""

    def __init__(self) -> None:
        self._connection = duckdb.connect(config={"threads": 1})
        self._connection.execute("SET TimeZone = 'UTC'")
        register_functions(self._connection)
        self._literals: dict[str, str] = {}

    def close(self) -> None:
        self._connection.close()

    def query(self, sql: str) -> str:
        """Return the answer to a query: its rows as text, "error", "refused: ..." or "broken: ..."."""
        query = self._judged(sql)
        return query if isinstance(query, str) else self._rows(query, [], ())

    def translated(self, sql: str) -> str | None:
        """Return what the one item of a query became for the lake, None where it is refused."""
        query = self._judged(sql)
        if isinstance(query, str):
            return None
        return query.lake_sql.partition("(SELECT ")[2].rpartition(" AS o")[0].partition(" FROM (SELECT ")[0]

    def literals(self, expressions: list[str]) -> Iterator[str]:
        """Yield the answers to expressions, as many as possible asked together."""
        for start in range(0, len(expressions), BATCH):
            part = expressions[start : start + BATCH]
            query = self._judged(f"SELECT {', '.join(part)}")
            if isinstance(query, str) or (rows := self._table(query, [], ())) is None:
                for expression in part:
                    yield self.query(f"SELECT {expression}")
            else:
                yield from rows[0]

    def columns(self, cases: list[grid.Case]) -> Iterator[tuple[grid.Case, str]]:
        """Yield the answers to cases of one template, their values in columns of a table."""
        kinds = cases[0].kinds
        schema = TableSchema("ops.grid", tuple((f"c{place}", kind) for place, kind in enumerate(kinds)))
        policy = replace(FREE, extra_tables=("ops.grid",), schemas=(schema,))
        # Constants of a template make queries of their own.
        bodies: dict[str, list[grid.Case]] = defaultdict(list)
        for case in cases:
            bodies[case.body].append(case)
        for body, group in bodies.items():
            query = self._judged(f"SELECT {body} FROM ops.grid", policy)
            if isinstance(query, str):
                yield from ((case, query) for case in group)
                continue
            together = [case for case in group if not case.fails]
            found = self._table(query, together, kinds) if together else []
            alone = group if found is None else [case for case in group if case.fails]
            if found is not None:
                yield from zip(together, (row[0] for row in found), strict=True)
            yield from ((case, self._rows(query, [case], kinds)) for case in alone)

    def column(self, body: str, kind: str, literals: Sequence[str]) -> list[str]:
        """Return the answers to an expression over a column ``c0``, in one query; "error" alone where it fails."""
        cases = [grid.Case(body, text, body, (text,), (kind,)) for text in literals]
        policy = replace(FREE, extra_tables=("ops.grid",), schemas=(TableSchema("ops.grid", (("c0", kind),)),))
        query = self._judged(f"SELECT {body} FROM ops.grid", policy)
        if isinstance(query, str):
            return [query]
        found = self._table(query, cases, (kind,))
        return ["error"] if found is None else [row[0] for row in found]

    def _values(self, cases: list[grid.Case], kinds: tuple[str, ...]) -> str:
        """Return the table of the cases' values for the lake."""
        rows = ", ".join(f"({', '.join(map(self._value, case.columns))})" for case in cases)
        names = ", ".join(f"c{place}" for place in range(len(kinds)))
        casts = ", ".join(f"CAST(c{n} AS {lake_type(read_type(kind))}) AS c{n}" for n, kind in enumerate(kinds))
        return f"WITH refeed_table_1 AS MATERIALIZED (SELECT {casts} FROM (VALUES {rows}) AS v({names}))"

    def _value(self, literal: str) -> str:
        if literal not in self._literals:
            query = self._judged(f"SELECT {literal} AS v")
            assert not isinstance(query, str), (literal, query)
            head, tail = 'SELECT o1 AS "v" FROM (SELECT ', " AS o1) AS result"
            self._literals[literal] = query.lake_sql.removeprefix(head).removesuffix(tail)
        return self._literals[literal]

    def _judged(self, sql: str, policy: Policy = FREE) -> ValidatedQuery | str:
        try:
            query = judge_query(sql, {}, policy)
        except QueryRefusedError as exc:
            return f"refused: {exc.violations[0].code}"
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as exc:
            return f"broken: the gate fails with {type(exc).__name__}: {exc}"
        if query.lake_violations:
            return f"refused: {query.lake_violations[0].message[:80]}"
        return query

    def _run(self, query: ValidatedQuery, cases: list[grid.Case], kinds: tuple[str, ...]) -> list[list[str]]:
        table = f"{self._values(cases, kinds)}\n" if cases else ""
        found = self._connection.sql(table + query.lake_sql, params=dict(query.lake_parameters)).to_arrow_table()
        return _render_table(found, query)

    def _table(
        self, query: ValidatedQuery, cases: list[grid.Case], kinds: tuple[str, ...]
    ) -> list[list[str]] | None:
        try:
            return self._run(query, cases, kinds)
        except (duckdb.Error, UnicodeDecodeError):
            return None

    def _rows(self, query: ValidatedQuery, cases: list[grid.Case], kinds: tuple[str, ...]) -> str:
        try:
            return ";".join(",".join(row) for row in self._run(query, cases, kinds))
        except (duckdb.Error, UnicodeDecodeError) as exc:  # the engine cuts a message within a character
            planning = duckdb.BinderException | duckdb.ParserException | duckdb.CatalogException
            return f"broken: {str(exc)[:200]}" if isinstance(exc, planning) else "error"


def _render_table(table: pa.Table, query: ValidatedQuery) -> list[list[str]]:
    kinds = [read_type(column.type) for column in query.output]
    columns = [
        [_render(value, kind) for value in _plain(column)]
        for column, kind in zip(table.columns, kinds, strict=True)
    ]
    return [list(row) for row in zip(*columns, strict=True)]


def _plain(column: pa.ChunkedArray) -> list[Any]:
    # Moments as numbers: Python knows none beyond the year 9999, and answers there have to be seen.
    return pa.chunked_array(
        [_as_numbers(chunk) for chunk in column.chunks], type=_number_type(column.type)
    ).to_pylist()


def _number_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_list(kind):
        return pa.list_(_number_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(f"f{n}", _number_type(kind.field(n).type)) for n in range(kind.num_fields)])
    return kind


def _as_numbers(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_list(kind):
        flat = _as_numbers(array.values)
        return (
            pa.ListArray.from_arrays(array.offsets, flat, mask=array.is_null())
            if len(array)
            else pa.array([], _number_type(kind))
        )
    if pa.types.is_struct(kind):
        fields = [_as_numbers(array.field(n)) for n in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, [f"f{n}" for n in range(len(fields))], mask=array.is_null())
    wanted = _number_type(kind)
    return array if wanted == kind else array.view(wanted)


def _render(value: Any, kind: SqlType) -> str:  # noqa: C901, PLR0911, PLR0912 - one line a type
    if value is None:
        return "NULL"
    if kind.element is not None:
        return f"[{','.join(_render(item, kind.element) for item in value)}]"
    match kind.name:
        case "STRUCT":
            return (
                f"({','.join(_render(item, k) for item, (_, k) in zip(value.values(), kind.fields, strict=True))})"
            )
        case "BOOL":
            return str(value).lower() if isinstance(value, bool) else f"no BOOL {value!r}"
        case "INT64":
            return str(value) if isinstance(value, int) else f"no INT64 {value!r}"
        case "FLOAT64":
            return render_float(value) if isinstance(value, float) else f"no FLOAT64 {value!r}"
        case "NUMERIC":
            return render_numeric(value) if isinstance(value, Decimal) else f"no NUMERIC {value!r}"
        case "STRING":
            return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else f"no STRING {value!r}"
        case "BYTES":
            return f'b"{value.hex()}"' if isinstance(value, bytes) else f"no BYTES {value!r}"
        case "JSON":
            return f"json {value}"
        case "DATE":
            return _date(value)
        case "TIMESTAMP":
            return f"{value}us"
        case "DATETIME":
            days, rest = divmod(value, 86_400 * 10**6)
            return f"{_date(days)} {_clock(rest)}"
        case "TIME":
            return _clock(value)
        case _:
            return f"{kind} {value}"


def _date(days: int) -> str:
    try:
        return (date(1970, 1, 1) + timedelta(days=days)).isoformat()
    except OverflowError:
        return f"day {days}"


def _clock(micros: int) -> str:
    seconds, rest = divmod(micros, 10**6)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{rest:06d}"


def compare(
    lake: Lake, cases: Iterable[grid.Case], answers: dict[str, list[str]], *, literals_of: int = 1
) -> Iterator[tuple[str, str, str]]:
    """Yield each case that the lake does not answer as Google: the question, Google's answer, the lake's.

    Of the forms with literals only one in ``literals_of`` is asked, and those that Google answers otherwise.
    """
    cases = list(cases)
    chosen = [
        case
        for number, case in enumerate(cases)
        if number % literals_of == 0 or not case.columns or len(answers[case.literal]) > 1
    ]
    # What Google answers is asked in batches; what fails there has to fail alone.
    fine = [case.literal for case in chosen if answers[case.literal][0] not in _ERRORS]
    ours = dict(zip(fine, lake.literals(fine), strict=True))
    for case in chosen:
        theirs = answers[case.literal][0]
        mine = ours[case.literal] if case.literal in ours else lake.query(f"SELECT {case.literal}")
        if not is_same(mine, theirs, case.literal):
            yield f"SELECT {case.literal}", theirs, mine
    groups: dict[str, list[grid.Case]] = defaultdict(list)
    for case in cases:
        if case.columns:
            groups[case.template].append(replace(case, fails=answers[case.literal][-1] in _ERRORS))
    for group in groups.values():
        for case, mine in lake.columns(group):
            theirs = answers[case.literal][-1]
            if not is_same(mine, theirs, case.literal):
                yield case.by_columns, theirs, mine


def compare_queries(
    lake: Lake, queries: Iterable[str], answers: dict[str, list[str]]
) -> Iterator[tuple[str, str, str]]:
    """Yield each query over rows that the lake does not answer as Google."""
    for sql in queries:
        # Which of two zeros is the least depends on the order of the rows.
        theirs, mine = answers[sql][0].replace("-0.0f", "0.0f"), lake.query(sql).replace("-0.0f", "0.0f")
        if not is_same(mine, theirs, sql):
            yield sql, theirs, mine


def record() -> None:
    """Ask what is not recorded yet, and write the record."""
    known, judge = read_answers(), Judge()
    answers = {case.literal: known.get(case.literal) or ask_case(judge, case) for case in grid.cases()}
    answers |= {sql: known.get(sql) or [ask(judge, sql)] for sql in grid.row_queries()}
    lines = (json.dumps([text, *found], ensure_ascii=False) for text, found in answers.items())
    RECORD.write_bytes(gzip.compress("\n".join(lines).encode(), 9, mtime=0))


def read_seeds() -> tuple[list[grid.Case], dict[str, list[str]]]:
    """Return the recorded questions that were made from the registry, and their answers."""
    lines = [json.loads(line) for line in gzip.decompress(SEEDS.read_bytes()).decode().split("\n")]
    cases = [
        grid.Case(f"{body} {tuple(kinds)}", literal, body, tuple(columns), tuple(kinds))
        for literal, body, columns, kinds, _ in lines
    ]
    return cases, {line[0]: line[4] for line in lines}


def record_seeds(seeds: Sequence[int]) -> None:
    """Ask some questions of each of ``seeds``, and write the record: at most a few of each function."""
    judge, lake, lines, counts = Judge(), Lake(), [], Counter[str]()
    for seed in seeds:
        cases = []
        for case in Questions(seed).cases(MOST_OF_A_SEED):
            counts[kind := case.literal.partition("(")[0]] += 1
            if counts[kind] <= MOST_OF_A_FUNCTION:
                cases.append(case)
        answers = ask_cases(judge, lake, cases)
        lines += [[c.literal, c.body, c.columns, c.kinds, answers[c.literal]] for c in cases]
    text = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    SEEDS.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def ask_cases(judge: Judge, lake: Lake, cases: list[grid.Case]) -> dict[str, list[str]]:
    """Return the answers to cases as ``ask_case`` does, many expressions a query, alone where one fails.

    One that fails makes its whole query fail: what the gate refuses is asked alone at once.
    """
    texts = [f"SELECT {case.literal}" for case in cases]
    texts += [case.by_columns for case in cases if case.columns]
    refused = {text for text in texts if lake.translated(text) is None}
    found = {text: ask(judge, text) for text in refused}
    for batch in in_batches([text for text in texts if text not in refused], 16):
        found.update(_ask_together(judge, batch))
    answers: dict[str, list[str]] = {}
    for case in cases:
        literal = found[f"SELECT {case.literal}"]
        columns = found[case.by_columns] if case.columns else literal
        answers[case.literal] = [literal] if literal == columns else [literal, columns]
    return answers


def _ask_together(judge: Judge, texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    try:
        row = judge.answer(as_documented(f"SELECT {', '.join(f'({text})' for text in texts)}"))[0]
    except JudgeError:
        if len(texts) == 1:
            yield texts[0], ask(judge, texts[0])
            return
        middle = len(texts) // 2
        yield from _ask_together(judge, texts[:middle])
        yield from _ask_together(judge, texts[middle:])
        return
    yield from zip(texts, row, strict=True)


def main() -> None:
    """Record, or ask about a seed's cases and print what differs, and of which functions how much."""
    if sys.argv[1:] == ["record"]:
        record()
        return
    if sys.argv[1] == "seeds":
        record_seeds([int(text) for text in sys.argv[2:]])
        return
    seed, count = int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 20_000
    judge, lake = Judge(), Lake()
    cases = list(Questions(seed).cases(count // FORMS))
    old, rows = (list(grid.cases(seed)), list(grid.row_queries(seed))) if count >= 20_000 else ([], [])
    answers = ask_cases(judge, lake, [*cases, *old])
    answers |= {sql: [ask(judge, sql)] for sql in rows}
    compared = [*compare(lake, [*cases, *old], answers), *compare_queries(lake, rows, answers)]
    differing = [d for d in compared if d[0] not in read_accepted()]
    found = [d for d in differing if not is_hidden(*d, lake.query)]
    for question, theirs, mine in found:
        sys.stdout.write(f"{question}\n  Google: {theirs}\n  lake:   {mine}\n")
    for function, number in Counter(kind_of(question) for question, _, _ in found).most_common():
        sys.stdout.write(f"{number:6} {function}\n")
    sys.stdout.write(
        f"seed {seed}: {2 * (len(cases) + len(old)) + len(rows)} questions, {len(found)} answers differ, "
        f"{len(differing) - len(found)} more are NULL for a failure beside NULL\n"
    )
    lake.close()
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
