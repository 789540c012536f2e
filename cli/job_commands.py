"""The commands that every kind of job has alike: list, show, watch, its actions, events and logs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import typer

from cli.api import open_api
from cli.jobs import (
    DEFAULT_TAIL_BYTES,
    EXIT_CODES,
    AfterOption,
    CreatedSinceOption,
    FollowOption,
    JsonOption,
    PageSizeOption,
    PageTokenOption,
    StateOption,
    TailOption,
    WatchOption,
    print_events,
    print_log,
    print_more,
)
from cli.moments import parse_moment
from cli.terminal import print_json, print_table
from client.api import RefeedApi
from client.jobs import JobCalls


class Finish(Protocol):
    """How a command for jobs ends."""

    def __call__(self, api: RefeedApi, found: dict[str, Any], *, watch: bool, as_json: bool) -> None:
        """Show a job; with ``watch`` once it has ended, and exit 1 unless it SUCCEEDED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCommands:
    """Adds the commands of one kind of job to ``app``, in the order of the calls, which is that of --help.

    ``noun`` is its word, ``id_prefix`` what its ids begin with, and ``calls`` returns what the API does with it.
    """

    app: typer.Typer
    noun: str
    id_prefix: str
    calls: Callable[[RefeedApi], JobCalls]
    finish: Finish

    def add_list(self, columns: Sequence[str], cells: Callable[[Mapping[str, Any]], Sequence[str]]) -> None:
        """Add ``list``; ``columns`` stand between a job's state and its author, and ``cells`` fills them."""

        def list_(
            *,
            state: StateOption = None,
            since: CreatedSinceOption = None,
            order_by: Annotated[str | None, typer.Option(help="Such as: state, created_at desc")] = None,
            page_size: PageSizeOption = 50,
            page_token: PageTokenOption = None,
            as_json: JsonOption = False,
        ) -> None:
            begin = parse_moment(since, "--since")
            with open_api() as api:
                page = self.calls(api).list(
                    page_size=page_size, page_token=page_token, order_by=order_by, state=state, since=begin
                )
            if as_json:
                print_json(page)
                return
            rows = [
                [found["id"], found["state"], *cells(found), found["created_by"], found["created_at"]]
                for found in page[f"{self.noun}s"]
            ]
            print_table(["id", "state", *columns, "by", "created"], rows)
            print_more(page, since=begin)

        self._add("list", f"List {self.noun}s, the newest first.", list_)

    def add_show(self, help_text: str) -> None:
        """Add ``show``."""

        def show(job_id: str = self._id, as_json: JsonOption = False) -> None:
            with open_api() as api:
                self.finish(api, self.calls(api).read(job_id), watch=False, as_json=as_json)

        self._add("show", help_text, show)

    def add_watch(self) -> None:
        """Add ``watch``."""

        def watch(job_id: str = self._id, as_json: JsonOption = False) -> None:
            with open_api() as api:
                self.finish(api, self.calls(api).read(job_id), watch=True, as_json=as_json)

        self._add("watch", f"Watch a {self.noun} until it has ended; exit 0 only if it SUCCEEDED.", watch)

    def add_action(self, verb: str, help_text: str, *, can_watch: bool = False) -> None:
        """Add a verb of the API; ``can_watch`` gives it --watch."""

        def act_and_watch(job_id: str = self._id, watch: WatchOption = False, as_json: JsonOption = False) -> None:
            with open_api() as api:
                self.finish(api, self.calls(api).act(job_id, verb), watch=watch, as_json=as_json)

        def act(job_id: str = self._id, as_json: JsonOption = False) -> None:
            act_and_watch(job_id, watch=False, as_json=as_json)

        self._add(verb, help_text, act_and_watch if can_watch else act)

    def add_events(self) -> None:
        """Add ``events``."""

        def events(job_id: str = self._id, after: AfterOption = 0, as_json: JsonOption = False) -> None:
            with open_api() as api:
                print_events(self.calls(api).read_part(job_id, "events", after=str(after)), as_json=as_json)

        self._add("events", "Show its history: each change with its author and reason.", events)

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

        self._add("logs", "Show the driver's log; with --json as a list of lines.", logs)

    @property
    def _id(self) -> Any:
        return typer.Argument(metavar="ID", help=f"A {self.noun}'s id, {self.id_prefix}_...", show_default=False)

    def _add(self, name: str, help_text: str, command: Callable[..., None]) -> None:
        self.app.command(name, help=help_text, epilog=EXIT_CODES)(command)
