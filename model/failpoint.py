"""Named places where a test may kill the process that passes them; without REFEED_FAILPOINTS they do nothing."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Final

# The steps of the jobs that agents carry out: each has a place where it is written down, and one after its work.
STEPS: Final = (
    "snapshot.make",
    "deletion.delete",
    "restore.stop",
    "restore.put_back",
    "update.check",
    "update.measure",
    "update.shadow",
    "update.snapshot",
    "update.stand_by",
    "update.hand_over",
    "update.stop",
    "update.start",
    "update.watch",
    "update.back_stand_by",
    "update.hand_back",
    "update.back_stop",
    "update.back_start",
)
# Every place, in the order in which a message passes it, and at the end those that an agent passes. A test arms
# one; a name that is not here is refused, so that no test waits for a place that was renamed.
FAILPOINTS: Final = (
    "pull.received",
    "decode.begun",
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
    "bigquery.flushed",
    "bigquery.committed",
    "bigquery.selection.started",
    "bigquery.selection.made",
    "commit.after",
    "publish.before",
    "publish.after",
    "ack.between",
    "ack.after",
    "journal.done",
    "bigquery.merge.changes",
    "bigquery.merge.displaced",
    "merge.compared",
    "bigquery.merge.started",
    "merge.rewritten",
    "merge.indexed",
    "merge.committed",
    "merge.noted",
    "compact.before",
    "compact.after",
    "backfill.selection.written",
    "backfill.piece.begun",
    "backfill.confirmed",
    "backfill.letters.written",
    "backfill.checkpoint.written",
    "snapshot.captured",
    "snapshot.sources",
    "snapshot.copied",
    "restore.before",
    "restore.restored",
    "restore.sought",
    "shadow.looked",
    "update.standby_started",
    "update.ordered",
    "upload.applied",
    "upload.noted",
    *(f"{step}.entered" for step in STEPS),
    *(f"{step}.done" for step in STEPS),
)

_passed: Counter[str] = Counter()
_HIT: Final = ".hit"


def hit(name: str) -> None:
    """Kill this process with SIGKILL when ``name`` is armed.

    REFEED_FAILPOINTS is ``name=skip:marker``: the place is passed ``skip`` times in a process before it kills,
    and it kills once only, because ``marker`` is a file that the kill makes and that must not exist before. Or
    it is the path of a folder, in which :func:`arm` arms places while processes run.

    Example:
        >>> hit("commit.before")
    """
    armed = os.environ.get("REFEED_FAILPOINTS")
    if not armed:
        return
    if "=" not in armed:
        _check(name)
        _hit_in_folder(Path(armed), name)
        return
    wanted, _, rest = armed.partition("=")
    _check(wanted, name)
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


def arm(folder: Path, name: str, *, skip: int = 0) -> None:
    """Let the process that passes ``name`` for the time after ``skip`` be killed; it happens once.

    It holds for every process whose REFEED_FAILPOINTS is ``folder``, also those that run already.
    """
    _check(name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}{_HIT}").unlink(missing_ok=True)
    order = folder / f"{name}.new"
    order.write_text(str(skip))
    order.replace(folder / name)


def disarm(folder: Path, name: str) -> bool:
    """Take the order back where it still stands, and return whether the place was hit."""
    (folder / name).unlink(missing_ok=True)
    return is_hit(folder, name)


def is_hit(folder: Path, name: str) -> bool:
    """Whether a process was killed at ``name`` since it was armed last."""
    return (folder / f"{name}{_HIT}").exists()


def _hit_in_folder(folder: Path, name: str) -> None:
    order = folder / name
    try:
        skip = int(order.read_text())
        _passed[name] += 1
        if _passed[name] <= skip:
            return
        # One process has it: a second one finds nothing to rename.
        order.rename(folder / f"{name}{_HIT}")
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def _check(*names: str) -> None:
    if unknown := [name for name in names if name not in FAILPOINTS]:
        raise ValueError(
            f"no failpoint is named {' or '.join(map(repr, unknown))}; there are {', '.join(FAILPOINTS)}"
        )
