"""The page of error codes: the classes of errors, and the pages of docs/problems."""

import re
from collections import defaultdict
from collections.abc import Iterator
from http import HTTPStatus
from typing import Final

from api.errors import STATUSES
from model.errors import RefeedError
from sql.reasons import REASONS
from tests.guards.reference.markdown import ROOT, first_sentence, page, prose, table

FOLDER: Final = ROOT / "docs" / "problems"
INTRODUCTION: Final = """\
Codes are stable: programs can rely on them. The same code appears in the API's problem JSON, in the output of
`--json`, in the history of a job or stream, and after `error` on the terminal. Each code has a page that says what
to do. `GET /problems/CODE` serves the same page.

Answers with status 429 and 503 have the header `Retry-After`, with a number of seconds. After this time, the same
request may succeed."""
ELSEWHERE: Final = "Not an answer of the API"
GATE: Final = """\
If the code is [`query_refused`](../problems/query_refused.md), `errors` lists all reasons. Each reason has a code,
its line and column, a sentence, and often a rewrite. [The SQL gate](../sql.md) describes which queries are
allowed. The gate is the check that every query must pass before it runs."""
WITHOUT: Final = "On the terminal and in logs"
COLUMNS: Final = ("code", "means", "also appears as")


def _phrase(status: int) -> str:
    """Return a status's name in RFC 9110: Python has it since 3.13 only."""
    return {413: "Content Too Large", 422: "Unprocessable Content"}.get(status, HTTPStatus(status).phrase)


def render_error_codes() -> str:
    meanings = dict(_meanings(RefeedError))
    by_status: dict[str, list[list[str]]] = defaultdict(list)
    for place in sorted(FOLDER.glob("*.md")):
        title, status, also = _read(place.read_text())
        heading = f"{status} {_phrase(int(status))}" if status.isdecimal() else ELSEWHERE
        meaning = meanings.pop(place.stem, title)
        by_status[heading].append([f"[`{place.stem}`](../problems/{place.name})", prose(meaning), prose(also)])
    parts = [f"## {heading}\n\n{table(COLUMNS, by_status[heading])}" for heading in sorted(by_status)]
    reasons = [[f"`{code}`", prose(meaning)] for code, meaning in sorted(REASONS.items())]
    others = [[f"`{code}`", prose(meaning)] for code, meaning in sorted(meanings.items())]
    parts.append(f"## {WITHOUT}\n\n{table(COLUMNS[:2], others)}")
    parts.append(f"## Reasons why a query is refused\n\n{GATE}\n\n{table(COLUMNS[:2], reasons)}")
    return page("Error codes", "model/errors.py, sql/reasons.py and docs/problems", INTRODUCTION, *parts)


def _meanings(kind: type[RefeedError]) -> Iterator[tuple[str, str]]:
    """Yield every code with the first sentence of the class that gives it; tests have classes of their own."""
    if "code" in vars(kind) and (kind.__module__ == RefeedError.__module__ or kind in STATUSES):
        yield kind.code, first_sentence(kind.__doc__ or "")
    for each in kind.__subclasses__():
        yield from _meanings(each)


def _read(text: str) -> tuple[str, str, str]:
    """Return a page's title, its HTTP status if it has one, and where else the code is seen."""
    found = re.match(
        r"# (.+)\n\n(?:The API returns the code `\w+` with HTTP status (\w+)(?: and the header `[\w-]+`)?\.)?"
        r"(?:\s*It is also the code of ([^.]+)\.|The code `\w+` is ([^.]+)\.)?\n",
        text,
    )
    assert found, text[:200]
    title, status, also, only = found.groups(default="")
    return title, status, (also or only).replace("\n", " ") or (f"HTTP status {status}" if status == "4xx" else "")
