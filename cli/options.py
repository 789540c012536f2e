"""Options that several commands have, and what their exit codes mean."""

from typing import Annotated, Any, Final

import typer

from cli.completion import complete_object
from cli.terminal import Output

_USUAL: Final = "2 wrong usage; 3 the API does not answer; 4 the API refused the call; 130 interrupted."
EXIT_CODES: Final = f"Exit codes: 0 done; {_USUAL}"
WATCH_EXIT_CODES: Final = (
    "Exit codes: 0 done; 1 the watched job waits for a person, or did not end well, such as FAILED, or messages "
    f"of the watched backfill are missing or not verified yet; {_USUAL}"
)
CANCEL_EXIT_CODES: Final = f"Exit codes: 0 done; 1 with --watch, the job was not CANCELLED; {_USUAL}"
REPLAY_EXIT_CODES: Final = (
    "Exit codes: 0 done; 1 nothing was selected, or the watched job waits for a person, FAILED, was CANCELLED, or "
    f"has messages that are missing or not verified yet; {_USUAL}"
)
WAIT_EXIT_CODES: Final = f"Exit codes: 0 done; 1 with --watch, the action failed or needs an approval; {_USUAL}"
UPDATE_EXIT_CODES: Final = (
    "Exit codes: 0 done; 1 with --dry-run, the update may not begin, or with --watch, the update is not STABLE or "
    f"needs an approval; {_USUAL}"
)
DIRECT: Final = (
    "This command works on the home, the warehouse and Pub/Sub itself and does not call the API. The scopes and "
    "topics of REFEED_API_KEY do not limit it."
)
DEFAULT_TAIL_LINES: Final = 1000

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
JsonObjectOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
JsonArrayOption = Annotated[bool, typer.Option("--json", help="Print one JSON array.")]
OutputOption = Annotated[
    Output | None,
    typer.Option(
        "--output",
        "-o",
        help="Print JSON, YAML, one KIND/NAME in each line, or a table with long lines. A wide table of jobs has "
        "more columns.",
        show_default=False,
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
WatchOption = Annotated[
    bool,
    typer.Option("--watch", "-w", help="Watch the job or the stream until it has ended, or waits for a person."),
]
ObjectArgument = Annotated[
    str,
    typer.Argument(
        metavar="OBJECT",
        help="KIND/NAME such as stream/backup, a name that only one object has, an id, the beginning of an id, or "
        "'latest' for your newest job.",
        show_default=False,
        autocompletion=complete_object,
    ),
]
PageSizeOption = Annotated[
    int, typer.Option("--limit", "--page-size", min=1, max=1000, metavar="N", help="List at most N entries.")
]
PageTokenOption = Annotated[str | None, typer.Option(help="The next_page_token of the previous page.")]
CreatedSinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="List only jobs that were created since this time (UTC): an RFC 3339 time, a day, or an age such as "
        "2h.",
    ),
]
TailOption = Annotated[int, typer.Option(min=0, max=100_000, help="Print the last N lines of the log.")]


def key_option(once: str) -> Any:
    """Return the option of an idempotency key; ``once`` says what repeated calls do only once."""
    return typer.Option(help=f"Repeated calls with the same key {once}.")


FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the job has ended.")]
