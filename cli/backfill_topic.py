"""``refeed backfill TOPIC``: replays a topic's messages of a range of time, without SQL."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

import typer

from backfill.plan.create import BackfillCreate
from cli.api import open_api
from cli.backfill_view import plan_lines, query_lines
from cli.flags import read_given, takes_fields
from cli.guesses import check_guess
from cli.invocation import HomeGroup
from cli.jobs import BACKFILL
from cli.moments import parse_moment
from cli.options import JsonOption, WatchOption, YesOption
from cli.terminal import ExitCode, confirm, err, out, print_json
from model.declaration import declared_fields
from model.errors import InputError, RequestRefusedError
from model.moment import render_moment
from model.naming import did_you_mean

if TYPE_CHECKING:
    from client.api import RefeedApi

# The command of every word that is none of the others.
TOPIC: Final = "TOPIC"
_RANGE: Final = ("from_", "to", "source_attributes", "where", "parameters", "topic")
_NO_FLAGS: Final = {*_RANGE, "query", "source_topic", "plan_id"}
FLAGS: Final = (*_RANGE, *(each.name for each in declared_fields(BackfillCreate) if each.name not in _NO_FLAGS))

ExactOption = Annotated[
    bool, typer.Option("--exact", help="On BigQuery, run the query to count its rows. BigQuery bills the query.")
]
# A request and its plan.
_Planned = tuple[dict[str, Any], dict[str, Any]]


class TopicGroup(HomeGroup):
    """A group in which a word that is no command is a topic."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of the first word, and the other words."""
        is_topic = args[0] not in self.commands and not args[0].startswith("-")
        if is_topic:
            # With a range, even a topic called "list" is a topic.
            if "--from" not in args:
                check_guess(["backfill", *args], self.list_commands(ctx))
            return args[0], self.get_command(ctx, TOPIC), args[1:]
        return super().resolve_command(ctx, args)


@takes_fields(BackfillCreate, FLAGS, help_texts={"parameters": "A parameter of --where."})
def replay_topic(
    context: typer.Context,
    *,
    exact: ExactOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only plan. Nothing is published.")] = False,
    yes: YesOption = False,
    watch: WatchOption = False,
    as_json: JsonOption = False,
    **given: Any,
) -> None:
    """Replay the messages that were published to TOPIC between --from and --to.

    The command prints the times in full, the query and the plan, and asks before it publishes. If you name several
    topics, the command creates one backfill for each. With --watch, it waits for the end of each backfill before
    it creates the next.

    Times without an offset are in UTC. The messages go back to their own topic, or to the topic in --to-topic. If
    the backup was down, some messages of the range may have been archived late. To find them, the query also reads
    the partitions of the 31 days after the range.
    """
    topic, siblings = str(context.info_name), _siblings(context)
    if given["from_"] is None:
        raise InputError(
            f"refeed backfill has no command {topic}.{did_you_mean(topic, siblings)} To replay the topic {topic}, "
            "give the range: --from 02:00 --to 03:00."
        )
    request = read_given(BackfillCreate, given)
    request["from"] = parse_moment(given["from_"], "--from")
    request["to"] = parse_moment(given["to"], "--to") or render_moment(datetime.now(UTC))
    wanted = [{**request, "source_topic": each} for each in dict.fromkeys([topic, *context.args])]
    with open_api() as api:
        planned = [_plan(api, each, siblings, exact=exact) for each in wanted]
        _show(planned, as_json=as_json, dry_run=dry_run)
        _warn_of_backlog(api, planned)
        empty = [asked for asked, plan in planned if plan["rows"] == 0]
        for asked in empty:
            err.print(_nothing(api, asked))
        if empty and (given["fail_if_empty"] or not (dry_run or given["allow_empty"])):
            raise typer.Exit(ExitCode.FAILED)
        if dry_run:
            return
        if not yes:
            confirm_plans(plan for _, plan in planned)
        for asked, plan in planned:
            quoted = {**asked, "plan_id": plan["plan_id"]}
            backfill = api.backfills.create(quoted, idempotency_key=str(uuid4()))
            BACKFILL.finish(api, backfill, watch=watch, as_json=as_json)


def _plan(api: "RefeedApi", wanted: dict[str, Any], siblings: list[str], *, exact: bool) -> _Planned:
    try:
        return wanted, api.plan_backfill(wanted, exact=exact)
    except RequestRefusedError as refused:
        raise _with_command(refused, wanted["source_topic"], siblings) from refused


def confirm_plans(plans: Iterable[Mapping[str, Any]]) -> None:
    """Ask whether to publish the messages of the plans, and go on with a yes only.

    Raises:
        Abort: the answer is another one, or there is none.
    """
    confirm(f"Publish {' and '.join(map(_render_amount, plans))}?")


def _render_amount(plan: Mapping[str, Any]) -> str:
    rows = "an unknown number of" if plan["rows"] is None else f"{plan['rows']:,}"
    return f"{rows} messages to {plan['topic']}"


def _siblings(context: typer.Context) -> list[str]:
    group: Any = None if context.parent is None else context.parent.command
    return sorted(getattr(group, "commands", {}).keys() - {TOPIC})


def _show(planned: Iterable[_Planned], *, as_json: bool, dry_run: bool) -> None:
    for wanted, plan in planned if dry_run or not as_json else ():
        if as_json:
            print_json(plan)
            continue
        out.print(f"{wanted['source_topic']} from {wanted['from']} to {wanted['to']}, by publish time")
        for line in (*query_lines(plan["query"]), *plan_lines(plan, is_quoted=False)):
            out.print(line)
    if dry_run and not as_json:
        out.print("Nothing was published. To publish, run the command without --dry-run.")


def _warn_of_backlog(api: "RefeedApi", planned: Iterable[_Planned]) -> None:
    """Say how many messages the archive does not have yet: a replay does not wait for them."""
    with suppress(RequestRefusedError):
        waiting = {each["topic"]: each["backlog_messages"] for each in api.list_topics()["topics"]}
        for wanted, _ in planned:
            topic = wanted["source_topic"]
            if count := waiting.get(topic):
                err.print(
                    f"warning: {count:,} messages of {topic} wait in its backup subscription, and the archive "
                    "does not have them yet. The replay leaves them out, even if they are of this range."
                )


def _nothing(api: "RefeedApi", wanted: Mapping[str, Any]) -> str:
    """Return that the range has no such message, and the topics whose names are close."""
    topic = wanted["source_topic"]
    narrowed = " that fulfils the conditions" if wanted.get("source_attributes") or wanted.get("where") else ""
    names = [each["topic"] for each in api.list_topics()["topics"]]
    close = "" if topic in names else did_you_mean(topic, names)
    return f"The archive has no message of {topic} in this range{narrowed}.{close}"


def _with_command(refused: RequestRefusedError, topic: str, siblings: list[str]) -> RequestRefusedError:
    """Return the error; of a topic that does not exist, with the commands whose names are close."""
    close = did_you_mean(topic, siblings)
    if refused.details.get("code") != "topic_not_found" or not close:
        return refused
    message = f"{refused.message} refeed backfill has no command {topic} either.{close}"
    return RequestRefusedError(message, **refused.details)
