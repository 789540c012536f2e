"""``refeed get``, ``describe``, ``watch``, ``logs`` and ``figures``: what there is, of every kind of object."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import typer

from cli.api import open_api
from cli.completion import complete_lists
from cli.jobs import JOB_FILTERS, print_log, print_page
from cli.kinds import KINDS
from cli.moments import parse_moment
from cli.objects import stream_name
from cli.options import (
    DEFAULT_TAIL_LINES,
    FollowOption,
    JsonOption,
    ObjectArgument,
    OutputOption,
    PageTokenOption,
    TailOption,
)
from cli.parameters import parse_label
from cli.stream import history_lines
from cli.terminal import (
    WHOLE,
    Columns,
    Output,
    list_table,
    out,
    print_as,
    print_found,
    render_table,
    row_length,
    terminal_width,
)
from model.errors import InputError
from model.job import JobState
from model.naming import did_you_mean
from model.stream_update import UpdateState


def get(
    plural: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            help=f"What to list: {', '.join(kind.plural for kind in KINDS.kinds)}.",
            show_default=False,
            autocompletion=complete_lists,
        ),
    ] = None,
    *,
    kind: Annotated[str | None, typer.Option(help="With 'jobs': list only jobs of this kind.")] = None,
    state: Annotated[list[str] | None, typer.Option(help="List only jobs in this state. May be repeated.")] = None,
    stream: Annotated[str | None, typer.Option(help="List only snapshots or jobs of this stream.")] = None,
    topic: Annotated[str | None, typer.Option(help="List only backfills to this topic.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="List only backfills with this label. May be repeated."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="List only jobs that were created since this time (UTC): an RFC 3339 time, a day, or an age such "
            "as 2h.",
        ),
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="List only jobs that this caller created, such as key:ann.")
    ] = None,
    order_by: Annotated[
        str | None, typer.Option(help="Fields of jobs to sort by, such as: state, created_at desc.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, max=1000, help="List at most N entries.")] = None,
    page_token: PageTokenOption = None,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """List objects of one kind, newest first. Without KIND, list the kinds. Jobs of all kinds: refeed get jobs."""
    if plural is None:
        for line in render_table(
            ["kind", "list"], [[each.name, f"refeed get {each.plural}"] for each in KINDS.kinds]
        ):
            out.print(line)
        return
    wanted_kind = KINDS.find_list(plural)
    begin = parse_moment(since, "--since")
    given: dict[str, tuple[str, Any]] = {
        "kind": ("--kind", kind),
        "state": ("--state", [each.upper() for each in state or ()]),
        "stream": ("--stream", stream and stream_name(stream)),
        "topic": ("--topic", topic),
        "label": ("--label", [":".join(parse_label(text)) for text in label or ()]),
        "since": ("--since", begin),
        "created_by": ("--by", by),
        "order_by": ("--order-by", order_by),
        "page_size": ("--limit", limit),
        "page_token": ("--page-token", page_token),
    }
    for name, (flag, value) in given.items():
        if value and name not in {*wanted_kind.filters, "page_size"}:
            raise InputError(f"{flag} does not work with 'refeed get {wanted_kind.plural}'.")
    wanted: Mapping[str, Any] = {
        name: value for name, (_, value) in given.items() if value and name in wanted_kind.filters
    }
    _check_known(
        kind,
        [each.name for each in KINDS.kinds if each.prefix and {*JOB_FILTERS} <= {*each.filters}],
        "kind of job",
    )
    for each in wanted.get("state", ()):
        _check_known(each, list(dict.fromkeys(map(str, (*JobState, *UpdateState)))), "state of a job")
    with open_api() as api:
        page = wanted_kind.fetch(api, wanted)
        if "stream" in wanted and not page[wanted_kind.plural]:
            # An unknown stream is refused with the names that it may mean.
            api.read_stream(wanted["stream"])
    if limit is not None and "page_size" not in wanted_kind.filters:
        # A list that has no pages.
        page = {**page, wanted_kind.plural: page[wanted_kind.plural][:limit]}
    names = map(wanted_kind.name_of, page[wanted_kind.plural])
    before = row_length.set(WHOLE if output is Output.WIDE else terminal_width())
    print_page(page, wanted_kind.table, as_json=as_json, since=begin, output=output, names=names)
    row_length.reset(before)


def _check_known(given: str | None, known: Sequence[str], noun: str) -> None:
    if given is not None and given not in known:
        close = did_you_mean(given, known)
        raise InputError(f"{given!r} is not a {noun}.{close} Known are: {', '.join(known)}.")


def describe(name: ObjectArgument, output: OutputOption = None, as_json: JsonOption = False) -> None:
    """Show everything about one object, and the command to run next."""
    with open_api() as api:
        kind, object_id = KINDS.find(api, name, "describe")
        assert kind.read is not None
        found = kind.read(api, object_id)
    if as_json:
        output = Output.JSON
    if output in {None, Output.WIDE}:
        kind.show(found, as_json=False, whole=True)
    elif output is not None:
        print_as(output, found, [kind.name_of(found)])


def watch(name: ObjectArgument, as_json: JsonOption = False) -> None:
    """Watch a job, a snapshot or a stream until it has ended. The exit code is 0 only if it ended well.

    The command also ends if the job goes on only when somebody resumes or approves it.
    """
    with open_api() as api:
        kind, object_id = KINDS.find(api, name, "watch")
        assert kind.read is not None
        kind.finish(api, kind.read(api, object_id), watch=True, as_json=as_json)


def logs(
    name: ObjectArgument,
    *,
    tail: TailOption = DEFAULT_TAIL_LINES,
    follow: FollowOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the end of the log of a job's driver, or of a stream.

    If the log is on another machine, the command names that machine.
    """
    with open_api() as api:
        kind, object_id = KINDS.find(api, name, "logs")
        if kind.name != "stream":
            print_log(api.jobs.read_log(object_id, tail_lines=tail, follow=follow), as_json=as_json)
        elif follow:
            raise InputError("The log of a stream can't be followed. Run the command again without --follow.")
        else:
            print_log([api.read_stream_log(object_id, tail_lines=tail)], as_json=as_json)


def figures(
    name: ObjectArgument,
    over: Annotated[
        Literal["hour", "day"],
        typer.Option(
            help="For a stream: hour (the last hour in steps of one minute) or day (the last day in steps of ten "
            "minutes)."
        ),
    ] = "hour",
    as_json: JsonOption = False,
) -> None:
    """Show past figures: the rate, lag and backlog of a stream, or the rate of a backfill for each minute."""
    with open_api() as api:
        kind, object_id = KINDS.find(api, name, "figures")
        if kind.name == "stream":
            print_found(api.list_stream_histories(over, object_id), history_lines, as_json=as_json)
        else:
            found = api.jobs.read_part(object_id, "figures")
            print_found(found, list_table("intervals", _RATE_COLUMNS), as_json=as_json)


def _figure(name: str, if_null: str = "unknown") -> Callable[[Mapping[str, Any]], str]:
    return lambda it: if_null if it[name] is None else f"{it[name]:,}"


_RATE_COLUMNS: Final[Columns] = {
    "until": "end",
    "published": _figure("published"),
    "msgs/s": _figure("rate_messages_per_second"),
    "limit": _figure("rate_limit_messages_per_second", "none"),
    "publish time": "event_time",
}
