"""Sources of the registry as commands show them: from the topic to staging and reporting."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from cli.moments import UNKNOWN, render_count, render_minute
from cli.objects import ObjectKind
from cli.terminal import render_figures

_NONE: Final = "-"


def _table(found: Mapping[str, Any]) -> Iterator[str]:
    if not found["sources"]:
        yield "The registry has no sources. 'refeed source publish --help' shows how to add one."
        return
    rows = [
        [
            each["name"],
            each["topic"] or _NONE,
            each["group"] or _NONE,
            _archived(each),
            _NONE if each["staged"] is None else f"{each['staged']['rows']:,}",
            _NONE if each["staged"] is None else f"{each['staged']['refused']['total']:,}",
            _merged(each),
        ]
        for each in found["sources"]
    ]
    columns = ["source", "topic", "group", "archived in a day", "staged", "dead letters", "last merge"]
    yield from render_figures(columns, rows, left=3)
    counted = {(each["group"], each["staged"]["since"]) for each in found["sources"] if each["staged"] is not None}
    for group, since in sorted((group or UNKNOWN, render_minute(since)) for group, since in counted):
        yield f"Group {group}: STAGED and DEAD LETTERS since {since}, when its stream's process started"
    for each in found["sources"]:
        if each["fault"] is not None:
            yield f"{each['name']}: {each['fault']['code']}: {each['fault']['message']}"


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{found['name']}, a source of the topic {found['topic'] or UNKNOWN}"
    schema = "inferred" if found["is_inferred"] else found["message"] or UNKNOWN
    for label, text in (
        ("group", found["group"]),
        ("subscription", found["subscription"]),
        ("schema", schema),
        ("key", ", ".join(found["key"] or ())),
        ("staging", ", ".join(found["tables"] or ())),
        ("reporting", found["reporting"]),
        ("published to", found["publish"]),
        ("archived", f"{_archived(found)} messages in the last day"),
        ("last merge", _merged(found)),
        ("last type change", _type_change(found["last_type_change"])),
    ):
        if text:
            yield f"  {label}: {text}"
    staged = found["staged"]
    if staged is not None:
        since = render_minute(staged["since"])
        yield f"  staged: {staged['rows']:,} rows since {since}, when the stream's process started"
        for name in ("unknown_fields", "missing_fields", "refused"):
            for each in staged[name]["largest"]:
                yield f"  {name.replace('_', ' ')}: {each['what']}, {each['count']:,} times since then"
    if found["fault"] is not None:
        yield f"  fault: {found['fault']['code']}: {found['fault']['message']}"


def _archived(source: Mapping[str, Any]) -> str:
    return _NONE if source["archived"] is None else render_count(source["archived"]["messages"])


def _merged(source: Mapping[str, Any]) -> str:
    merged = source["merged"]
    return _NONE if merged is None else f"{merged['state']} {render_minute(merged['finished_at'])}"


def _type_change(found: Mapping[str, Any] | None) -> str | None:
    if found is None:
        return None
    changed = ", ".join(f"{each['path']} was {each['before']} and is {each['after']}" for each in found["changed"])
    return f"{render_minute(found['noted_at'])}, version {found['number']} of {found['table']}: {changed}"


SOURCE: Final = ObjectKind(
    name="source",
    plural="sources",
    fetch=lambda api, _: api.list_sources(),
    table=_table,
    read=lambda api, name: api.read_source(name),
    lines=_lines,
    next=lambda found: f"refeed messages {found['topic']}" if found["topic"] else "refeed source check",
)
