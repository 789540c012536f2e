"""``refeed stream``: launch, change, drain and cancel streams through the HTTP API."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from uuid import uuid4

import typer

from cli.api import open_api, poll, print_answer
from cli.approval import end_if_held
from cli.flags import flag_of, read_given, takes_fields
from cli.inventory import streams
from cli.invocation import HomeGroup
from cli.jobs import print_log
from cli.moments import UNKNOWN, render_count, render_minute, render_seconds
from cli.options import DEFAULT_TAIL_BYTES, EXIT_CODES, WAIT_EXIT_CODES, JsonOption, TailOption
from cli.parameters import parse_pairs
from cli.terminal import ExitCode, err, print_found, render_figures
from model.declaration import declared_fields
from model.errors import InputError
from model.stream_options import GROUP, KNOWN_IDS_SECONDS, MAPPING, MESSAGE_BYTES, KinesisStreamOptions
from model.stream_record import DRAIN_TIMEOUT_SECONDS, ENDED_STATES, MAX_DRAIN_TIMEOUT_SECONDS, StreamState
from rollout.request import KIND, RELEASE, SNAPSHOT

if TYPE_CHECKING:
    from client.api import RefeedApi

# Spark starts within a minute, also on a busy machine.
_WAIT_SECONDS: Final = 120.0
_ENDED: Final = frozenset(state.value for state in ENDED_STATES)
_UP: Final = frozenset({StreamState.RUNNING.value, StreamState.WAITING.value})

app = typer.Typer(
    cls=HomeGroup,
    help="Launch, change, drain and cancel streams. The commands call the API at REFEED_API_URL, with the key "
    "in REFEED_API_KEY.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
)


@dataclass(frozen=True, slots=True)
class _Options(KinesisStreamOptions):
    """The options of all kinds; the API says which of them a kind does not have."""

    known_ids_seconds: Annotated[int | None, KNOWN_IDS_SECONDS] = None
    group: Annotated[str | None, GROUP] = None
    message_bytes: Annotated[int | None, MESSAGE_BYTES] = None
    mapping: Annotated[Mapping[str, str] | None, MAPPING] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launch(_Options):
    """The flags of a launch."""

    kind: Annotated[Literal["backup", "pipeline", "kinesis"], KIND]
    release: Annotated[str | None, RELEASE] = None
    snapshot: Annotated[str | None, SNAPSHOT] = None


_CHANGEABLE: Final = tuple(field.name for field in declared_fields(_Options) if field.spec.is_changeable)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The stream's name.", show_default=False)]
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
WaitOption = Annotated[bool, typer.Option("--wait", help="Wait until the stream runs or has ended.")]


app.command("list", epilog=EXIT_CODES)(streams)


@app.command("launch", epilog=WAIT_EXIT_CODES)
@takes_fields(_Launch)
def launch(
    name: NameArgument,
    *,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Repeated calls with the same key launch only one stream.")
    ] = None,
    wait: WaitOption = False,
    as_json: JsonOption = False,
    **given: Any,
) -> None:
    """Launch a stream under a new name, or launch a drained or cancelled stream again.

    An agent starts the stream. If the stream dies, the agent restarts it. 'refeed up' includes an agent.
    """
    options = read_given(_Launch, given)
    request = {
        "name": name,
        "kind": options.pop("kind"),
        "release": options.pop("release", None),
        "snapshot": options.pop("snapshot", None),
        "options": options,
    }
    with open_api() as api:
        launched = api.launch_stream(request, idempotency_key=idempotency_key or str(uuid4()))
        found = _finish(api, launched, _UP | _ENDED, wait=wait, as_json=as_json)
        if request["snapshot"] is not None and found["state"] in _ENDED:
            _print_refusal(api.list_rollbacks(name)["rollbacks"])
            raise typer.Exit(ExitCode.FAILED)


@app.command("show", epilog=EXIT_CODES)
def show(name: NameArgument, as_json: JsonOption = False) -> None:
    """Show a launched stream: its wanted state, its agent and its last report."""
    print_answer(lambda api: api.read_stream(name), describe_stream, as_json=as_json)


@app.command("drain", epilog=WAIT_EXIT_CODES)
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
    wait: WaitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Drain a stream: the stream commits and acknowledges its current messages, and then ends."""
    with open_api() as api:
        found = api.act_on_stream(name, "drain", {"timeout_seconds": timeout})
        end_if_held(found, waits=wait, as_json=as_json)
        _finish(api, found, _ENDED, wait=wait, as_json=as_json, extra_seconds=timeout)


@app.command("cancel", epilog=WAIT_EXIT_CODES)
def cancel(name: NameArgument, *, wait: WaitOption = False, as_json: JsonOption = False) -> None:
    """End a stream at once. Pub/Sub delivers the stream's uncommitted messages again."""
    with open_api() as api:
        found = api.act_on_stream(name, "cancel")
        end_if_held(found, waits=wait, as_json=as_json)
        _finish(api, found, _ENDED, wait=wait, as_json=as_json)


@app.command("change", epilog=EXIT_CODES)
@takes_fields(_Options, _CHANGEABLE)
def change(name: NameArgument, *, as_json: JsonOption = False, **given: Any) -> None:
    """Change the batch limits of a running stream. The next batch uses the new limits."""
    options = read_given(_Options, given)
    if not options:
        raise InputError(
            f"There is nothing to change. Give {' or '.join(flag_of(_Options, each) for each in _CHANGEABLE)}."
        )
    print_answer(lambda api: api.change_stream(name, {"options": options}), describe_stream, as_json=as_json)


@app.command(
    "check",
    epilog="Exit codes: 0 the update may begin; 1 there are reasons against it; 2 wrong usage; 3 the API does "
    "not answer; 4 the API refused the call.",
)
def check(
    name: NameArgument,
    *,
    release: ReleaseOption = None,
    options: SetOption = None,
    mapping: MappingOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check whether a stream can be updated, and change nothing. Print all reasons against the update.

    --release, --set and --mapping mean the same as in 'refeed stream update'.
    """
    wanted = {"release": release, "options": parse_options(options), "mapping": parse_mapping(mapping)}
    with open_api() as api:
        found = api.check_stream(name, wanted)
    print_found(found, _check_lines, as_json=as_json)
    if not found["passes"]:
        raise typer.Exit(ExitCode.FAILED)


def _check_lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield "The update may begin." if found["passes"] else "The update is refused:"
    for reason in found["reasons"]:
        yield f"  {reason['code']}: {reason['message']}"
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
            found[name] = None if value == "" else json.loads(value)
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


@app.command("logs", epilog=EXIT_CODES)
def logs(name: NameArgument, *, tail: TailOption = DEFAULT_TAIL_BYTES, as_json: JsonOption = False) -> None:
    """Show the end of a stream's log. If the log is on another machine, show that machine's name."""
    with open_api() as api:
        print_log([api.read_stream_log(name, tail_bytes=tail)], as_json=as_json)


@app.command("history", epilog=EXIT_CODES)
def history(
    name: NameArgument,
    over: Annotated[
        Literal["hour", "day"],
        typer.Option(
            help="The period: hour (the last hour, in steps of one minute) or day (the last day, in steps of "
            "ten minutes)."
        ),
    ] = "hour",
    as_json: JsonOption = False,
) -> None:
    """Show a stream's past state, rate, lag and backlog."""
    print_answer(lambda api: api.list_stream_histories(over, name), _history_lines, as_json=as_json)


def _history_lines(found: Mapping[str, Any]) -> list[str]:
    rows = [
        [
            render_minute(point["start"]),
            point["state"] or UNKNOWN,
            UNKNOWN if point["rate_messages_per_second"] is None else f"{point['rate_messages_per_second']:,.1f}",
            render_seconds(point["lag_seconds"]),
            render_count(point["backlog_messages"]),
        ]
        for point in found["streams"][0]["points"]
    ]
    return render_figures(["from (UTC)", "state", "msgs/s", "lag", "backlog"], rows, left=2)


def _finish(
    api: "RefeedApi",
    found: dict[str, Any],
    states: frozenset[str],
    *,
    wait: bool,
    as_json: bool,
    extra_seconds: float = 0.0,
) -> Mapping[str, Any]:
    """Print the stream and return it, with ``wait`` once it is in one of ``states``.

    Raises:
        typer.Exit: it was not within two minutes and ``extra_seconds``.
    """
    seconds = _WAIT_SECONDS + extra_seconds
    if wait:
        name = found["name"]
        found = poll(found, lambda: api.read_stream(name), lambda it: it["state"] in states, seconds=seconds)
    print_found(found, describe_stream, as_json=as_json)
    if wait and found["state"] not in states:
        err.print(f"{found['name']} is still {found['state']} after {seconds:.0f} s.")
        raise typer.Exit(ExitCode.FAILED)
    return found


def _print_refusal(rollbacks: Sequence[Mapping[str, Any]]) -> None:
    """Print why the newest of ``rollbacks`` failed, and with it the launch from its snapshot."""
    error = rollbacks[0]["error"] if rollbacks else None
    if error is not None:
        err.print(f"{error['code']}: {error['message']}")


def describe_stream(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that show a stream."""
    yield f"{found['name']}  {found['state']}"
    for name, text in _details(found):
        yield f"  {name:<11} {text}"


def _details(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is known of a stream, line by line, and at last the next command."""
    wanted, timeout = found["wanted"], found["drain_timeout_seconds"]
    yield "wanted", wanted if timeout is None else f"{wanted}, within {render_seconds(timeout)}"
    yield "kind", found["kind"]
    yield (
        "options",
        ", ".join(f"{key} {text}" for key, text in _option_texts(found)) or "the deployment's settings",
    )
    yield "release", found["release"] or "the installed version"
    launched_at, launched_by = render_minute(found["launched_at"]), found["launched_by"]
    yield "launched", f"{launched_at} UTC by {launched_by}, generation {found['generation']}"
    agent = found["agent"]
    has_ended = found["state"] in _ENDED
    none = "none" if has_ended else "none yet"
    yield "agent", none if agent is None else f"process {agent['pid']} on {agent['host']}"
    if found["instance_id"] is not None:
        yield "instance", found["instance_id"]
    if found["owner"] is not None:
        yield "stream", f"process {found['owner']['pid']} on {found['owner']['host']}"
    if found["seconds_since_report"] is not None:
        yield "reported", f"{render_seconds(found['seconds_since_report'])} ago"
    if found["not_committed"]:
        yield "given back", f"{found['not_committed']:,} messages, which are delivered again"
    if found["retained_until"] is not None:
        yield "pending", f"messages are kept until {render_minute(found['retained_until'])} UTC"
    if found["error"] is not None:
        yield "error", f"{found['error']['code']}: {found['error']['message']}"
    if has_ended:
        yield "next", " ".join(_launch_words(found))
    elif agent is None:
        # An agent takes it within a second, where one runs.
        yield "next", f"refeed stream show {found['name']}; without an agent: refeed up, or refeed agent"


def _launch_words(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the command that launches a stream again as it was, word by word."""
    yield from ("refeed", "stream", "launch", found["name"], "--kind", found["kind"])
    if found["release"] is not None:
        yield from ("--release", found["release"])
    for name, text in _option_texts(found):
        yield from (flag_of(_Options, name), text)


def _option_texts(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each option with its value as the command line has it, a mapping once for each source."""
    for name, value in found["options"].items():
        texts = [f"{old}={new}" for old, new in value.items()] if isinstance(value, Mapping) else [str(value)]
        for text in texts:
            yield name, text
