"""Sources of the registry as commands show them: from the topic to staging and reporting."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from cli.moments import UNKNOWN, render_count, render_minute, render_seconds
from cli.objects import ObjectKind
from cli.terminal import WHOLE, Columns, render_fault, row_length, tabulate
from model.errors import RequestRefusedError
from model.stream import PIPELINE_PREFIX
from model.stream_options import StreamKind

if TYPE_CHECKING:
    from client.api import RefeedApi

_NONE: Final = "-"
# The groups stand below the table too.
_GROUP: Final[Columns] = {"group": lambda it: it["group"] or _NONE}
_FINDINGS: Final = {
    "unknown_fields": "unknown fields and enum values",
    "missing_fields": "missing fields",
    "refused": "refused",
}


def _table(found: Mapping[str, Any]) -> Iterator[str]:
    if not found["sources"]:
        yield "The registry has no sources. 'refeed source publish --help' shows how to add one."
        return
    columns: Columns = {
        "source": "name",
        "topic": lambda it: it["topic"] or _NONE,
        **(_GROUP if row_length.get() == WHOLE else {}),
        "archived/day": _archived,
        "staged": lambda it: _NONE if it["staged"] is None else f"{it['staged']['rows']:,}",
        "unknown": lambda it: _total(it, "unknown_fields"),
        "dead letters": lambda it: _total(it, "refused"),
        "last merge": _merged,
    }
    yield from tabulate(columns, found["sources"], left=[*columns].index("archived/day"))
    counted = {(each["group"], each["staged"]["since"]) for each in found["sources"] if each["staged"] is not None}
    for group, since in sorted((group or UNKNOWN, render_minute(since)) for group, since in counted):
        yield f"Group {group}: STAGED, UNKNOWN and DEAD LETTERS since {since}, when its stream's process started"
    named = next((each["name"] for each in found["sources"] if _has_unknown(each)), None)
    if named is not None:
        yield (
            "UNKNOWN counts fields and enum values that the schema does not have. Rows keep them in the column "
            f"_unknown. By field: refeed describe source/{named}"
        )
    for each in found["sources"]:
        if each["fault"] is not None:
            yield f"{each['name']}: {render_fault(each['fault'])}"


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
    for each in found.get("streams", ()):
        lag = f"lag {render_seconds(each['lag_seconds'])}, backlog {render_count(each['backlog_messages'])}"
        yield f"  stream: {each['name']} is {each['state']}, {lag}"
    staged = found["staged"]
    if staged is not None:
        since = render_minute(staged["since"])
        yield f"  staged: {staged['rows']:,} rows since {since}, when the stream's process started"
        for name, label in _FINDINGS.items():
            for each in staged[name]["largest"]:
                yield f"  {label}: {each['what']}, {each['count']:,} times since then"
    if found["fault"] is not None:
        yield f"  fault: {render_fault(found['fault'])}"


def _read(api: "RefeedApi", name: str) -> dict[str, Any]:
    """Return a source with the streams of its group, as far as the caller may see these."""
    found, streams = api.read_source(name), []
    with suppress(RequestRefusedError):
        streams = [each for each in api.list_streams()["streams"] if _reads(each, found["group"])]
    return {**found, "streams": streams}


def _reads(stream: Mapping[str, Any], group: str | None) -> bool:
    """Whether a stream reads the sources of a group."""
    of_stream = (stream.get("options") or {}).get("group") or stream["name"].removeprefix(PIPELINE_PREFIX)
    return bool(stream["kind"] == StreamKind.PIPELINE and of_stream == group)


def _total(source: Mapping[str, Any], kind: str) -> str:
    return _NONE if source["staged"] is None else f"{source['staged'][kind]['total']:,}"


def _has_unknown(source: Mapping[str, Any]) -> bool:
    return source["staged"] is not None and source["staged"]["unknown_fields"]["total"] > 0


def _archived(source: Mapping[str, Any]) -> str:
    return _NONE if source["archived"] is None else render_count(source["archived"]["messages"])


def _merged(source: Mapping[str, Any]) -> str:
    merged = source["merged"]
    if merged is None:
        return _NONE
    return f"{'' if merged['state'] == 'merged' else merged['state'] + ' '}{render_minute(merged['finished_at'])}"


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
    read=_read,
    lines=_lines,
    next=lambda found: f"refeed messages {found['topic']}" if found["topic"] else "refeed source check",
)
