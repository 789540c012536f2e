"""What an attempt has to publish: the slices of the selection, and rows that are sent once more."""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from backfill.plan.options import RunOptions
from backfill.run.dead_letters import failed_rows, slices_with_letters
from backfill.run.folder import BackfillFolder
from backfill.run.progress import SliceCheckpoint
from backfill.run.selection import Selection, SelectionSlice, read_slice
from jobs.files import read_json, write_json
from model.job import JobState

Kind = Literal["selected", "failed", "missing"]
_REPLAYS: Final = "replays"
# Places are kept one after the other, so that a piece reads its own alone.
_PLACE: Final = np.dtype("<i8")
Checkpoints = Mapping[int, SliceCheckpoint]
_Rows = tuple[SelectionSlice, Kind, list[int]]


@dataclass(frozen=True, slots=True)
class Piece:
    """What one task publishes in one go: a slice, or some rows of it once more.

    ``number`` names its checkpoints. The rows of a "failed" or "missing" piece are [first, first + rows) of the
    file of replay ``replay``, as places in the slice.
    """

    number: int
    part: SelectionSlice
    rows: int
    kind: Kind = "selected"
    replay: int = 0
    first: int = 0

    def read(self, folder: BackfillFolder, offset: int = 0) -> pa.RecordBatch:
        """Return the piece's rows from ``offset`` on (SELECTION_SCHEMA).

        Raises:
            CheckpointCorruptError: the selection can't be read.
        """
        if self.kind == "selected":
            return read_slice(folder.selection, self.part, offset)
        places = self.places(folder)[offset:]
        return read_slice(folder.selection, self.part).take(pa.array(places))

    def row(self, folder: BackfillFolder, offset: int) -> int:
        """Return the number in the selection of the piece's row at ``offset``."""
        place = offset if self.kind == "selected" else int(self.places(folder)[offset])
        return self.part.first_row + place

    def places(self, folder: BackfillFolder) -> Any:
        """Return where in its slice the rows of a "failed" or "missing" piece are, ascending."""
        with folder.files.folder(_REPLAYS).reader(f"{self.replay:04d}.i64") as file:
            file.seek(self.first * _PLACE.itemsize)
            return np.frombuffer(file.read(self.rows * _PLACE.itemsize), _PLACE)


Chain = tuple[Piece, ...]


def plan_work(
    folder: BackfillFolder, selection: Selection, options: RunOptions, checkpoints: Checkpoints, epoch: int
) -> list[Piece]:
    """Return the pieces that attempt ``epoch`` is to publish, finished ones too.

    What is to be sent once more is written down at first, so an attempt that dies leaves it to the next one; the
    same attempt finds what it wrote.
    """
    replays = _read_replays(folder, selection)
    if all(replay.epoch != epoch for replay in replays):
        wanted = _failed_again(folder, selection, options, checkpoints, replays)
        asked = zlib.crc32(repr(options.rows).encode()) if options.only == "missing" else 0
        if asked and not _goes_on(folder, replays, asked, epoch):
            wanted += _missing_again(selection, options, checkpoints, wanted)
        if wanted:
            replays.append(
                _write_replay(folder, selection, wanted, replays, _Replay(len(replays), epoch, [], asked))
            )
    again = [piece for replay in replays for piece in replay.pieces]
    if options.only == "failed":
        return again
    return again + [Piece(part.number, part, part.rows) for part in selection.slices]


def link_pieces(pieces: Iterable[Piece], selection: Selection, *, by_key: bool) -> list[Chain]:
    """Return the pieces as chains: one after the other within a chain, chains side by side.

    Slices of one ordering key follow each other, and before a slice comes what is left to send again of it and of
    those before it. Rows without an order are chains of one piece.
    """
    if not by_key:
        return [(piece,) for piece in pieces]
    # A chain is named by the slice that begins it.
    begins: list[int] = []
    for part in selection.slices:
        begins.append(begins[-1] if part.continues and begins else part.number)

    def place(piece: Piece) -> tuple[int, bool, int, int]:
        return begins[piece.part.number], piece.kind == "selected", piece.part.number, piece.number

    ordered = sorted(pieces, key=place)
    return [tuple(chain) for _, chain in groupby(ordered, key=lambda piece: begins[piece.part.number])]


@dataclass(frozen=True, slots=True)
class _Replay:
    """Rows that attempt ``epoch`` began to send again; ``asked`` tells requests for missing rows apart."""

    number: int
    epoch: int
    pieces: list[Piece]
    asked: int = 0


def _failed_again(
    folder: BackfillFolder,
    selection: Selection,
    options: RunOptions,
    checkpoints: Checkpoints,
    replays: Sequence[_Replay],
) -> list[_Rows]:
    """Return the dead letters that no earlier attempt has left for this one to send, slice by slice."""
    waiting = {
        int(row)
        for replay in replays
        for piece in replay.pieces
        if not _is_done(checkpoints, piece)
        for row in piece.places(folder) + piece.part.first_row
    }
    asked = set(options.rows)
    wanted: list[_Rows] = []
    for number in slices_with_letters(folder):
        part = selection.slices[number]
        rows = [row for row in failed_rows(folder, number) if row not in waiting]
        rows = [row for row in rows if _is_behind(checkpoints, part, row)]
        if options.only == "missing" or asked:
            rows = [row for row in rows if row in asked]
        if rows:
            wanted.append((part, "failed", rows))
    return wanted


def _missing_again(
    selection: Selection, options: RunOptions, checkpoints: Checkpoints, failed: Iterable[_Rows]
) -> list[_Rows]:
    """Return the missing rows that were published once; what was not is still to come with its slice."""
    rows = sorted(set(options.rows) - {row for _, _, failed_rows in failed for row in failed_rows})
    starts = np.array([part.first_row for part in selection.slices], np.int64)
    numbers = np.searchsorted(starts, np.array(rows, np.int64), side="right") - 1
    wanted: list[_Rows] = []
    for number, pairs in groupby(zip(numbers.tolist(), rows, strict=True), key=lambda pair: pair[0]):
        part = selection.slices[number]
        sent = [row for _, row in pairs if _is_behind(checkpoints, part, row)]
        if sent:
            wanted.append((part, "missing", sent))
    return wanted


def _goes_on(folder: BackfillFolder, replays: Sequence[_Replay], asked: int, epoch: int) -> bool:
    """Whether the attempt goes on with rows that an earlier one, which died or paused, began to send."""
    if not replays or replays[-1].asked != asked:
        return False
    outcomes = [folder.read_outcome(earlier) for earlier in range(replays[-1].epoch, epoch)]
    return all(outcome is None or outcome.state is JobState.PAUSED for outcome in outcomes)


def _is_behind(checkpoints: Checkpoints, part: SelectionSlice, row: int) -> bool:
    """Whether the slice has got past ``row``; if not, it sends the row again by itself."""
    reached = checkpoints.get(part.number)
    return reached is not None and row < part.first_row + reached.offset


def _is_done(checkpoints: Checkpoints, piece: Piece) -> bool:
    reached = checkpoints.get(piece.number)
    return reached is not None and reached.done


def _write_replay(
    folder: BackfillFolder, selection: Selection, wanted: list[_Rows], before: Sequence[_Replay], replay: _Replay
) -> _Replay:
    """Write ``replay`` down with the pieces that ``wanted`` makes, numbered after all others."""
    following = len(selection.slices) + sum(len(earlier.pieces) for earlier in before)
    places: list[int] = []
    for part, kind, rows in wanted:
        number = following + len(replay.pieces)
        replay.pieces.append(Piece(number, part, len(rows), kind, replay.number, len(places)))
        places += [row - part.first_row for row in rows]
    files = folder.files.folder(_REPLAYS)
    files.make()
    files.write(f"{replay.number:04d}.i64", np.array(places, _PLACE).tobytes())
    # The rows first: a replay is there once its list is.
    pieces = [{**asdict(piece), "part": piece.part.number} for piece in replay.pieces]
    listed = {"epoch": replay.epoch, "asked": replay.asked, "pieces": pieces}
    write_json(files, f"{replay.number:04d}.json", listed)
    return replay


def _read_replays(folder: BackfillFolder, selection: Selection) -> list[_Replay]:
    found: list[_Replay] = []
    files = folder.files.folder(_REPLAYS)
    for name in (name for name in files.list() if name.endswith(".json")):
        replay = read_json(files, name)
        pieces = [Piece(**{**piece, "part": selection.slices[piece["part"]]}) for piece in replay["pieces"]]
        found.append(_Replay(len(found), replay["epoch"], pieces, replay["asked"]))
    return found
