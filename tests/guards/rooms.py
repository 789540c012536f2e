"""Writes the table of rooms in docs/overview.md from the import contracts: ``make rooms``.

A room is one of the project's packages. What it may import is the layers below its own without what a contract
forbids; what it does is the docstring of its package.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "overview.md"
BEGIN: Final = "<!-- rooms: written by 'make rooms' from the import contracts in pyproject.toml -->\n\n"
END: Final = "\n<!-- end of rooms -->\n"


@dataclass(frozen=True)
class Room:
    """A package, the packages that it may import, and the modules that it must not although they lie below it."""

    name: str
    holds: str
    may: tuple[str, ...]
    never: tuple[str, ...]

    def row(self) -> str:
        cells = (self.name, self.holds, _list(self.may), _list(self.never))
        return f"| `{cells[0]}` | {' | '.join(cells[1:])} |\n"


def read_rooms(contracts: list[dict[str, Any]], root: Path = ROOT) -> Iterator[Room]:
    """Yield every room, the highest layer first."""
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    levels = [[name.strip() for name in layer.split("|")] for layer in layers]
    for number, names in enumerate(levels):
        below = [name for level in levels[number + 1 :] for name in level]
        for name in names:
            forbidden = {
                module
                for contract in contracts
                if contract["type"] == "forbidden" and name in contract["source_modules"]
                for module in contract["forbidden_modules"]
            }
            # What is above or beside a room is no news; the rest is below it or somebody else's library.
            never = {module for module in forbidden if _top(module) not in {n for level in levels for n in level}}
            inside = {module for module in forbidden if module not in below and _top(module) in below}
            may = tuple(other for other in below if other not in forbidden)
            yield Room(name, _docstring(root / name), may, tuple(sorted(never | inside)))


def render_table(rooms: Iterator[Room]) -> str:
    head = "| room | what it does | may import | must not import |\n|---|---|---|---|\n"
    return head + "".join(room.row() for room in rooms)


def replace_table(page: str, table: str) -> str:
    """Return the page with ``table`` between its two marks.

    Raises:
        ValueError: a mark is missing.
    """
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{table}{END}{after}"


def read_contracts(root: Path = ROOT) -> list[dict[str, Any]]:
    """Return import-linter's contracts."""
    document = tomllib.loads((root / "pyproject.toml").read_text())
    return document["tool"]["importlinter"]["contracts"]


def _top(module: str) -> str:
    return module.partition(".")[0]


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "nothing"


def _docstring(package: Path) -> str:
    found = ast.get_docstring(ast.parse((package / "__init__.py").read_text()))
    assert found, f"{package.name} does not say what it holds"
    first, *_ = found.split("\n")
    # Without the room's own name and without the full stop.
    return first.removesuffix(".")


def main() -> int:
    PAGE.write_text(replace_table(PAGE.read_text(), render_table(read_rooms(read_contracts()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
