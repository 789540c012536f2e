"""Messages of a backfill that could not be published: kept whole, listed, and struck out when they are."""

import base64
import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Self

import pyarrow as pa

from backfill.run.folder import BackfillFolder
from backfill.run.selection import Selection, SelectionSlice, read_selection
from jobs.files import Files
from model.moment import render_time

# A page of messages of 10 MB each is a small one.
_PAGE_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One message that could not be published; ``row`` is its number in the selection.

    ``code`` is stable: attribute_without_text, no_room_for_tags, message_too_large, refused_by_pubsub, gave_up,
    ordering_key_stopped. ``at`` is when it failed for the last time.
    """

    row: int
    topic: str | None
    message_id: str | None
    publish_time: str | None
    ordering_key: str
    code: str
    reason: str
    at: str
    attributes: dict[str, str | None]
    data: bytes

    def to_json(self) -> dict[str, Any]:
        """Return it as it is kept; ``data`` is base64."""
        return {**asdict(self), "data": base64.b64encode(self.data).decode()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the dead letter that ``to_json`` gave."""
        return cls(**{**value, "data": base64.b64decode(value["data"])})


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Some dead letters by row, ascending; ``next_after`` is None when there are no more after them."""

    letters: list[DeadLetter]
    next_after: int | None


@dataclass(frozen=True, slots=True)
class DeadLetterReason:
    """The number of dead letters with one code, and the first of these dead letters as an example."""

    code: str
    messages: int
    example_row: int
    example_message_id: str | None
    example_reason: str


class DeadLetterWriter:
    """Writes what happens to the rows of one slice in one attempt.

    What was said last of a row counts, and a later attempt comes after an earlier one. Lines go out before the
    checkpoint that counts them, so a crash in between makes the next attempt write them again.
    """

    def __init__(self, folder: BackfillFolder, epoch: int, part: SelectionSlice) -> None:
        self._part = part
        self._files = folder.dead_letters
        self._log = f"{part.number:06d}.{epoch}.ndjson"

    def forget_from(self, row: int) -> None:
        """Take back what was said of rows from ``row`` on: a task that died may not have written down the rest."""
        if _logs(self._files, self._part.number):
            self._append([{"forget_from": row}])

    def write(self, rows: pa.RecordBatch, refused: Iterable[tuple[int, str]]) -> None:
        """Keep the rows of ``rows`` (SELECTION_SCHEMA) at the places in ``refused``, each with "code: reason"."""
        now = datetime.now(UTC)
        self._append([_letter(rows, place, reason, now).to_json() for place, reason in refused])

    def write_published(self, rows: Iterable[int]) -> None:
        """Write that rows of the selection, which had failed, are published now."""
        published = list(rows)
        self._append([{"published": published}] if published else [])

    def _append(self, lines: list[dict[str, Any]]) -> None:
        if lines:
            text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
            # In one piece: the task that sends rows of the slice again writes beside the one that goes on with it.
            self._files.append(self._log, text.encode())


def list_dead_letters(
    folder: BackfillFolder, *, limit: int, after: int = -1, preview_bytes: int | None = None
) -> DeadLetterPage:
    """Return up to ``limit`` dead letters after row ``after``, by row; a page ends early at 16 MB of data.

    With ``preview_bytes`` a payload counts for no more than those.
    """
    selection = read_selection(folder.selection)
    found: list[DeadLetter] = []
    size = 0
    for letter in _letters(folder, selection, after):
        length = len(letter.data) if preview_bytes is None else min(preview_bytes, len(letter.data))
        if len(found) == limit or (found and size + length > _PAGE_BYTES):
            return DeadLetterPage(found, found[-1].row if found else after)
        found.append(letter)
        size += length
    return DeadLetterPage(found, None)


def find_dead_letter(folder: BackfillFolder, row: int) -> DeadLetter | None:
    """Return the dead letter of row ``row``; None where it is none, or none any more."""
    letter = next(_letters(folder, read_selection(folder.selection), row - 1), None)
    return letter if letter is not None and letter.row == row else None


def count_dead_letters(folder: BackfillFolder) -> list[DeadLetterReason]:
    """Return the dead letters by code, the most frequent one first; none of those that are published by now."""
    found: dict[str, DeadLetterReason] = {}
    for letter in _letters(folder, read_selection(folder.selection), -1):
        before = found.get(letter.code)
        found[letter.code] = (
            DeadLetterReason(letter.code, 1, letter.row, letter.message_id, letter.reason)
            if before is None
            else replace(before, messages=before.messages + 1)
        )
    return sorted(found.values(), key=lambda reason: (-reason.messages, reason.code))


def find_dead_letters(folder: BackfillFolder, *, rows: Collection[int] = (), code: str | None = None) -> list[int]:
    """Return the rows of the dead letters among ``rows`` (empty: among all) that have ``code`` (None: any)."""
    return [
        letter.row
        for letter in _letters(folder, read_selection(folder.selection), -1)
        if (not rows or letter.row in rows) and code in (None, letter.code)
    ]


def failed_rows(folder: BackfillFolder, number: int) -> list[int]:
    """Return the rows of slice ``number`` that are dead letters, ascending."""
    return sorted(_fold(folder.dead_letters, number))


def slices_with_letters(folder: BackfillFolder, epoch: int | None = None) -> list[int]:
    """Return the numbers of the slices about which some attempt, or attempt ``epoch``, wrote something."""
    names = (name.split(".") for name in folder.dead_letters.list())
    return sorted({int(name[0]) for name in names if epoch is None or int(name[1]) == epoch})


def _letters(folder: BackfillFolder, selection: Selection | None, after: int) -> Iterator[DeadLetter]:
    if selection is None:
        return
    for number in slices_with_letters(folder):
        part = selection.slices[number]
        if part.first_row + part.rows <= after + 1:
            continue
        letters = _fold(folder.dead_letters, number)
        yield from (DeadLetter.from_json(letters[row]) for row in sorted(letters) if row > after)


def _fold(files: Files, number: int) -> dict[int, dict[str, Any]]:
    """Return the lines of the rows of one slice that have failed and have not been published since."""
    letters: dict[int, dict[str, Any]] = {}
    for log in _logs(files, number):
        for text in files.read_log(log).splitlines():
            line = _parse(text)
            if "row" in line:
                letters[line["row"]] = line
            for row in line.get("published", ()):
                letters.pop(row, None)
            if "forget_from" in line:
                letters = {row: kept for row, kept in letters.items() if row < line["forget_from"]}
    return letters


def _logs(files: Files, number: int) -> list[str]:
    """Return the logs of a slice, those of earlier attempts first."""
    found = [name for name in files.list() if name.startswith(f"{number:06d}.")]
    return sorted(found, key=lambda name: int(name.split(".")[1]))


def _parse(text: bytes) -> dict[str, Any]:
    """Return the line, or nothing of one that a killed process or a power cut left unfinished."""
    try:
        line = json.loads(text)
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}


def _letter(rows: pa.RecordBatch, place: int, reason: str, now: datetime) -> DeadLetter:
    row = rows.slice(place, 1).to_pylist()[0]
    code, _, text = reason.partition(": ")
    return DeadLetter(
        row=row["refeed_row"],
        topic=row["topic"],
        message_id=row["message_id"],
        publish_time=render_time(row["publish_time"]),
        ordering_key=row["ordering_key"] or "",
        code=code,
        reason=text,
        at=str(render_time(now)),
        # JSON has no key without text.
        attributes={pair["key"] or "": pair["value"] for pair in row["attributes"] or ()},
        data=row["data"] or b"",
    )
