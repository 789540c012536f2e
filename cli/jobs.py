"""The commands that every kind of job has alike: list, show, watch, its actions and logs."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.api import open_api
from cli.moments import parse_moment
from cli.options import (
    DEFAULT_TAIL_BYTES,
    EXIT_CODES,
    WATCH_EXIT_CODES,
    CreatedSinceOption,
    FollowOption,
    JsonOption,
    PageSizeOption,
    PageTokenOption,
    StateOption,
    TailOption,
    WatchOption,
)
from cli.terminal import ExitCode, err, print_found, print_json, render_table
from model.job import JobState

if TYPE_CHECKING:
    from client.api import RefeedApi
    from client.jobs import JobCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCommands:
    """Adds the commands of one kind of job to ``app``, in the order of the calls, which is that of --help.

    ``noun`` is its word, ``id_prefix`` what its ids begin with, and ``calls`` returns what the API does with it.
    ``lines`` returns what a person reads of a job; ``watch`` shows one until it has ended, and returns it.
    """

    app: typer.Typer
    noun: str
    id_prefix: str
    calls: "Callable[[RefeedApi], JobCalls]"
    lines: Callable[[Mapping[str, Any]], Iterable[str]]
    watch: "Callable[[RefeedApi, dict[str, Any]], dict[str, Any]]"

    def finish(self, api: "RefeedApi", found: dict[str, Any], *, watch: bool, as_json: bool) -> None:
        """Show a job; with ``watch`` once it has ended, and exit 1 unless it SUCCEEDED."""
        if watch:
            found = self.watch(api, found)
        print_found(found, self.lines, as_json=as_json)
        if watch and found["state"] != JobState.SUCCEEDED:
            raise typer.Exit(ExitCode.FAILED)

    def add_list(self, columns: Sequence[str], cells: Callable[[Mapping[str, Any]], Sequence[str]]) -> None:
        """Add ``list``; ``columns`` stand between a job's state and its author, and ``cells`` fills them."""

        def list_(
            *,
            state: StateOption = None,
            since: CreatedSinceOption = None,
            order_by: Annotated[
                str | None, typer.Option(help="Columns to sort by, such as: state, created_at desc.")
            ] = None,
            page_size: PageSizeOption = 50,
            page_token: PageTokenOption = None,
            as_json: JsonOption = False,
        ) -> None:
            begin = parse_moment(since, "--since")
            with open_api() as api:
                page = self.calls(api).list(
                    page_size=page_size, page_token=page_token, order_by=order_by, state=state, since=begin
                )
            names = ["id", "state", *columns, "by", "created"]
            print_page(
                page,
                f"{self.noun}s",
                names,
                lambda job: [job["id"], job["state"], *cells(job), job["created_by"], job["created_at"]],
                as_json=as_json,
                since=begin,
            )

        self._add("list", f"List {self.noun}s, newest first.", list_)

    def add_show(self, help_text: str) -> None:
        """Add ``show``."""

        def show(job_id: str = self._id, as_json: JsonOption = False) -> None:
            with open_api() as api:
                print_found(self.calls(api).read(job_id), self.lines, as_json=as_json)

        self._add("show", help_text, show)

    def add_watch(self) -> None:
        """Add ``watch``."""

        def watch(job_id: str = self._id, as_json: JsonOption = False) -> None:
            with open_api() as api:
                self.finish(api, self.calls(api).read(job_id), watch=True, as_json=as_json)

        help_text = (
            f"Watch a {self.noun} until it has ended. The exit code is 0 only if the {self.noun} SUCCEEDED."
        )
        self._add("watch", help_text, watch, WATCH_EXIT_CODES)

    def add_action(self, verb: str, help_text: str, *, can_watch: bool = False) -> None:
        """Add a verb of the API; ``can_watch`` gives it --watch."""

        def act_and_watch(job_id: str = self._id, watch: WatchOption = False, as_json: JsonOption = False) -> None:
            with open_api() as api:
                self.finish(api, self.calls(api).act(job_id, verb), watch=watch, as_json=as_json)

        def act(job_id: str = self._id, as_json: JsonOption = False) -> None:
            act_and_watch(job_id, watch=False, as_json=as_json)

        if can_watch:
            self._add(verb, help_text, act_and_watch, WATCH_EXIT_CODES)
        else:
            self._add(verb, help_text, act)

    def add_logs(self) -> None:
        """Add ``logs``."""

        def logs(
            job_id: str = self._id,
            tail: TailOption = DEFAULT_TAIL_BYTES,
            follow: FollowOption = False,
            as_json: JsonOption = False,
        ) -> None:
            with open_api() as api:
                print_log(self.calls(api).read_log(job_id, tail_bytes=tail, follow=follow), as_json=as_json)

        self._add("logs", "Show the driver's log.", logs)

    @property
    def _id(self) -> Any:
        return typer.Argument(
            metavar="ID", help=f"The {self.noun}'s id, which begins with {self.id_prefix}_.", show_default=False
        )

    def _add(self, name: str, help_text: str, command: Callable[..., None], exit_codes: str = EXIT_CODES) -> None:
        self.app.command(name, help=help_text, epilog=exit_codes)(command)


def print_log(texts: Iterable[str], *, as_json: bool) -> None:
    """Print a log as it comes or, when it has ended, as one list of lines."""
    if as_json:
        print_json({"lines": "".join(texts).splitlines()})
        return
    for text in texts:
        sys.stdout.write(text)
        sys.stdout.flush()


def print_page(
    page: Mapping[str, Any],
    name: str,
    columns: Sequence[str],
    cells: Callable[[Mapping[str, Any]], Sequence[str]],
    *,
    as_json: bool,
    since: str | None = None,
) -> None:
    """Show the page's things called ``name`` as a table and, on stderr, how to ask for the next page.

    A token is good for one list only: an age such as ``2h`` would be another time by then, so ``since`` is named.
    """
    print_found(page, lambda _: render_table(columns, [cells(each) for each in page[name]]), as_json=as_json)
    if not as_json and page.get("next_page_token"):
        again = "" if since is None else f"--since {since} "
        err.print(f"more: {again}--page-token {page['next_page_token']}")


def watch_job(
    calls: "JobCalls", found: dict[str, Any], *, noun: str, progress: Callable[[Mapping[str, Any]], str]
) -> dict[str, Any]:
    """Return the job once it has ended, and show it on stderr meanwhile; Ctrl-C ends the watching alone.

    ``noun`` is the word of its commands; ``progress`` returns its progress for a line.
    """
    job_id, said = found["id"], ""
    err.print(f"watching {job_id}; Ctrl-C does not cancel it")
    try:
        # Elsewhere than in a terminal a status shows nothing.
        with err.status("") as line:
            for seen in calls.watch(job_id):
                found = seen
                text = f"{seen['state']} {progress(seen)}"
                line.update(f"{job_id} {text}")
                if text != said and not err.is_terminal:
                    err.print(text)
                said = text
    except KeyboardInterrupt:
        if not JobState(found["state"]).is_final:
            err.print(render_leaving(noun, job_id))
        raise
    return found


def render_leaving(noun: str, job_id: str) -> str:
    """Return what becomes of a job that nobody watches any more, and the commands that go on with it."""
    return (
        f"{job_id} continues without this command. To watch it again, or to stop it:\n"
        f"  refeed {noun} watch {job_id}\n"
        f"  refeed {noun} cancel {job_id}"
    )
