"""The disk of a machine: real files, of which a power cut leaves what file systems promise."""

import errno
import os
import shutil
from pathlib import Path, PosixPath
from types import SimpleNamespace
from typing import Any, Self

from tests.power import File, Folder, Survival, rebuild
from tests.simulation.kernel import Machine, World

# By the machine's folder: a path finds the disk that it is on.
_DISKS: "dict[str, Disk]" = {}


class Disk:
    """The files below ``root``, and what of them is synced.

    Each change is a step of the world, so that a process may be killed before and after it. A full disk takes
    nothing new.
    """

    def __init__(self, world: World, machine: Machine, root: Path) -> None:
        self.world = world
        self.machine = machine
        self._contents = root.with_name(f"{root.name}.contents")
        root.mkdir()
        self.root = DiskPath(root)
        self.folder = Folder(str(root))
        self._opened: dict[int, str] = {}
        # Renames of folders since the last sync that made one durable, old name and new one.
        self._renames: list[tuple[str, str]] = []
        _DISKS[str(root)] = self
        machine.cut = self._cut

    def read(self, folder: Path) -> dict[str, bytes | None]:
        return {
            str(path): path.read_bytes() if path.is_file() else None for path in sorted(Path(folder).rglob("*"))
        }

    def put(self, folder: Path, content: dict[str, bytes | None]) -> None:
        """Have these files in a folder, durably, and no others."""
        shutil.rmtree(Path(folder), ignore_errors=True)
        left = {name: data for name, data in self.read(self.root).items() if name != str(folder)}
        for name, data in ({str(folder): None} | content).items():
            if data is None:
                Path(name).mkdir()
            else:
                Path(name).write_bytes(data)
                os.utime(name, (self.world.unix_seconds, self.world.unix_seconds))
        self._take_for_synced(left | {str(folder): None} | content)

    def close(self) -> None:
        """Forget the disk; its files stay."""
        del _DISKS[str(self.root)]

    def is_full(self) -> bool:
        """Whether it takes nothing new for now."""
        return self.world.lasts("disk full", self, 0.0, 2.0, 30.0)

    def check_room(self) -> None:
        if self.is_full():
            raise OSError(errno.ENOSPC, "No space left on device")

    def fsync(self, descriptor: int) -> None:
        name = self._opened[descriptor]
        self.world.step(f"fsync {Path(name).name}")
        self.folder.sync(name)
        made = [place for place, names in enumerate(self._renames) if name in map(_parent, names)]
        del self._renames[: max(made, default=-1) + 1]

    def rename_folder(self, old: str, new: str) -> None:
        """Rename a folder with all that it holds, in one step that a power cut undoes or leaves."""
        for names in (self.folder.now, self.folder.synced, self.folder.changes):
            _rename_below(names, old, new)
        self._renames.append((old, new))

    def note_open(self, descriptor: int, path: str) -> None:
        self._opened[descriptor] = path

    def _cut(self) -> None:
        left = self.folder.after_a_cut(Survival.CHANCE, self.world.random)
        # A file system keeps the order of these changes: with one of them all later ones are undone.
        undone = self._renames[self.world.random.randint(0, len(self._renames)) :]
        for old, new in reversed(undone):
            if old not in left:
                _rename_below(left, new, old)
        rebuild(left, Path(self.root), self._contents)
        for name in left:
            # Contents are shared by links: a file that is written in place must not change another one.
            _unlink_content(Path(name))
        self._take_for_synced(left)

    def _take_for_synced(self, content: dict[str, bytes | None]) -> None:
        now = {name: None if data is None else File(data, data) for name, data in content.items()}
        self.folder.now, self.folder.synced, self.folder.changes = now, dict(now), {}
        self._opened.clear()
        self._renames.clear()


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _rename_below(names: dict[str, Any], old: str, new: str) -> None:
    for name in [name for name in names if name == old or name.startswith(f"{old}/")]:
        names[new + name[len(old) :]] = names.pop(name)


def _unlink_content(path: Path) -> None:
    if path.is_file():
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)


def disk_of(path: str) -> Disk:
    return next(disk for root, disk in _DISKS.items() if path == root or path.startswith(f"{root}/"))


class DiskPath(PosixPath):
    """A path whose changes its disk sees; what is derived of it is one as well."""

    __slots__ = ()

    @property
    def disk(self) -> Disk:
        return disk_of(str(self))

    def open(self, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        """Open the file; what is written becomes the disk's when it is flushed."""
        if set(mode) & set("wxa+"):
            self.disk.world.step(f"open {self.name}")
            if not self.exists():
                self.disk.check_room()
                self.disk.folder.set(str(self), File())
        if not set(mode) & set("wxa+"):
            return super().open(mode, *arguments, **named)
        # A killed process loses what it has not handed over, so nothing is kept back.
        opened = super().open(mode, 0) if "b" in mode else super().open(mode, *arguments, **named)
        return Written(self, opened)

    def write_text(self, data: str, *_: Any, **__: Any) -> int:
        with self.open("w") as file:
            return int(file.write(data))

    def rename(self, target: Any) -> Self:
        disk, target = self.disk, str(target)
        disk.world.step(f"rename {self.name} to {Path(target).name}")
        is_folder = self.is_dir()
        super().rename(target)
        if is_folder:
            disk.rename_folder(str(self), target)
        else:
            disk.folder.set(target, disk.folder.now[str(self)])
            disk.folder.remove(str(self))
        return type(self)(target)

    replace = rename

    def unlink(self, missing_ok: bool = False) -> None:
        self.disk.world.step(f"unlink {self.name}")
        super().unlink(missing_ok)
        self.disk.folder.remove(str(self))

    def rmdir(self) -> None:
        super().rmdir()
        self.disk.folder.remove(str(self))

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if self.is_dir():
            super().mkdir(mode, exist_ok=exist_ok)
            return
        if parents and not self.parent.exists():
            self.parent.mkdir(parents=True, exist_ok=True)
        self.disk.check_room()
        super().mkdir(mode)
        self.disk.folder.set(str(self), None)


class Written:
    """A file that is open for writing."""

    def __init__(self, path: DiskPath, file: Any) -> None:
        self._path = path
        self._file = file
        path.disk.note_open(file.fileno(), str(path))
        self._process = path.disk.world.task.process
        self._process.files.add(file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: Any) -> int:
        self._path.disk.check_room()
        return int(self._file.write(data))

    def truncate(self, size: int | None = None) -> int:
        return int(self._file.truncate(size))

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        self._file.flush()
        disk = self._path.disk
        file = disk.folder.now.get(str(self._path))
        if file is not None:
            file.now = Path(self._path).read_bytes()

    def close(self) -> None:
        if not self._file.closed:
            self.flush()
            seconds = self._path.disk.world.shown_seconds
            self._file.close()
            self._process.files.discard(self._file)
            os.utime(self._path, (seconds, seconds))


def os_of() -> Any:
    def open_path(path: Any, flags: int) -> int:
        descriptor = os.open(path, flags)
        disk_of(str(path)).note_open(descriptor, str(path))
        return descriptor

    def fsync(descriptor: int) -> None:
        disk_of(str(Path(f"/proc/self/fd/{descriptor}").readlink())).fsync(descriptor)

    def link(source: Any, target: Any) -> None:
        disk = disk_of(str(source))
        disk.world.step(f"link {Path(source).name}")
        disk.check_room()
        os.link(source, target)
        disk.folder.set(str(target), disk.folder.now[str(source)])

    return SimpleNamespace(**{**vars(os), "open": open_path, "fsync": fsync, "link": link})


def shutil_of() -> Any:
    def rmtree(path: Any, ignore_errors: bool = False) -> None:
        if not path.exists() and ignore_errors:
            return
        for found in sorted(path.rglob("*"), reverse=True):
            (found.rmdir if found.is_dir() else found.unlink)()
        path.rmdir()

    def disk_usage(path: Any) -> Any:
        return SimpleNamespace(total=10**12, used=0, free=0 if disk_of(str(path)).is_full() else 10**12)

    return SimpleNamespace(**{**vars(shutil), "rmtree": rmtree, "disk_usage": disk_usage})
