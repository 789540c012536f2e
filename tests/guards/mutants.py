"""Breaks the code in one place at a time, and expects a test to fail each time: ``make mutants``.

Each mutant in ``mutants.toml`` brings a mended fault back. Its test runs in a copy of the tree, so that the tree
itself is never broken. A mutant that its test does not notice, or whose old text is no longer there exactly once,
ends the run with 1.
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final
from xml.etree import ElementTree as ET

ROOT: Final = Path(__file__).parents[2]
MUTANTS: Final = Path(__file__).parent / "mutants.toml"

# A failing test says one of these, unless its mutant names another exception.
_ASSERTIONS: Final = r"AssertionError|assert |Failed: (DID NOT RAISE|Timeout)|hypothesis\.errors"
_TEST_SECONDS: Final = 600.0
_OUTPUT: Final = 1500


class MutantError(Exception):
    """A mutant can't be made, or says nothing."""


@dataclass(frozen=True)
class Mutant:
    """One fault that is brought back; ``fails_with`` matches the error of its test where that is no assertion."""

    id: str
    item: str
    fault: str
    file: str
    old: str
    new: str
    test: str
    fails_with: str = _ASSERTIONS

    def render(self, text: str) -> str:
        """Return the file's text with the fault in it.

        Raises:
            MutantError: the old text is not there exactly once.
        """
        if (found := text.count(self.old)) != 1:
            raise MutantError(f"its old text is {found} times in {self.file}, not once")
        return text.replace(self.old, self.new)


def read_mutants(path: Path = MUTANTS) -> list[Mutant]:
    """Return every mutant of the list."""
    return [Mutant(**fields) for fields in tomllib.loads(path.read_text())["mutant"]]


@dataclass(frozen=True)
class Verdict:
    """How one test ended: ``state`` is passed, failed, error, or skipped; ``message`` is its first error's."""

    state: str
    message: str


class Copy:
    """The tree in a folder of its own, which a test's process imports instead of the tree."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            check=True,
        )
        for name in listed.stdout.decode().split("\0"):
            if name and (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)
        # Tests look there for the programs that are installed beside Python.
        if (root / ".venv").exists():
            (folder / ".venv").symlink_to(root / ".venv")
        # The virtual environment's editable install comes after this on the path of imports.
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(folder),
            "PYTHONPYCACHEPREFIX": str(folder / ".pycache"),
        }

    def check(self, package: str) -> None:
        """See that a test would import the copy's package.

        Raises:
            MutantError: it would import another one.
        """
        script = f"import {package}; print({package}.__file__ or list({package}.__path__)[0])"
        done = subprocess.run(
            [sys.executable, "-c", script],
            # Tests start processes in other folders.
            cwd="/",
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if not Path(done.stdout.strip() or "/").is_relative_to(self.folder):
            raise MutantError(f"{package} is imported from {done.stdout.strip()}{done.stderr}, not {self.folder}")

    @contextlib.contextmanager
    def broken(self, mutant: Mutant) -> Iterator[None]:
        """Have the mutant's fault in the copy for as long as the block runs.

        Raises:
            MutantError: the file or its old text is not there.
        """
        path, kept = self.folder / mutant.file, self.folder / f"{mutant.file}.kept"
        if not path.exists():
            raise MutantError(f"there is no {mutant.file}")
        text = mutant.render(path.read_text())
        path.rename(kept)
        try:
            path.write_text(text)
            yield
        finally:
            path.unlink()
            kept.rename(path)

    def run(self, *tests: str) -> dict[str, Verdict]:
        """Run tests and return how each ended, by class and name in pytest's report."""
        with tempfile.TemporaryDirectory(prefix="refeed-mutant-report-") as folder:
            report = Path(folder, "report.xml")
            command = [
                *(sys.executable, "-m", "pytest", "--quiet", "--tb=short", "-p", "no:cacheprovider"),
                f"--basetemp={folder}/tmp",
                f"--junitxml={report}",
                *tests,
            ]
            try:
                done = subprocess.run(
                    command,
                    cwd=self.folder,
                    env=self.environment,
                    capture_output=True,
                    text=True,
                    timeout=_TEST_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired as exc:
                raise MutantError(f"its test takes more than {_TEST_SECONDS:.0f} s") from exc
            if not report.exists():
                raise MutantError(f"pytest wrote no report: {(done.stdout + done.stderr)[-_OUTPUT:]}")
            found = {
                f"{case.get('classname')}::{case.get('name')}": _verdict_of(case)
                for case in ET.parse(report).iter("testcase")
            }
            if not found:
                raise MutantError(f"no test ran: {(done.stdout + done.stderr)[-_OUTPUT:]}")
            return found


def try_mutant(copy: Copy, mutant: Mutant) -> str | None:
    """Run a mutant's test on it; return None when the test failed as it should, else the reason why it did not."""
    try:
        with copy.broken(mutant):
            verdicts = list(copy.run(mutant.test).values())
    except MutantError as exc:
        return str(exc)
    failed = [verdict for verdict in verdicts if verdict.state != "passed"]
    if not failed:
        return "it SURVIVED: its test passes"
    wrong = [v for v in failed if v.state != "failed" or not re.match(mutant.fails_with, v.message)]
    if len(wrong) == len(failed):
        return f"its test does not fail by an assertion: {wrong[0].state}: {wrong[0].message[:_OUTPUT]}"
    return None


def try_all(root: Path, mutants: Sequence[Mutant], *, jobs: int, package: str) -> dict[str, str]:
    """Try every mutant, several at a time, and return the reasons of those that no test notices, by id."""
    problems: dict[str, str] = {}
    lock = threading.Lock()
    copies: SimpleQueue[Copy] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="refeed-mutants-") as folder:
        for number in range(jobs):
            copies.put(Copy(root, Path(folder, str(number))))
        copy = copies.get()
        copy.check(package)
        # A test that fails anyway would say nothing.
        sound = copy.run(*dict.fromkeys(mutant.test for mutant in mutants))
        copies.put(copy)
        for name, verdict in sound.items():
            if verdict.state != "passed":
                problems[name] = f"{verdict.state} without any mutant: {verdict.message[:_OUTPUT]}"

        def attempt(mutant: Mutant) -> None:
            mine = copies.get()
            began = time.monotonic()
            try:
                reason = try_mutant(mine, mutant)
            finally:
                copies.put(mine)
            with lock:
                took = time.monotonic() - began
                sys.stdout.write(f"{mutant.item:>4} {mutant.id:32} {took:5.1f} s  {reason or 'noticed'}\n")
                sys.stdout.flush()
                if reason is not None:
                    problems[mutant.id] = reason

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(attempt, mutants))
    return problems


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 when a mutant is not noticed, or could not be tried."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--only", default="", help="ids of mutants, with commas between them")
    parser.add_argument("--jobs", type=int, default=2, help="how many to try at a time")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree")
    parser.add_argument("--list", type=Path, default=MUTANTS, help="the mutants")
    parser.add_argument("--package", default="model", help="a package that is imported to see where from")
    chosen = parser.parse_args(arguments)
    mutants = read_mutants(chosen.list)
    if wanted := {each for each in chosen.only.split(",") if each}:
        if unknown := sorted(wanted - {mutant.id for mutant in mutants}):
            sys.stderr.write(f"There is no mutant {', '.join(unknown)}.\n")
            return 2
        mutants = [mutant for mutant in mutants if mutant.id in wanted]
    problems = try_all(chosen.root, mutants, jobs=chosen.jobs, package=chosen.package)
    for name, reason in problems.items():
        sys.stdout.write(f"\n{name}: {reason}\n")
    noticed = len(mutants) - sum(mutant.id in problems for mutant in mutants)
    sys.stdout.write(f"{noticed} of {len(mutants)} mutants noticed\n")
    return 1 if problems else 0


def _verdict_of(case: ET.Element) -> Verdict:
    for state, tag in (("error", "error"), ("failed", "failure"), ("skipped", "skipped")):
        if (found := case.find(tag)) is not None:
            return Verdict(state, found.get("message") or found.text or "")
    return Verdict("passed", "")


if __name__ == "__main__":
    sys.exit(main())
