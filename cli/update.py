"""Updates of streams as commands show, follow and revert them; and ``refeed update``."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final
from uuid import uuid4

import typer

from cli.api import open_api
from cli.change import end_if_held
from cli.jobs import job_kind, next_of
from cli.moments import render_minute, render_seconds
from cli.objects import follow_states, stream_name
from cli.options import JsonOption, key_option
from cli.stream import (
    MappingOption,
    NameArgument,
    ReleaseOption,
    SetOption,
    check_lines,
    parse_mapping,
    parse_options,
)
from cli.terminal import Columns, ExitCode, print_found, render_details, render_fault, tabulate
from model.errors import InputError
from model.stream_update import (
    ENDED_UPDATES,
    MAX_VALIDATE_SECONDS,
    MIN_MESSAGES,
    VALIDATE_SECONDS,
    UpdateState,
    UpdateStrategy,
    WhenInconclusive,
)

_ENDED: Final = frozenset(state.value for state in ENDED_UPDATES)
# Of the rows of a table that are missing.
_SHOWN_IDS: Final = 3


def update(
    name: NameArgument,
    *,
    release: ReleaseOption = None,
    options: SetOption = None,
    mapping: MappingOption = None,
    validate_seconds: Annotated[
        float,
        typer.Option(
            min=0,
            max=MAX_VALIDATE_SECONDS,
            metavar="SECONDS",
            help="Watch the new release for this many seconds. If the new release does not fail, the update "
            "becomes STABLE.",
        ),
    ] = VALIDATE_SECONDS,
    min_messages: Annotated[
        int,
        typer.Option(
            min=0,
            help="If fewer than N messages arrive while Refeed watches the release, the watch is inconclusive.",
        ),
    ] = MIN_MESSAGES,
    when_inconclusive: Annotated[
        WhenInconclusive,
        typer.Option(
            help="What happens if too few messages arrive or a figure is unknown. keep: the new release stays. "
            "fail: Refeed rolls the update back."
        ),
    ] = WhenInconclusive.KEEP,
    shadow: Annotated[
        bool,
        typer.Option(
            "--shadow",
            help="Only for a pipeline: before the update, compare the rows that the new release makes with "
            "those of the running release.",
        ),
    ] = False,
    may_differ: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN", help="Only with --shadow: a column whose values may differ. May be repeated."
        ),
    ] = None,
    strategy: Annotated[
        UpdateStrategy,
        typer.Option(
            help="hand_over: the new release takes over between two commits. restart: the old release drains, and "
            "then the new release starts, without a check before."
        ),
    ] = UpdateStrategy.HAND_OVER,
    reason: Annotated[str | None, typer.Option(help="The reason. The history shows it.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only check: print what would stop the update, and change nothing."),
    ] = False,
    idempotency_key: Annotated[str | None, key_option("make only one update")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Print each step until the update ends.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Update a running stream to another release or other options, and watch the result.

    The update begins with the check that --dry-run shows, except with --strategy restart. If the new release
    fails, Refeed rolls the update back. 'refeed revert' takes an update back.
    """
    if may_differ and not shadow:
        raise InputError("--may-differ works only with --shadow.")
    request = {
        "release": release,
        "options": parse_options(options),
        "mapping": parse_mapping(mapping),
        "validate_seconds": validate_seconds,
        "min_messages": min_messages,
        "when_inconclusive": when_inconclusive.value,
        "strategy": strategy.value,
        "reason": reason,
        "shadow": {"may_differ": may_differ or []} if shadow else None,
    }
    name = stream_name(name)
    with open_api() as api:
        if dry_run:
            wanted = {field: request[field] for field in ("release", "options", "mapping")}
            checked = api.check_stream(name, wanted)
            print_found(checked, check_lines, as_json=as_json)
            raise typer.Exit(ExitCode.OK if checked["passes"] else ExitCode.FAILED)
        found = api.update_stream(name, request, idempotency_key=idempotency_key or str(uuid4()))
        end_if_held(found, waits=watch, as_json=as_json)
        UPDATE.finish(api, found, watch=watch, as_json=as_json)


def _list(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a table of updates, and everything about the newest one where it has a reason."""
    updates = found["updates"]
    yield from describe_updates(updates)
    if updates and updates[0]["error"] is not None:
        yield ""
        yield from _describe_whole(updates[0])


def describe_updates(updates: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table of updates, its head first."""
    columns: Columns = {
        **{name: name for name in ("id", "stream", "state")},
        "outcome": lambda it: "" if it["error"] is None else it["error"]["code"],
        "from": lambda it: it["from_release"] or "installed",
        "to": lambda it: "same" if it["release"] == it["from_release"] else it["release"] or "installed",
        "changes": lambda it: " ".join(_changes(it)) or "-",
        "asked for": lambda it: render_minute(it["created_at"]),
        "by": "created_by",
        "paused": lambda it: "" if it["paused_seconds"] is None else f"{it['paused_seconds']:.2f} s",
        "why": "reason",
    }
    return tabulate(columns, updates)


def _changes(update: Mapping[str, Any]) -> Iterator[str]:
    """Yield options and sources as the command line has them."""
    for name, value in {**update["options"], **update["mapping"]}.items():
        yield f"{name}={'' if value is None else value}"


def _describe(found: Mapping[str, Any]) -> Iterator[str]:
    return render_details(f"{found['id']} of {found['stream']}: {found['state']}", _details(found))


def _describe_whole(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that show an update, with the ends of the releases' logs."""
    yield from _describe(found)
    for release, end in ({} if found["error"] is None else found["error"]["logs"]).items():
        yield f"  the end of the {release} release's log:"
        yield from end.splitlines()


def _details(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _asked(found)
    yield from _wanted(found)
    if found["reason"] is not None:
        yield "reason", found["reason"]
    checked = found["checked"]
    for reason in () if checked is None else checked["reasons"]:
        yield "refused", f"{render_fault(reason)} {reason['advice']}"
    for change in () if checked is None else checked["changes"]:
        yield "change", change
    if checked is not None and not checked["has_way_back"]:
        yield "no way", f"back: {'; '.join(checked['no_way_back'])}"
    if found["snapshot_id"] is not None:
        yield "snapshot", found["snapshot_id"]
    if found["error"] is not None:
        yield "outcome", render_fault(found["error"])
    figures = found["figures"] or {}
    yield from figure_details(figures)
    if found["state"] == UpdateState.STABLE and (figures.get("after") or {}).get("messages") == 0:
        yield "unproven", "no message arrived during the watch, so nothing is known of how the new release does"
    if found["paused_seconds"] is not None:
        yield "paused", render_seconds(found["paused_seconds"])
    replay = found["replay"]
    if replay is not None:
        since = "an unknown time" if replay["since"] is None else replay["since"]
        yield (
            "replay",
            (
                f"only if rows of the new release are wrong (no message is lost): {', '.join(replay['topics'])}, "
                f"published from {since} to {replay['until']}"
            ),
        )


def _asked(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield which manifest asked for the update, what it takes back, and who took it back itself."""
    manifest = found["manifest"]
    if manifest is not None:
        of = "" if manifest["version"] is None else f", version {manifest['version']}"
        yield "manifest", f"{manifest['name']}{of}"
    if found["reverses"] is not None:
        yield "reverses", found["reverses"]
    if found["unwanted_by"] is not None:
        yield "taken", f"back by {found['unwanted_by']}"


def _wanted(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the wanted release where it is another one, and each option and source that is to change."""
    before, after = (each or "the installed version" for each in (found["from_release"], found["release"]))
    if before != after:
        yield "release", f"{before} to {after}"
    for option, value in found["options"].items():
        yield "option", f"{option} becomes {'the setting of the deployment' if value is None else value}"
    for old, new in found["mapping"].items():
        yield "source", f"{old} ends" if new is None else f"{old} becomes {new}"
    if before == after and not found["options"] and not found["mapping"]:
        yield "release", f"{after}, with the current registry"


def figure_details(figures: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield labels and texts of the figures by which an update is judged."""
    before, after = figures.get("before"), figures.get("after")
    if before is not None and after is not None:
        for name in ("messages", "dead_letters", "faults"):
            old, new = (_count_text(each, name) for each in (before, after))
            yield "figure", f"{name.replace('_', ' ')}: {old} before, {new} after"
        old, new = (render_seconds(each["lag_seconds"]) for each in (before, after))
        yield "figure", f"lag: {old} before, {new} after"
    if figures.get("shadow") is not None:
        yield from _shadow_details(figures["shadow"])


def _count_text(figures: Mapping[str, Any], name: str) -> str:
    """Return how many there were of something, and in how many seconds."""
    if figures[name] is None or figures["seconds"] is None:
        return "unknown"
    return f"{figures[name]:,.0f} in {figures['seconds']:,.0f} s"


def _shadow_details(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield labels and texts of a shadow's report: its counts, and each cell that differs."""
    counts = ", ".join(f"{report[f'rows_{name}']} {name}" for name in ("equal", "different", "missing", "waiting"))
    yield "shadow", f"{report['state']}: {report['messages_compared']} messages compared; rows: {counts}"
    missing: dict[str, list[str]] = {}
    for one in report["examples"]:
        if one["column"] is None:
            missing.setdefault(f"{one['table']} from {one['topic']}", []).append(one["message_id"])
    for place, messages in missing.items():
        yield "missing", f"rows of {place}, such as those of the messages {', '.join(messages[:_SHOWN_IDS])}"
    for one in (one for one in report["examples"] if one["column"] is not None):
        place = f"{one['table']}.{one['column']}"
        yield "differs", f"{place} of {one['topic']} {one['message_id']}: {one['running']} becomes {one['new']}"


UPDATE: Final = job_kind(
    "update",
    "up",
    filters=("stream", "label"),
    table=_list,
    lines=_describe_whole,
    next=next_of(
        STABLE="refeed revert {id}, if the new release is wrong",
        **dict.fromkeys(("REFUSED", "ROLLED_BACK", "FAILED"), "refeed logs stream/{stream}"),
    ),
    acts=("cancel", "revert"),
    follow=lambda api, found: follow_states(found, lambda: api.jobs.read(found["id"]), _ENDED),
    succeeded=lambda found: found["state"] == UpdateState.STABLE,
)
