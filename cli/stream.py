"""Streams as commands show and follow them; and ``refeed launch`` and ``drain``."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import dropwhile
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from uuid import uuid4

import typer

from cli.api import open_api, poll
from cli.change import end_if_held
from cli.completion import name_argument
from cli.flags import read_given, takes_fields
from cli.inventory import render_streams
from cli.moments import UNKNOWN, render_count, render_minute, render_seconds
from cli.objects import ObjectKind, follow_states, stream_name
from cli.options import JsonOption, WatchOption, YesOption, key_option
from cli.parameters import parse_pairs
from cli.remedies import MENDS, command_of
from cli.snapshot import whole_id
from cli.template import launch_template
from cli.terminal import Columns, ExitCode, err, render_details, render_fault, tabulate
from model.declaration import declared_fields
from model.errors import InputError, RequestRefusedError
from model.job import ACTIVE_STATES
from model.stream_options import GROUP, KNOWN_IDS_SECONDS, MAPPING, MESSAGE_BYTES, KinesisStreamOptions
from model.stream_record import DRAIN_TIMEOUT_SECONDS, ENDED_STATES, MAX_DRAIN_TIMEOUT_SECONDS, StreamState
from model.stream_update import render_abandons
from model.typed import parse_json
from rollout.request import KIND, RELEASE, SNAPSHOT

if TYPE_CHECKING:
    from client.api import RefeedApi

# Spark starts within a minute, also on a busy machine.
_WAIT_SECONDS: Final = 120.0
_ENDED: Final = frozenset(state.value for state in ENDED_STATES)
_KINDLESS: Final = (
    "Give the kind of the stream: --kind backup, pipeline or kinesis. For a template: template/NAME."
)
_UP: Final = frozenset({StreamState.RUNNING.value, StreamState.WAITING.value})


@dataclass(frozen=True, slots=True)
class StreamFlags(KinesisStreamOptions):
    """The options of all kinds of streams; the API says which of them a kind does not have."""

    known_ids_seconds: Annotated[int | None, KNOWN_IDS_SECONDS] = None
    group: Annotated[str | None, GROUP] = None
    message_bytes: Annotated[int | None, MESSAGE_BYTES] = None
    mapping: Annotated[Mapping[str, str] | None, MAPPING] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launch(StreamFlags):
    """The flags of a launch."""

    kind: Annotated[Literal["backup", "pipeline", "kinesis"] | None, KIND] = None
    release: Annotated[str | None, RELEASE] = None
    snapshot: Annotated[str | None, SNAPSHOT] = None


CHANGEABLE: Final = tuple(field.name for field in declared_fields(StreamFlags) if field.spec.is_changeable)

NameArgument = Annotated[str, name_argument("stream")]
ReleaseOption = Annotated[
    str | None,
    typer.Option(
        help="The wanted release. Default: the installed version.",
        show_default="the installed version",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="OPTION=VALUE",
        help="Set an option, such as slots=8. An empty value, such as slots=, restores the deployment's "
        "default. May be repeated.",
    ),
]
MappingOption = Annotated[
    list[str] | None,
    typer.Option(
        "--mapping",
        metavar="OLD=NEW",
        help="The old and the new name of a source, such as orders=sales. Without a new name, as in "
        "orders=, the stream stops reading the source. May "
        "be repeated.",
    ),
]


@takes_fields(_Launch)
def launch(
    name: NameArgument,
    *,
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param", "-p", metavar="NAME=VALUE", help="The value of a template's parameter. May be repeated."
        ),
    ] = None,
    idempotency_key: Annotated[str | None, key_option("launch only one stream")] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            "-w",
            help="Wait until the stream is RUNNING or WAITING or has ended. After two minutes, the command fails. "
            "With template/NAME, watch the job until it has ended or waits for a person.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only with template/NAME: show the plan of the job, and launch nothing."),
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    **given: Any,
) -> None:
    """Launch a stream under a new name, launch a drained or cancelled stream again, or launch template/NAME.

    If the template describes a backfill, the command prints the plan, and asks before it publishes.

    If you launch a stream again with its name alone, it keeps its earlier release and options. If you give an
    option, also give --kind: the stream then has only the options that you give. An agent starts the stream. If
    the stream dies, the agent restarts it. 'refeed up' includes an agent.
    """
    options = read_given(_Launch, given)
    if name.startswith("template/"):
        if options:
            raise InputError("A template takes no options of a stream. Give its parameters with --param.")
        launch_template(
            name.removeprefix("template/"),
            param,
            idempotency_key=idempotency_key,
            dry_run=dry_run,
            yes=yes,
            watch=watch,
            as_json=as_json,
        )
        return
    if param or dry_run:
        raise InputError("--param and --dry-run work only with template/NAME.")
    name = stream_name(name)
    with open_api() as api:
        if not options:
            options = _read_former(api, name)
        if "kind" not in options:
            raise InputError(_KINDLESS)
        snapshot = options.pop("snapshot", None)
        request = {
            "name": name,
            "kind": options.pop("kind"),
            "release": options.pop("release", None),
            "snapshot": None if snapshot is None else whole_id(api, snapshot),
            "options": options,
        }
        launched = api.launch_stream(request, idempotency_key=idempotency_key or str(uuid4()))
        found = _finish(api, launched, _UP | _ENDED, watch=watch, as_json=as_json)
        if request["snapshot"] is not None and found["state"] in _ENDED:
            _print_refusal(api.list_stream_jobs(name, "restore"))
            raise typer.Exit(ExitCode.FAILED)


def _read_former(api: "RefeedApi", name: str) -> dict[str, Any]:
    """Return what a stream was launched with, to launch it again as it was."""
    try:
        found = api.read_stream(name)
    except RequestRefusedError as refused:
        raise InputError(_KINDLESS) from refused
    return {**found["options"], "kind": found["kind"], "release": found["release"]}


def drain(
    name: NameArgument,
    *,
    timeout: Annotated[
        float,
        typer.Option(
            min=0,
            max=MAX_DRAIN_TIMEOUT_SECONDS,
            metavar="SECONDS",
            help="After this time the stream ends, even with uncommitted messages. Pub/Sub delivers "
            "these messages again.",
        ),
    ] = DRAIN_TIMEOUT_SECONDS,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Drain a stream: the stream commits and acknowledges its current messages, and then ends."""
    with open_api() as api:
        found = _end(api, stream_name(name), "drain", {"timeout_seconds": timeout})
        end_if_held(found, waits=watch, as_json=as_json)
        _finish(api, found, _ENDED, watch=watch, as_json=as_json, extra_seconds=timeout)


def _end(api: "RefeedApi", name: str, verb: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Drain or cancel a stream, after its running update is named, which fails by that."""
    if (update := api.find_running_update(name)) is not None:
        err.print(render_abandons(update))
    return api.act_on_stream(name, verb, body)


def check_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield whether an update may begin, and every reason against it."""
    yield "The update may begin." if found["passes"] else "The update is refused:"
    for reason in found["reasons"]:
        yield f"  {render_fault(reason)}"
        yield f"    {reason['advice']}"
    for change in found["changes"]:
        yield f"  {change}"
    yield "The update can be rolled back." if found["has_way_back"] else "The update can't be rolled back:"
    for why in found["no_way_back"]:
        yield f"  {why}"


def parse_options(texts: Sequence[str] | None) -> dict[str, Any]:
    """Return the options of ``--set``: a value is JSON where it can be read as such, None if empty, else a text.

    Raises:
        InputError: a text is no pair, or an option comes twice.
    """
    found: dict[str, Any] = {}
    for name, value in (parse_pairs(texts, "--set", "OPTION=VALUE, such as slots=8") or {}).items():
        try:
            found[name] = None if value == "" else parse_json(value)
        except (ValueError, RecursionError):
            found[name] = value
    return found


def parse_mapping(texts: Sequence[str] | None) -> dict[str, str | None]:
    """Return the mapping of sources of ``--mapping``; the value of a source that ends is None.

    Raises:
        InputError: a text is no pair, or a source comes twice.
    """
    pairs = parse_pairs(texts, "--mapping", "OLD=NEW, such as orders=sales, or orders= to stop reading it") or {}
    return {old: new or None for old, new in pairs.items()}


def history_lines(found: Mapping[str, Any]) -> list[str]:
    """Return a table of a stream's past state, rate, lag and backlog, from its first report in the period on."""
    points = list(dropwhile(lambda point: point["state"] is None, found["streams"][0]["points"]))
    if not points:
        return ["The stream has sent no report in this period."]
    columns: Columns = {
        "from (UTC)": lambda it: render_minute(it["start"]),
        "state": lambda it: it["state"] or UNKNOWN,
        "msgs/s": lambda it: _rate_text(it["rate_messages_per_second"]),
        "lag": lambda it: render_seconds(it["lag_seconds"]),
        "backlog": lambda it: render_count(it["backlog_messages"]),
    }
    return tabulate(columns, points, left=2)


def _rate_text(rate: float | None) -> str:
    return UNKNOWN if rate is None else f"{rate:,.1f}"


def _finish(
    api: "RefeedApi",
    found: dict[str, Any],
    states: frozenset[str],
    *,
    watch: bool,
    as_json: bool,
    extra_seconds: float = 0.0,
) -> Mapping[str, Any]:
    """Print the stream and return it, with ``watch`` once it is in one of ``states``.

    Raises:
        typer.Exit: it was not within two minutes and ``extra_seconds``.
    """
    if watch:
        found = _until(api, found, states, seconds=_WAIT_SECONDS + extra_seconds)
    STREAM.show(found, as_json=as_json)
    if watch and found["state"] not in states:
        raise typer.Exit(ExitCode.FAILED)
    return found


def _until(api: "RefeedApi", found: dict[str, Any], states: frozenset[str], *, seconds: float) -> dict[str, Any]:
    """Return the stream once it is in one of ``states``, or say on stderr that it was not for so long."""
    name = found["name"]
    found = poll(found, lambda: api.read_stream(name), lambda it: it["state"] in states, seconds=seconds)
    if found["state"] not in states:
        err.print(f"{name} is still {found['state']} after {seconds:.0f} s.")
    return found


def _print_refusal(rollbacks: Sequence[Mapping[str, Any]]) -> None:
    """Print why the newest of ``rollbacks`` failed, and with it the launch from its snapshot."""
    error = rollbacks[0]["error"] if rollbacks else None
    if error is not None:
        err.print(render_fault(error))


def describe_stream(found: Mapping[str, Any]) -> Iterator[str]:
    """Return the lines that show a stream."""
    return render_details(f"{found['name']}  {found['state']}", _details(found))


def _details(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is known of a stream, line by line, and at last the next command."""
    wanted, timeout = found["wanted"], found["drain_timeout_seconds"]
    has_ended = found["state"] in _ENDED
    yield "wanted", wanted if timeout is None or has_ended else f"{wanted}, within {render_seconds(timeout)}"
    yield "kind", found["kind"]
    yield (
        "options",
        ", ".join(f"{key} {text}" for key, text in _option_texts(found)) or "the deployment's settings",
    )
    installed = found.get("installed_version")
    yield "release", found["release"] or f"{f'{installed}, ' if installed else ''}the installed version"
    launched_at, launched_by = render_minute(found["launched_at"]), found["launched_by"]
    yield "launched", f"{launched_at} UTC by {launched_by}, generation {found['generation']}"
    # The processes of a stream that has ended are gone, or look after others.
    if not has_ended:
        agent, owner = found["agent"], found["owner"]
        yield "agent", "none yet" if agent is None else f"process {agent['pid']} on {agent['host']}"
        if found["instance_id"] is not None:
            yield "instance", found["instance_id"]
        if owner is not None:
            yield "stream", f"process {owner['pid']} on {owner['host']}"
    if found["seconds_since_report"] is not None:
        yield "reported", f"{render_seconds(found['seconds_since_report'])} ago"
    yield "lag", f"{render_seconds(found['lag_seconds'])}, backlog {render_count(found['backlog_messages'])}"
    if found["rates"] is not None:
        over = f" over the last {render_seconds(found['over_seconds'])}"
        yield "rate", f"{found['rates'].get('messages', 0):,.1f} messages/s{over}"
    if found["not_committed"]:
        yield "given back", f"{found['not_committed']:,} messages, which are delivered again"
    if found["retained_until"] is not None:
        yield "pending", f"messages are kept until {render_minute(found['retained_until'])} UTC"
    yield from _faults(found)
    for job in found.get("jobs", ()):
        yield job["kind"], f"{job['id']}  {job['state']}"
    yield "next", _next_command(found)


def _faults(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if found["error"] is not None:
        yield "error", render_fault(found["error"])
    if found.get("failures"):
        yield "failures", found["failures"]["message"]


def _next_command(found: Mapping[str, Any]) -> str:
    if found.get("jobs"):
        return f"refeed watch {found['jobs'][0]['id']}"
    if items := found.get("inbox"):
        return command_of(items[0])
    if found["state"] in _ENDED:
        return MENDS["stream_ended"].format_map(found)
    if found["agent"] is None:
        # An agent takes it within a second, where one runs.
        return f"refeed describe stream/{found['name']}; without an agent: {MENDS['stream_without_agent']}"
    if found["error"] is None and found.get("failures"):
        return MENDS["stream_failed"].format_map(found)
    return (MENDS["stream_failing"] if found["error"] else "refeed figures stream/{name}").format_map(found)


def _option_texts(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each option with its value as the command line has it, a mapping once for each source."""
    for name, value in found["options"].items():
        texts = [f"{old}={new}" for old, new in value.items()] if isinstance(value, Mapping) else [str(value)]
        for text in texts:
            yield name, text


def _read(api: "RefeedApi", name: str) -> dict[str, Any]:
    """Return a stream with its updates and restores that have not ended, and its part of the inbox."""
    jobs = api.jobs.list(page_size=50, stream=name, state=sorted(ACTIVE_STATES))["jobs"]
    found = {**api.read_stream(name), "jobs": jobs}
    with suppress(RequestRefusedError):
        items = api.read_inbox()["items"]
        found["inbox"] = [each for each in items if (each["resource"], each["id"]) == ("stream", name)]
    if found["release"] is None and found["agent"] is not None:
        agents = {each["host"]: each["installed_version"] for each in api.list_releases()["agents"]}
        found["installed_version"] = agents.get(found["agent"]["host"])
    return found


def _list_lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield from render_streams(found["streams"])
    yield "\nTo see all streams and jobs: refeed status"


STREAM: Final = ObjectKind(
    name="stream",
    plural="streams",
    fetch=lambda api, _: api.list_streams(),
    table=_list_lines,
    read=_read,
    lines=describe_stream,
    whole_lines=describe_stream,
    verbs=("logs", "figures", "set", "revert"),
    acts={"cancel": lambda api, name, _: _end(api, name, "cancel")},
    follow=lambda api, found: follow_states(found, lambda: api.read_stream(found["name"]), _ENDED),
    succeeded=lambda found: found["state"] in _ENDED,
)
