"""Reads only the files that may have a test of a target that selects by a rare marker, as ``make test-kills``.

Reading all of them takes each process of a run longer than most files' tests do. With ``--in-memory`` temporary
files lie in a memory file system: on a disk each fsync takes milliseconds, and removing a PostgreSQL server up to
half a minute.
"""

import gc
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from _pytest.doctest import DoctestModule

_ROOT: Final = Path(__file__).parents[1]
# Few files have one of these.
_RARE: Final = ("kills", "cloud", "browser")
_MEMORY: Final = Path("/dev/shm")
# More than `make test` holds there at most; as much is left for the processes. A container's limit counts, too.
_ROOM_BYTES: Final = 6 << 30
_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--in-memory", action="store_true", help="keep temporary files in memory where there is room")


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Iterator[None]:
    """Run with a temporary folder in memory, and remove it; one that somebody has chosen (``TMPDIR``) stays."""
    if not config.getoption("in_memory") or "TMPDIR" in os.environ or not _has_room():
        return (yield)
    folder = tempfile.mkdtemp(prefix="refeed-tests-", dir=_MEMORY)
    # PostgreSQL's user has its server's folder in it.
    Path(folder).chmod(0o711)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    try:
        return (yield)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _has_room() -> bool:
    if not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _ROOM_BYTES:
        return False
    limit = _LIMIT.read_text().strip() if _LIMIT.exists() else "max"
    known = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free_bytes = int(known["MemAvailable"].split()[0]) << 10
    return free_bytes > 2 * _ROOM_BYTES and (limit == "max" or int(limit) > 2 * _ROOM_BYTES)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect the tests without Python's search for garbage, which takes half of the time and finds hardly any."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        # No later search goes through the modules and the tests again.
        gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore a file of Python that can't have the marker with which the selection (``-m``) begins."""
    marker = str(config.getoption("markexpr")).partition(" ")[0]
    if marker not in _RARE or collection_path.suffix != ".py" or _may_have(collection_path, marker):
        return None
    return True


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Iterator[list[pytest.Collector]]:
    """Look for examples in docstrings only where there is one: the search imports a module."""
    collectors: list[pytest.Collector] = yield
    if any(isinstance(each, DoctestModule) for each in collectors) and ">>> " not in file_path.read_text():
        return [each for each in collectors if not isinstance(each, DoctestModule)]
    return collectors


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test whose file would be ignored where its marker is selected: nobody would run it."""
    marked = {(item.path, marker) for item in items for marker in _RARE if item.get_closest_marker(marker)}
    missed = [f"{path} ({marker})" for path, marker in sorted(marked) if not _may_have(path, marker)]
    if missed:
        raise pytest.UsageError(
            f"No target runs these tests: {', '.join(missed)}. Name the marker in the file, in a conftest.py "
            "above it, or in a module of tests that it imports."
        )


@cache
def _may_have(path: Path, marker: str) -> bool:
    """Whether a file, a module of tests that it imports or a conftest.py above it names the marker."""
    imported = re.findall(r"^from (tests(?:\.\w+)+) import", path.read_text(), re.MULTILINE)
    modules = [_ROOT / f"{name.replace('.', '/')}.py" for name in imported]
    above = [folder / "conftest.py" for folder in path.parents if _ROOT in folder.parents]
    return any(f"mark.{marker}" in each.read_text() for each in (path, *modules, *above) if each.is_file())
