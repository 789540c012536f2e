"""Named places where a test may kill the process that passes them; without REFEED_FAILPOINTS they do nothing."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Final

# Every place, in the order in which a message passes it. A test arms one; a name that is not here is refused,
# so that no test waits for a place that was renamed.
FAILPOINTS: Final = (
    "pull.received",
    "file.before_write",
    "bigquery.appended",
    "bigquery.staged",
    "file.written",
    "descriptor.before_send",
    "batch.collected",
    "journal.before_write",
    "journal.written",
    "commit.before",
    "bigquery.noted",
    "bigquery.committed",
    "bigquery.selection.started",
    "bigquery.selection.made",
    "commit.after",
    "ack.between",
    "ack.after",
    "journal.done",
    "merge.compared",
    "merge.rewritten",
    "merge.indexed",
    "merge.committed",
    "compact.before",
    "compact.after",
    "backfill.selection.written",
    "backfill.piece.begun",
    "backfill.confirmed",
    "backfill.letters.written",
    "backfill.checkpoint.written",
)

_passed: Counter[str] = Counter()


def hit(name: str) -> None:
    """Kill this process with SIGKILL when ``name`` is armed.

    REFEED_FAILPOINTS is ``name=skip:marker``: the place is passed ``skip`` times in a process before it kills,
    and it kills once only, because ``marker`` is a file that the kill makes and that must not exist before.

    Example:
        >>> hit("commit.before")
    """
    armed = os.environ.get("REFEED_FAILPOINTS")
    if not armed:
        return
    wanted, _, rest = armed.partition("=")
    if wanted not in FAILPOINTS or name not in FAILPOINTS:
        raise ValueError(f"no failpoint is named {wanted!r} or {name!r}; there are {', '.join(FAILPOINTS)}")
    if name != wanted:
        return
    skip, _, marker = rest.partition(":")
    _passed[name] += 1
    if _passed[name] <= int(skip):
        return
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
