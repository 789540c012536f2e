"""What the commands for jobs share: options, exit codes, watching one, how a history and a log are shown."""

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final

import typer

from cli.terminal import ExitCode, err, print_json, print_table
from client.jobs import JobCalls
from model.job import JobState

EXIT_CODES: Final = (
    "Exit codes: 0 done, and with --watch SUCCEEDED; 1 it FAILED or was CANCELLED; 2 wrong usage; 3 the API does "
    "not answer; 4 the API refused; 130 interrupted."
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
WatchOption = Annotated[bool, typer.Option("--watch", help="Watch it until it has ended.")]
PageSizeOption = Annotated[int, typer.Option(min=1, max=1000, help="How many.")]
PageTokenOption = Annotated[str | None, typer.Option(help="next_page_token of the page before.")]
StateOption = Annotated[
    list[JobState] | None,
    typer.Option("--state", case_sensitive=False, help="Only those in this state; again for another one."),
]
CreatedSinceOption = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="TIME", help="Only those created since: RFC 3339, a day, or an age such as 2h; UTC."
    ),
]
AfterOption = Annotated[int, typer.Option(min=0, help="Only events after this number.")]
TailOption = Annotated[int, typer.Option(min=0, max=10_000_000, help="Bytes from the end.")]
FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the job has ended.")]
DEFAULT_TAIL_BYTES: Final = 100_000


def print_events(found: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a job's history, oldest line first."""
    if as_json:
        print_json(found)
        return
    rows = [[str(e["number"]), e["at"], e["actor"], e["what"], e["why"] or ""] for e in found["events"]]
    print_table(["number", "at", "who", "what", "why"], rows)


def print_log(texts: Iterable[str], *, as_json: bool) -> None:
    """Print a log as it comes or, when it has ended, as one list of lines."""
    if as_json:
        print_json({"lines": "".join(texts).splitlines()})
        return
    for text in texts:
        sys.stdout.write(text)
        sys.stdout.flush()


def print_more(page: Mapping[str, Any], *, since: str | None = None) -> None:
    """Print on stderr how to ask for the next page, when there is one.

    A token is good for one list only: an age such as ``2h`` would be another time by then, so ``since`` is named.
    """
    if page.get("next_page_token"):
        again = "" if since is None else f"--since {since} "
        err.print(f"more: {again}--page-token {page['next_page_token']}", markup=False)


def finish(
    calls: JobCalls,
    found: dict[str, Any],
    *,
    noun: str,
    watch: bool,
    describe: Callable[[Mapping[str, Any]], str],
    show: Callable[[Mapping[str, Any]], None],
) -> None:
    """Show a job; with ``watch`` once it has ended, and exit 1 unless it SUCCEEDED.

    ``noun`` is the word of its commands; ``describe`` returns its progress for a line.
    """
    if watch:
        found = _watch(calls, found, noun, describe)
    show(found)
    if watch and found["state"] != JobState.SUCCEEDED:
        raise typer.Exit(ExitCode.FAILED)


def _watch(
    calls: JobCalls, found: dict[str, Any], noun: str, describe: Callable[[Mapping[str, Any]], str]
) -> dict[str, Any]:
    """Return the job once it has ended, and show it on stderr meanwhile; Ctrl-C ends the watching alone."""
    job_id = found["id"]
    err.print(f"watching {job_id}; Ctrl-C leaves it as it is", markup=False)
    said = ""
    try:
        # Elsewhere than in a terminal a status shows nothing.
        with err.status("") as line:
            for seen in calls.watch(job_id):
                found = seen
                text = f"{seen['state']} {describe(seen)}"
                line.update(f"{job_id} {text}")
                if text != said and not err.is_terminal:
                    err.print(text, markup=False)
                said = text
    except KeyboardInterrupt:
        if not JobState(found["state"]).is_final:
            err.print(
                f"{job_id} goes on without this command. To watch it again, or to stop it:\n"
                f"  refeed {noun} watch {job_id}\n"
                f"  refeed {noun} cancel {job_id}",
                markup=False,
            )
        raise
    return found
