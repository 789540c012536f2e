"""The page of events: lines of histories, webhooks, server-sent events and the log."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from model.event import HistoryEventType
from model.job import FINAL_STATES
from tests.guards.reference.markdown import ROOT, page, prose, table

INTRODUCTION: Final = """\
Refeed has events of three kinds: entries in the histories of objects, webhooks, and lines of the log. Objects with
a history are jobs, streams, manifests and keys.
The types of entries and webhooks are stable: programs can rely on them. The fields `what` and `why` of an entry
are for people, and so are the texts in the log. These texts may change."""
HISTORIES: Final = """\
`GET /events` returns entries of all objects, or with `object` the entries of one object: a stream
(`object=stream/NAME`), a schedule, a manifest, a key, or a job (`object=ID`). An entry has one of these types."""
WEBHOOKS: Final = """\
Refeed sends a signed webhook to `REFEED_NOTIFY_URL` when a job has ended and when a job waits for a person
([webhooks](../security.md#webhooks))."""
LOG: Final = """\
A process writes one line for each event: the event's text, and then its fields as `name=value`. Some errors also
have a traceback. Each entry of the audit log is also written as an event `audit`."""
LEVELS: Final = {"debug", "info", "warning", "error", "exception"}
KINDS: Final = ("backfill", "compaction", "merge")


def render_events() -> str:
    ends = sorted(state.value.lower() for state in FINAL_STATES)
    told = [
        [
            f"`{kind}.{happened}`",
            "The job waits for a person's decision."
            if happened == "waiting"
            else f"The job is {happened.upper()}.",
        ]
        for kind in KINDS
        for happened in [*ends, "waiting"]
    ]
    parts = [
        INTRODUCTION,
        f"## Histories\n\n{HISTORIES}\n\n{table(['type', 'means'], _types())}",
        f"## Webhooks\n\n{WEBHOOKS}\n\n{table(['type', 'means'], told)}",
        f"## The log\n\n{LOG}",
        *_logged(),
    ]
    sources = "model/event.py and the calls of each module's log"
    return page("Events", sources, *parts)


def _types() -> Iterator[list[str]]:
    """Yield each type of an entry with the text below it."""
    path = ROOT / "model" / "event.py"
    found = next(
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == HistoryEventType.__name__
    )
    texts = {}
    for member, text in zip(found.body, found.body[1:], strict=False):
        match member, text:
            case (ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(said)))):
                texts[name] = said
    for each in HistoryEventType:
        yield [f"`{each.value}`", prose(texts[each.name])]


def _logged() -> Iterator[str]:
    """Yield a table for each room that logs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for room in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        rows = {row for path in sorted((ROOT / room).rglob("*.py")) for row in _events_in(path)}
        if rows:
            cells = [
                [prose(event), level, ", ".join(f"`{name}`" for name in names)] for event, level, names in rows
            ]
            yield f"### `{room}`\n\n{table(['event', 'level', 'fields'], sorted(cells))}"


def _events_in(path: Path) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="_LOG"), attr=level),
                args=[ast.Constant(value=str(event)), *_],
                keywords=keywords,
            ) if level in LEVELS:
                shown = "error" if level == "exception" else level
                yield event, shown, tuple(each.arg for each in keywords if each.arg and each.arg != "exc_info")
