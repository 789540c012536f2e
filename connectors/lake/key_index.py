"""Which partitions an entity's key may lie in, found without reading the table.

A log-structured index beside the table: sorted runs of (hash of the key, day). It answers with a superset: what
it names may have moved on, what it does not name is in no partition. Looking a key up touches a few pages of
each run, so its cost follows the number of keys and not the size of the table.
"""

import copy
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from connectors.lake.errors import our_errors
from connectors.lake.objects import is_bucket, local_path, open_objects
from connectors.lake.reading import open_files
from model.errors import MergeOvertakenError

Hashes = npt.NDArray[np.uint64]
Days = npt.NDArray[np.int32]

FOLDER: Final = "_refeed_index"
# A day that is null; no date is that early.
NO_DAY: Final = -(1 << 31)
# A run is merged into its elder when it has grown to this part of it: each entry is rewritten a few times in all.
_MERGE_AT: Final = 0.25
_LEFTOVER_SECONDS: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class KeyDays:
    """Pairs of a key's hash and a day (days since 1970, or NO_DAY), one element each."""

    hashes: Hashes
    days: Days

    def sorted(self) -> "KeyDays":
        """Return the pairs by hash then day, each once."""
        order = np.argsort(self.hashes)
        hashes, days = self.hashes[order], self.days[order]
        again = np.flatnonzero(hashes[1:] == hashes[:-1])
        if not len(again):
            return KeyDays(hashes, days)
        # Few keys come twice: these alone are sorted by day.
        twice = np.zeros(len(hashes), dtype=np.bool_)
        twice[again] = twice[again + 1] = True
        days[twice] = days[twice][np.lexsort((days[twice], hashes[twice]))]
        fresh = np.ones(len(hashes), dtype=np.bool_)
        fresh[1:] = (hashes[1:] != hashes[:-1]) | (days[1:] != days[:-1])
        return KeyDays(hashes[fresh], days[fresh])


def join(parts: list[KeyDays]) -> KeyDays:
    """Return all pairs of ``parts``, sorted, each once."""
    if not parts:
        return KeyDays(np.empty(0, np.uint64), np.empty(0, np.int32))
    return KeyDays(np.concatenate([p.hashes for p in parts]), np.concatenate([p.days for p in parts])).sorted()


class KeyIndex:
    """One state of the index of the table at ``table_uri``: the one that a commit of the table named ``number``.

    States are never changed: a merge writes a new one and names it in its commit, so the state of a merge that
    loses to another is never read. 0 is the empty state of a table without rows. ``key`` lists the columns whose
    values are hashed; a state that was written for other columns counts as lost.
    """

    def __init__(self, table_uri: str, number: int, key: Sequence[str]) -> None:
        self._key = list(key)
        self._objects = open_objects(table_uri)
        self._folder = f"{table_uri}/{FOLDER}"
        self._beside = open_objects(self._folder)
        self.number = number
        self._runs = self._read_manifest() if number else []

    @property
    def is_lost(self) -> bool:
        """Whether a file of this state is gone, or its key is another; only :meth:`rebuild` may be called then."""
        return self._runs is None

    @property
    def is_empty(self) -> bool:
        """Whether no key is in it."""
        return self._runs == []

    def find(self, hashes: Hashes) -> KeyDays:
        """Return the days that the keys of ``hashes`` (sorted) may lie in.

        Raises:
            MergeOvertakenError: a newer state has replaced this one.
        """
        found = []
        for name in self._runs or ():
            run = self._open(name)
            first = np.searchsorted(run.hashes, hashes, side="left")
            last = np.searchsorted(run.hashes, hashes, side="right")
            counts = last - first
            if counts.any():
                starts = np.repeat(first - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
                places = starts + np.arange(int(counts.sum()))
                found.append(KeyDays(np.asarray(run.hashes[places]), np.asarray(run.days[places])))
        return join(found)

    def add(self, pairs: KeyDays) -> "KeyIndex":
        """Return a new state that has ``pairs`` too; small runs are merged into larger ones on the way.

        Raises:
            MergeOvertakenError: a newer state has replaced this one.
        """
        held, kept = pairs.sorted(), list(self._runs or ())
        while kept and len(held.hashes) >= _MERGE_AT * _count(kept[-1]):
            elder = self._open(kept.pop())
            held = join([KeyDays(np.asarray(elder.hashes), np.asarray(elder.days)), held])
        return self._publish([*kept, self._write(held)])

    def rebuild(self, pairs: KeyDays) -> "KeyIndex":
        """Return a new state that has ``pairs`` and nothing else: a lost index is built from it."""
        return self._publish([self._write(pairs.sorted())] if len(pairs.hashes) else [])

    def forget(self, successor: "KeyIndex") -> None:
        """Delete what ``successor``, whose commit is in, no longer uses, and what crashes left behind long ago."""
        used = {_manifest(successor.number), *(successor._runs or ())}  # noqa: SLF001 - of its own class
        mine = {_manifest(self.number), *(self._runs or ())}
        with our_errors("cleaning the index of keys"):
            now = self._objects.now()
            for name, written_at in self._beside.times().items():
                if name not in used and (name in mine or now - written_at > _LEFTOVER_SECONDS):
                    self._beside.delete(name)

    def _publish(self, runs: list[str]) -> "KeyIndex":
        # No clock and no count: merges that race begin from the same state.
        number = uuid.uuid4().int >> 66
        content = json.dumps({"key": self._key, "runs": runs}).encode()
        with (
            our_errors("writing the index of keys"),
            self._objects.writing(f"{FOLDER}/{_manifest(number)}") as written,
        ):
            written.stream.write(content)
        made = copy.copy(self)
        made.number, made._runs = number, runs  # noqa: SLF001 - of its own class
        return made

    def _write(self, pairs: KeyDays) -> str:
        name = f"{uuid.uuid4().hex}-{len(pairs.hashes)}.run"
        with our_errors("writing the index of keys"), self._objects.writing(f"{FOLDER}/{name}") as written:
            written.stream.write(pa.py_buffer(np.ascontiguousarray(pairs.hashes)))
            written.stream.write(pa.py_buffer(np.ascontiguousarray(pairs.days)))
        return name

    def _open(self, name: str) -> KeyDays:
        """Return a run, mapped into memory where its file is local."""
        count, path = _count(name), f"{self._folder}/{name}"
        raw: Any
        with our_errors("reading the index of keys"):
            try:
                if is_bucket(path):
                    with open_files([path]) as files:
                        raw = np.frombuffer(files.read(path), dtype=np.uint8)
                else:
                    raw = np.memmap(local_path(path), dtype=np.uint8, mode="r")
            except FileNotFoundError as exc:
                raise MergeOvertakenError(f"Another merge has replaced {name} in the index of keys.") from exc
        return KeyDays(raw[: count * 8].view(np.uint64), raw[count * 8 :].view(np.int32))

    def _read_manifest(self) -> list[str] | None:
        with our_errors("reading the index of keys"):
            stored = self._beside.read(_manifest(self.number))
            if stored is None:
                return None
            manifest = json.loads(stored.content)
            runs = list(manifest["runs"])
            # Without one of the files each merge would take another for quicker, for ever.
            is_whole = not runs or set(runs) <= set(self._beside.list())
        # An early Refeed did not write the key down.
        return runs if is_whole and manifest.get("key") == self._key else None


def _manifest(number: int) -> str:
    return f"{number}.json"


def _count(name: str) -> int:
    return int(name.rpartition("-")[2].removesuffix(".run"))
