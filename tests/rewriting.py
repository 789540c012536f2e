"""Rewrites the asserts of all test files once for all processes of a run, which takes longer than to read them.

In a fresh clone each process would rewrite every file that it reads, and each reads all of them. Here each one
rewrites its share before it reads any; pytest keeps the results, as compiled files, for every process.
"""

import sys
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.assertion import rewrite

ROOT: Final = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Rewrite this process's share where it is about to read all files."""
    config = session.config
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode or not reads_all(config):
        return
    number, count = int(worker["workerid"].removeprefix("gw")), int(worker["workercount"])
    for file in sorted(ROOT.rglob("test_*.py"))[number::count]:
        rewrite_asserts(file, config)


def reads_all(config: pytest.Config) -> bool:
    """Whether every file under ``tests`` is read, as for ``make test``."""
    is_of_few = not str(config.getoption("markexpr")).startswith("not ")
    return not is_of_few and any(config.rootpath / each == ROOT for each in config.args)


def rewrite_asserts(file: Path, config: pytest.Config) -> bool:
    """Rewrite a file, and keep the result where pytest looks for it; False where it is there already."""
    folder = rewrite.get_cache_dir(file)
    kept = folder / f"{file.stem}{rewrite.PYC_TAIL}"
    if rewrite._read_pyc(file, kept) is not None or not rewrite.try_makedirs(folder):
        return False
    source, code = rewrite._rewrite_test(file, config)
    rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source, kept)
    return True
