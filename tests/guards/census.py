"""Which tests hold what Refeed can do and what it promises: ``make census``.

``capabilities.toml`` names them. A fault is a capability or a promise without its test, and a room that grew
without a reason. Fewer tests, commands or lines are none.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
LIST: Final = Path(__file__).parent / "capabilities.toml"
MUTANTS: Final = Path(__file__).parent / "mutants.toml"
OVERVIEW: Final = ROOT / "docs" / "overview.md"
PAGE: Final = ROOT / "docs" / "explanation" / "promises.md"

_HEAD: Final = """\
# The tests of each promise

This page lists the tests for [what Refeed promises](../overview.md#what-refeed-promises) and
[what each component must do](../overview.md#what-each-component-must-do). If the code breaks a promise, a test of
this promise fails. A mutant is a fault that `make mutants` puts into a copy of the code. For each mutant, at least
one test must fail. `make census` writes this page from `tests/guards/capabilities.toml`.

The column "tests" has the pytest id of each test.
"""


@dataclass(frozen=True)
class Holding:
    """A capability or a promise, the tests that hold it, and the mutants that show that they do."""

    name: str
    tests: tuple[str, ...]
    mutants: tuple[str, ...] = ()


@dataclass(frozen=True)
class Census:
    """The list: capabilities, the promises of each component, and how many lines a room may have."""

    capabilities: list[Holding]
    promises: dict[str, list[Holding]]
    rooms: dict[str, int]

    @classmethod
    def read(cls, path: Path = LIST) -> "Census":
        """Read the list.

        Raises:
            ValueError: a room's growth has no reason.
        """
        listed = tomllib.loads(path.read_text())
        rooms = dict(listed["rooms"])
        for growth in listed.get("growth", []):
            if not str(growth.get("why", "")).strip():
                raise ValueError(f"{path.name}: {growth} has no reason (why)")
            rooms[growth["room"]] += growth["lines"]
        promises: dict[str, list[Holding]] = {}
        for each in listed["promises"]:
            holding = Holding(each["says"], tuple(each["tests"]), tuple(each.get("mutants", ())))
            promises.setdefault(each["of"], []).append(holding)
        return cls([Holding(name, tuple(ids)) for name, ids in listed["capabilities"].items()], promises, rooms)

    def holdings(self) -> Iterator[Holding]:
        """Yield every capability and every promise, which then has its component's name before it."""
        yield from self.capabilities
        for component, promises in self.promises.items():
            for each in promises:
                yield Holding(f"{component}: {each.name}", each.tests, each.mutants)

    def tests(self) -> list[str]:
        """Return the id of every test of the list, once."""
        return sorted({test for holding in self.holdings() for test in holding.tests})


def read_promises(page: str) -> dict[str, list[str]]:
    """Return what docs/overview.md promises, by component; ``Refeed`` keeps those of its table."""
    _, _, rest = page.partition("## What Refeed promises\n")
    table, _, components = rest.partition("## What each component must do\n")
    rows = re.findall(r"^\| (\w[^|]*) \| (\w[^|]*) \|", table.partition("\n## ")[0], re.MULTILINE)
    found = {"Refeed": [f"{name}: {where}" for name, where in rows if name != "promise"]}
    for part in re.split(r"^(?=\*\*)", components.partition("\n## ")[0], flags=re.MULTILINE)[1:]:
        bullets = re.split(r"^- ", part, flags=re.MULTILINE)[1:]
        found[part[2:].partition("**")[0]] = [" ".join(bullet.split()) for bullet in bullets]
    return found


def find_faults(census: Census, root: Path = ROOT) -> list[str]:
    """Return a sentence for each capability or promise without its test, and for each room that grew."""
    mutants = set(re.findall(r'^id = "(.+)"$', (root / MUTANTS.relative_to(ROOT)).read_text(), re.MULTILINE))
    return [
        *(fault for holding in census.holdings() for fault in _faults_of(holding, mutants, root)),
        *_faults_of_promises(census, read_promises((root / OVERVIEW.relative_to(ROOT)).read_text())),
        *_faults_of_rooms(census, count_lines(root)),
    ]


def count_lines(root: Path = ROOT) -> dict[str, int]:
    project: Any = tomllib.loads((root / "pyproject.toml").read_text())
    rooms = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    return {
        room: sum(len(path.read_text().splitlines()) for path in (root / room).rglob("*.py")) for room in rooms
    }


def render_page(census: Census, overview: str) -> str:
    lines, said = [_HEAD], read_promises(overview)
    for component, promises in census.promises.items():
        lines.append(f"\n## {component}\n\n| promise | tests | mutants |\n|---|---|---|\n")
        for each in promises:
            tests, mutants = (", ".join(f"`{name}`" for name in names) for names in (each.tests, each.mutants))
            whole = next(text for text in said[component] if text.startswith(each.name))
            lines.append(f"| {re.split(r': - |[.](?: |$)', whole)[0]} | {tests} | {mutants} |\n")
    return "".join(lines)


def find_uncollected(tests: Collection[str], root: Path = ROOT) -> list[str]:
    """Return what pytest says where it does not collect one of these tests."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *tests],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return []
    return [f"pytest does not collect the list:\n{done.stdout[-3000:]}{done.stderr[-1000:]}"]


def main() -> int:
    """Write the page, print every fault, and return 1 if there is one."""
    census = Census.read()
    PAGE.write_text(render_page(census, OVERVIEW.read_text()))
    faults = find_faults(census) or find_uncollected(census.tests())
    promises = sum(map(len, census.promises.values()))
    sys.stdout.write(
        f"{len(census.capabilities)} capabilities, {promises} promises, {len(census.tests())} tests that hold them"
        f", {sum(count_lines().values()):,} lines of code\n"
    )
    sys.stderr.write("".join(f"- {fault}\n" for fault in faults))
    return 1 if faults else 0


def _faults_of(holding: Holding, mutants: Collection[str], root: Path) -> Iterator[str]:
    if not holding.tests:
        yield f"{holding.name}: no test holds it. Write one and name it in {LIST.name}."
    for test in holding.tests:
        path, _, name = test.partition("[")[0].partition("::")
        if name in _functions(root / path):
            continue
        homes = [found for found in _test_files(root) if name in _functions(root / found)]
        yield (
            f"{holding.name}: {test} is gone. "
            + (f"It is in {' and '.join(homes)} now: name it" if homes else "Name the test that holds it now")
            + f" in tests/guards/{LIST.name}. If none does, keep this one."
        )
    for name in holding.mutants:
        if name not in mutants:
            yield f"{holding.name}: {MUTANTS.name} has no mutant {name}. Name its successor."


def _faults_of_promises(census: Census, promised: dict[str, list[str]]) -> Iterator[str]:
    for component in {**promised, **census.promises}:
        says, listed = promised.get(component, []), [each.name for each in census.promises.get(component, [])]
        for promise in says:
            if not any(promise.startswith(start) for start in listed):
                yield f"docs/overview.md promises of {component}: '{promise}'. Name its tests in {LIST.name}."
        for start in listed:
            if sum(promise.startswith(start) for promise in says) != 1:
                yield f"{LIST.name}: '{start}' is not how one promise of {component} in docs/overview.md begins."


def _faults_of_rooms(census: Census, lines: dict[str, int]) -> Iterator[str]:
    for room in lines.keys() ^ census.rooms.keys():
        yield f"{room} is a room of pyproject.toml or of {LIST.name} ([rooms]) and not of the other."
    for room, count in lines.items():
        if room in census.rooms and count > census.rooms[room]:
            yield (
                f"{room} has {count:,} lines and may have {census.rooms[room]:,}. Make it shorter, or add to "
                f'tests/guards/{LIST.name}: [[growth]] room = "{room}", lines = ..., why = "...".'
            )


@cache
def _functions(path: Path) -> frozenset[str]:
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@cache
def _test_files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in (root / "tests").rglob("test_*.py"))


if __name__ == "__main__":
    sys.exit(main())
