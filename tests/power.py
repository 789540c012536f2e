"""Power cuts: records a program's writes and syncs, and rebuilds its folder as a cut at any moment may leave it.

The model is the contract of file systems: what ext4 and XFS promise, and not what they mostly do. A file's content
survives as it was at its last fsync. What was written since may be there, be cut short or be missing; what was
synced before an append stays whole. A name (created, linked, renamed, removed) survives as it was at the last
fsync of its folder; changed since, it may be old or new, each name by itself.
"""

import hashlib
import os
import random
import re
import shutil
import subprocess
from codecs import escape_decode
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Final

_CALLS: Final = (
    "openat creat write pwrite64 writev pwritev rename renameat renameat2 link linkat unlink unlinkat rmdir mkdir "
    "mkdirat symlink symlinkat fsync fdatasync sync syncfs ftruncate truncate fallocate copy_file_range sendfile"
)
_LINE = re.compile(rb"^\d+ +(\w+)\((.*)\) += (\d+)", re.DOTALL)
_TEXT = rb'"((?:[^"\\]|\\.)*)"'
_PLACE = re.compile(rb"(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?" + _TEXT)
# A pwrite64 has its place in the file as well.
_WRITE = re.compile(rb"(\d+)<([^>]*)>, " + _TEXT + rb", \d+(?:, (\d+))?")
_DESCRIPTOR = re.compile(rb"(\d+)<([^>]*)>")


class Survival(Enum):
    """What outlives the cut of what was not synced."""

    NOTHING = "nothing"
    EVERYTHING = "everything"
    NAMES = "names without contents"
    CHANCE = "chance"


@dataclass(eq=False, slots=True)
class File:
    """A file whatever its names: its bytes now, and those that a power cut leaves."""

    now: bytes = b""
    synced: bytes = b""

    def survivor(self, survival: Survival, dice: random.Random) -> bytes:
        if survival is Survival.EVERYTHING:
            return self.now
        if survival is Survival.CHANCE and self.now != self.synced:
            # A write after what is synced leaves that whole, however short the file is cut.
            kept = len(self.synced) if self.now.startswith(self.synced) else 0
            return dice.choice((self.now, self.synced, self.now[: (kept + len(self.now)) // 2]))
        return self.synced


@dataclass(slots=True)
class Folder:
    """The folder ``root`` as its program sees it, with all that a power cut may make of it."""

    root: str
    now: dict[str, File | None] = field(default_factory=dict)
    synced: dict[str, File | None] = field(default_factory=dict)
    changes: dict[str, list[File | type[KeyError] | None]] = field(default_factory=dict)

    def set(self, path: str, entry: File | None) -> None:
        """Give a name to a file, or to a folder (None)."""
        self.now[path] = entry
        self.changes.setdefault(path, []).append(entry)

    def remove(self, path: str) -> None:
        self.now.pop(path, None)
        self.changes.setdefault(path, []).append(KeyError)

    def sync(self, path: str) -> None:
        """Make a file's content durable, or the names in a folder."""
        entry = self.now.get(path)
        if entry is not None:
            entry.synced = entry.now
            return
        for name in [name for name in self.changes if _parent(name) == path]:
            del self.changes[name]
            self.synced.pop(name, None)
            if name in self.now:
                self.synced[name] = self.now[name]

    def after_a_cut(self, survival: Survival, dice: random.Random) -> dict[str, bytes | None]:
        """Return the names and contents that are left; None is a folder."""
        left: dict[str, bytes | None] = {}
        contents: dict[int, bytes] = {}
        for path in sorted(self.synced.keys() | self.changes.keys()):
            choices = [self.synced.get(path, KeyError), *self.changes.get(path, ())]
            entry = {Survival.NOTHING: choices[0], Survival.CHANCE: dice.choice(choices)}.get(
                survival, choices[-1]
            )
            parent = _parent(path)
            if entry is KeyError or (parent != self.root and left.get(parent, b"") is not None):
                continue
            if isinstance(entry, File):
                # One content, whatever the number of its names.
                left[path] = contents.setdefault(id(entry), entry.survivor(survival, dice))
            else:
                left[path] = None
        return left


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment of a program's life: the call it made last, and the marks that it has written by then."""

    call: str
    marks: tuple[str, ...]
    folder: Folder


def record(argv: list[str], root: Path, marks: Path, environment: dict[str, str]) -> Iterator[Moment]:
    """Run a program and yield its moments, each only until the next is asked for.

    The program writes below ``root``, and a line to ``marks`` for each thing that it has promised since.
    """
    trace = marks.with_suffix(".trace")
    subprocess.run(
        [
            *("strace", "-f", "-y", "-s", "100000000", "-o", str(trace)),
            *("-e", f"trace={_CALLS.replace(' ', ',')}", *argv),
        ],
        check=True,
        env=environment,
        timeout=120,
    )
    yield from replay(trace, root, marks)


def replay(trace: Path, root: Path, marks: Path) -> Iterator[Moment]:
    """Yield the moments of a program that ``strace -f -y`` recorded.

    Raises:
        ValueError: a call on ``root`` or ``marks`` can't be read; left out, it would look like a loss.
    """
    yield from _Replay(str(root), str(marks)).moments(trace)


def can_record() -> bool:
    """Whether strace is here and may trace."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-o", "/dev/null", "true"], check=False, capture_output=True).returncode == 0


def rebuild(left: dict[str, bytes | None], root: Path, contents: Path) -> None:
    """Make ``root`` what a power cut left; equal files are links to one in the folder ``contents``."""
    root.mkdir(parents=True, exist_ok=True)
    contents.mkdir(exist_ok=True)
    kept = {path: _keep(content, contents) for path, content in left.items() if content is not None}
    for folder, folders, files in _walk(root):
        for name in files:
            path = folder / name
            if str(path) not in kept or not path.samefile(kept[str(path)]):
                path.unlink()
        for name in folders:
            if left.get(str(folder / name), b"") is not None:
                (folder / name).rmdir()
    for path, content in left.items():
        if content is None:
            Path(path).mkdir(parents=True, exist_ok=True)
        elif not Path(path).exists():
            Path(path).hardlink_to(kept[path])


def _keep(content: bytes, contents: Path) -> Path:
    path = contents / hashlib.sha256(content).hexdigest()
    if not path.exists():
        path.write_bytes(content)
    return path


def _walk(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    for folder, folders, files in os.walk(root, topdown=False):
        yield Path(folder), folders, files


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    paths: tuple[str, ...]
    descriptor: int = -1
    text: bytes = b""
    flags: str = ""
    # Where a write begins, None at the end.
    offset: int | None = None


class _Replay:
    def __init__(self, root: str, marks: str) -> None:
        self._folder = Folder(root)
        self._marks_path = marks
        self._marks: tuple[str, ...] = ()
        self._open: dict[int, File | None] = {}

    def moments(self, trace: Path) -> Iterator[Moment]:
        calls = [call for line in _lines(trace) if (call := self._parse(line)) is not None]
        for call, following in zip(calls, [*calls[1:], None], strict=True):
            self._play(call)
            # A file is written in many pieces; the moments between them are those of a content cut short.
            is_piece = following is not None and (call.name, call.paths) == (following.name, following.paths)
            if call.name != "openat" and not (call.name == "write" and is_piece):
                yield Moment(f"{call.name} {' '.join(call.paths)}", self._marks, self._folder)

    def _parse(self, line: bytes) -> _Call | None:
        """Return a call that concerns the folder or the marks, None for another."""
        found = _LINE.match(line)
        if found is None:
            return None
        name, arguments, result = found[1].decode(), found[2], int(found[3])
        call = None
        if name in ("write", "pwrite64") and (place := _WRITE.fullmatch(arguments)) is not None:
            call = self._call("write", [place[2]], int(place[1]), _unescape(place[3])[:result])
            if call is not None and name == "pwrite64":
                call = replace(call, offset=int(place[4]))
        elif name in ("fsync", "fdatasync") and (place := _DESCRIPTOR.fullmatch(arguments)) is not None:
            call = self._call(name, [place[2]], int(place[1]))
        elif name in ("openat", "unlink", "unlinkat", "rmdir", "mkdir", "rename", "link", "linkat"):
            places = [_join(at, _unescape(text)) for at, text in _PLACE.findall(arguments)]
            flags = arguments.rpartition(b'"')[2].decode()
            call = self._call(name, places, result if name == "openat" else -1, flags=flags)
        elif self._folder.root.encode() in arguments or self._marks_path.encode() in arguments:
            raise ValueError(f"the recorder can't read {name}: {line[:300]!r}")
        return call

    def _call(
        self, name: str, paths: list[bytes], descriptor: int = -1, text: bytes = b"", flags: str = ""
    ) -> _Call | None:
        decoded = tuple(path.decode() for path in paths)
        ours = (self._folder.root, f"{self._folder.root}/", self._marks_path)
        return _Call(name, decoded, descriptor, text, flags) if decoded[0].startswith(ours) else None

    def _play(self, call: _Call) -> None:
        folder, path = self._folder, call.paths[0]
        if path == self._marks_path:
            if call.name == "write":
                self._marks = (*self._marks, *call.text.decode().splitlines())
        elif call.name == "openat":
            self._opened(call)
        elif call.name == "write":
            file = self._open[call.descriptor]
            assert file is not None
            start = len(file.now) if call.offset is None else call.offset
            file.now = file.now[:start].ljust(start, b"\0") + call.text + file.now[start + len(call.text) :]
        elif call.name in ("fsync", "fdatasync"):
            folder.sync(path)
        elif call.name == "mkdir":
            folder.set(path, None)
        elif call.name in ("link", "linkat"):
            folder.set(call.paths[1], folder.now[path])
        elif call.name == "rename":
            folder.set(call.paths[1], folder.now[path])
            folder.remove(path)
        else:
            folder.remove(path)

    def _opened(self, call: _Call) -> None:
        path = call.paths[0]
        if "O_CREAT" in call.flags and path not in self._folder.now:
            self._folder.set(path, File())
        if "O_TRUNC" in call.flags and (file := self._folder.now[path]) is not None:
            file.now = b""
        self._open[call.descriptor] = self._folder.now.get(path)


def _lines(trace: Path) -> Iterator[bytes]:
    """Yield the calls that were answered, in the order of their answers."""
    begun: dict[bytes, bytes] = {}
    for line in trace.read_bytes().splitlines():
        thread = line.split(b" ", 1)[0]
        if line.endswith(b" <unfinished ...>"):
            begun[thread] = line.removesuffix(b" <unfinished ...>")
        elif (rest := re.match(rb"\d+ +<\.\.\. \w+ resumed>", line)) is not None:
            yield begun.pop(thread) + line[rest.end() :]
        else:
            yield line


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _join(folder: bytes, path: bytes) -> bytes:
    return path if path.startswith(b"/") else folder + b"/" + path


def _unescape(text: bytes) -> bytes:
    decoded, _ = escape_decode(text)
    assert isinstance(decoded, bytes)
    return decoded
