"""Breaks the code in one place at a time, and expects a test to fail each time: ``make mutants``.

Mutants are of two kinds. Those written by hand in ``mutants.toml`` restore a mended fault and name the test that
must fail. ``mutations.py`` generates the others. They meet the tests that cover their lines, the fastest first.
A survivor meets all other tests of its room. A recorded run of the rooms' tests says which test covers what.
All tests run in copies of the tree. The run ends with 1 when a mutant is not noticed.
"""

import argparse
import re
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from tests.guards.mutations import Mutant, MutantError, generate
from tests.guards.recorded import OUTPUT, RECORD_SECONDS, Copy, Record, Verdict

ROOT: Final = Path(__file__).parents[2]
LIST: Final = Path(__file__).parent / "mutants.toml"
RECORD: Final = ".cache/mutants"
COUNT: Final = 120

# A failing test says one of these, unless its mutant names another exception.
_ASSERTIONS: Final = r"AssertionError|assert |Failed: (DID NOT RAISE|Timeout)|hypothesis\.errors"
_FIRST_SECONDS: Final = 60.0
_LAST_SECONDS: Final = 600.0
_MAX_EXCUSED: Final = 0.1


@dataclass(frozen=True)
class Room:
    """Code that mutants are generated in, and the suites that are to notice them."""

    name: str
    code: tuple[str, ...]
    suites: tuple[str, ...]


class MutantList:
    """What ``mutants.toml`` says: mutants by hand, rooms to generate in, and which mutants break nothing."""

    def __init__(self, path: Path = LIST) -> None:
        read = tomllib.loads(path.read_text())
        self.by_hand = [Mutant(**fields) for fields in read.get("mutant", [])]
        self.rooms = [Room(r["name"], tuple(r["code"]), tuple(r["suites"])) for r in read.get("room", [])]
        self.excused: dict[str, str] = {each["id"]: each["reason"] for each in read.get("excused", [])}

    def generated(self, root: Path, count: int, seed: int) -> list[Mutant]:
        """Return as many mutants of the rooms' code, the same ones each time."""
        files = {
            room.name: sorted(str(path.relative_to(root)) for glob in room.code for path in root.glob(glob))
            for room in self.rooms
        }
        return generate(root, files, count, seed)

    def suites(self, file: str) -> tuple[str, ...]:
        return next(room.suites for room in self.rooms if any(Path(file).match(glob) for glob in room.code))


def try_mutant(copy: Copy, mutant: Mutant, listed: MutantList, record: Record | None) -> tuple[bool, str]:
    """Return whether a mutant is noticed, and by which test or why not."""
    try:
        with copy.broken(mutant):
            if mutant.test:
                return _judge(mutant, copy.run([mutant.test]))
            assert record is not None
            return _meet(copy, mutant, listed, record)
    except MutantError as exc:
        return False, str(exc)


def _judge(mutant: Mutant, verdicts: dict[str, Verdict]) -> tuple[bool, str]:
    failed = [verdict for verdict in verdicts.values() if verdict.state != "passed"]
    if not failed:
        return False, "it SURVIVED: its test passes"
    pattern = mutant.fails_with or _ASSERTIONS
    wrong = [v for v in failed if v.state != "failed" or not re.match(pattern, v.message)]
    if len(wrong) == len(failed):
        return False, f"its test does not fail by an assertion: {wrong[0].state}: {wrong[0].message[:OUTPUT]}"
    return True, ""


def _meet(copy: Copy, mutant: Mutant, listed: MutantList, record: Record) -> tuple[bool, str]:
    """Have a mutant meet its tests: those that cover it for a minute, then the rest of its room's."""
    covering = record.tests(mutant, (copy.folder / f"{mutant.file}.kept").read_text())
    rest = [
        test
        for suite in listed.suites(mutant.file)
        for test in sorted(record.seconds, key=record.seconds.__getitem__)
        if test.startswith(suite) and test not in set(covering)
    ]
    ran: Collection[str] = ()
    for tests, seconds in ((covering, _FIRST_SECONDS), ([*covering, *rest], _LAST_SECONDS)):
        wanted = [test for test in tests if test not in ran]
        files = [
            f for f in dict.fromkeys(test.partition("::")[0] for test in wanted) if (copy.folder / f).exists()
        ]
        if not files:
            continue
        ran = copy.run(files, "--exitfirst", "--timeout=60", only=wanted, seconds=seconds)
        for test, verdict in ran.items():
            if verdict.state in {"failed", "error"}:
                return True, f"{test}: {verdict.message.splitlines()[0][:80] if verdict.message else ''}"
    return False, f"it SURVIVED: {len(covering)} tests cover it"


def try_all(
    root: Path, mutants: Sequence[Mutant], listed: MutantList, record: Record | None, *, jobs: int, package: str
) -> dict[str, str]:
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
        named = list(dict.fromkeys(mutant.test for mutant in mutants if mutant.test))
        for name, verdict in copy.run(named, seconds=RECORD_SECONDS).items() if named else ():
            if verdict.state != "passed":
                problems[name] = f"{verdict.state} without any mutant: {verdict.message[:OUTPUT]}"
        copies.put(copy)

        def attempt(mutant: Mutant) -> None:
            mine = copies.get()
            began = time.monotonic()
            try:
                noticed, why = try_mutant(mine, mutant, listed, record)
            finally:
                copies.put(mine)
            with lock:
                took = time.monotonic() - began
                sys.stdout.write(f"{mutant.id:70} {took:5.1f} s  {f'noticed {why}' if noticed else why}\n")
                sys.stdout.flush()
                if not noticed:
                    problems[mutant.id] = why

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(attempt, mutants))
    return problems


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 when a mutant is not noticed, or could not be tried."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--only", default="", help="ids of mutants, with commas between them")
    parser.add_argument("--count", type=int, default=COUNT, help="how many to generate")
    parser.add_argument("--seed", type=int, default=1, help="which of all that could be generated")
    parser.add_argument("--kind", choices=("both", "hand", "generated"), default="both")
    parser.add_argument("--record", action="store_true", help="record anew which test covers which line")
    parser.add_argument("--jobs", type=int, default=2, help="how many to try at a time")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree")
    parser.add_argument("--list", type=Path, default=LIST, help="the mutants")
    parser.add_argument("--package", default="model", help="a package that is imported to see where from")
    chosen = parser.parse_args(arguments)
    began, listed = time.monotonic(), MutantList(chosen.list)
    generated = listed.generated(chosen.root, sys.maxsize if chosen.only else chosen.count, chosen.seed)
    mutants = (listed.by_hand if chosen.kind != "generated" else []) + (generated if chosen.kind != "hand" else [])
    if wanted := {each for each in chosen.only.split(",") if each}:
        if unknown := sorted(wanted - {mutant.id for mutant in mutants}):
            sys.stderr.write(f"There is no mutant {', '.join(unknown)}.\n")
            return 2
        mutants = [mutant for mutant in mutants if mutant.id in wanted]
    else:
        excused = [mutant for mutant in mutants if mutant.id in listed.excused]
        if len(excused) > _MAX_EXCUSED * len(generated):
            sys.stderr.write(f"{len(excused)} of {len(generated)} mutants are excused: more than a tenth.\n")
            return 2
        mutants = [mutant for mutant in mutants if mutant not in excused]
    record = None
    if any(not mutant.test for mutant in mutants):
        folder = chosen.root / RECORD
        if chosen.record or not (folder / "tests.json").exists():
            code = [glob for room in listed.rooms for glob in room.code]
            suites = list(dict.fromkeys(suite for room in listed.rooms for suite in room.suites))
            Record.make(chosen.root, code, suites, folder, chosen.jobs)
        record = Record(folder)
    problems = try_all(chosen.root, mutants, listed, record, jobs=chosen.jobs, package=chosen.package)
    for name, reason in problems.items():
        sys.stdout.write(f"\n{name}: {reason}\n")
    noticed = len(mutants) - sum(mutant.id in problems for mutant in mutants)
    took = time.monotonic() - began
    sys.stdout.write(f"{noticed} of {len(mutants)} mutants noticed in {took:.0f} s\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
