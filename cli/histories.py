"""What commands that do not call the API write to the histories of objects."""

import getpass
from typing import TYPE_CHECKING, Any

from cli.terminal import err
from model.errors import RefeedError

if TYPE_CHECKING:
    from app.deployment import Deployment


def terminal_actor() -> str:
    """Return who sits at the terminal, as histories and the audit log name them."""
    try:
        return f"terminal:{getpass.getuser()}"
    except (KeyError, OSError):
        # A container's user may have a number and no name.
        return "terminal"


def note_event(deployment: "Deployment", resource: str, name: str, what: str, **given: Any) -> None:
    """Add a line to the history of a topic or a source; a job store that can't be written undoes nothing."""
    try:
        deployment.store.note_event(resource, name, what, actor=terminal_actor(), **given)
    except (RefeedError, OSError) as exc:
        err.print(f"'refeed events {resource}/{name}' does not show this: the job store can't be written: {exc}")
