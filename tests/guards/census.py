"""Counts of code, tests, commands and HTTP operations, and a comparison with earlier ones: ``make census``."""

import argparse
import ast
import json
import re
import statistics
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

ROOT: Final = Path(__file__).parents[2]
# The counts on the main branch before rooms were moved, and the losses that were decided since.
BEFORE: Final = Path(__file__).parent / "before.json"
ALLOWED: Final = Path(__file__).parent / "allowed.toml"

_SHORT_LINES: Final = 60
_LONG_LINES: Final = 300
_LONG_FUNCTION_LINES: Final = 40
# The only rooms that may know which warehouse it is.
_WAREHOUSE_ROOMS: Final = ("warehouse", "connectors", "app")
_WAREHOUSES: Final = ("lake", "bigquery")
_WAREHOUSE_CLASS: Final = re.compile(r"_?(Lake|BigQuery)")
_FIELD: Final = "max_failed"
_FILE_WIDTH: Final = 120
# Counts of which an allowed loss may be subtracted; every other count is only shown.
_GUARDED: Final = ("tests", "asserts")
_LABELS: Final = {
    "lines": "product lines",
    "files": "product files",
    "short_modules": f"modules under {_SHORT_LINES} lines",
    "long_modules": f"modules over {_LONG_LINES} lines",
    "shared_class_names": "class names used twice",
    "mappings": "Mapping[str, Any]",
    "dictionaries": "dict[str, Any]",
    "warehouse_imports": "imports of a warehouse's connector elsewhere",
    "warehouse_branches": "branches on the warehouse elsewhere",
    "field_declarations": f"declarations of {_FIELD}",
    "functions": "functions",
    "long_functions": f"functions over {_LONG_FUNCTION_LINES} lines",
    "median_function_lines": "median lines of a function",
    "p95_function_lines": "95th percentile of them",
    "tests": "collected tests",
    "doctests": "collected doctests",
    "asserts": "asserts in tests",
    "commands": "commands",
    "operations": "HTTP operations",
}


@dataclass
class Source:
    """One parsed file of the product, by its path below the root."""

    path: str
    tree: ast.Module
    lines: int

    @property
    def room(self) -> str:
        """The folder at the root that holds this file."""
        return self.path.split("/", 1)[0]


@dataclass
class Allowed:
    """Losses that were decided: names that may be gone, and how many tests and asserts may be fewer."""

    gone: set[str] = field(default_factory=set)
    fewer: Counter[str] = field(default_factory=Counter)

    @classmethod
    def read(cls, path: Path) -> "Allowed":
        """Read the list; every entry has a reason.

        Raises:
            ValueError: an entry has none.
        """
        listed = tomllib.loads(path.read_text())
        allowed = cls()
        for entry in [*listed.get("gone", []), *listed.get("fewer", [])]:
            if not str(entry.get("why", "")).strip():
                raise ValueError(f"{path.name}: {entry} has no reason (why)")
        allowed.gone = {entry["name"] for entry in listed.get("gone", [])}
        for entry in listed.get("fewer", []):
            allowed.fewer.update({name: entry.get(name, 0) for name in _GUARDED})
        return allowed


def packages(root: Path = ROOT) -> list[str]:
    """Return the product's rooms, as the wheel has them."""
    return list(
        tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
            "packages"
        ]
    )


def read_sources(root: Path, rooms: Collection[str]) -> list[Source]:
    """Parse every Python file below these rooms."""
    found = []
    for room in rooms:
        for path in sorted((root / room).rglob("*.py")):
            text = path.read_text()
            found.append(Source(path.relative_to(root).as_posix(), ast.parse(text), len(text.splitlines())))
    return found


def count_code(sources: list[Source]) -> dict[str, Any]:
    """Return the counts of the product, and the places of those that are to become few."""
    lengths = [length for source in sources for length in _function_lengths(source.tree)]
    by_room: Counter[str] = Counter()
    for source in sources:
        by_room[source.room] += source.lines
    modules = [source for source in sources if not source.path.endswith("__init__.py")]
    names = shared_class_names(sources)
    elsewhere = [source for source in sources if source.room not in _WAREHOUSE_ROOMS]
    places = {
        "mappings": _places(sources, _is_mapping),
        "dictionaries": _places(sources, _is_dictionary),
        "warehouse_imports": _places(elsewhere, _is_warehouse_import),
        # In sql/ "lake" is the name of a dialect.
        "warehouse_branches": _places([each for each in elsewhere if each.room != "sql"], _is_warehouse_branch),
        "field_declarations": _places(sources, _is_field_declaration),
    }
    return {
        "counts": {
            "lines": sum(source.lines for source in sources),
            "files": len(sources),
            "short_modules": sum(source.lines < _SHORT_LINES for source in modules),
            "long_modules": sum(source.lines > _LONG_LINES for source in modules),
            "shared_class_names": len(names),
            **{name: len(found) for name, found in places.items()},
            "functions": len(lengths),
            "long_functions": sum(length > _LONG_FUNCTION_LINES for length in lengths),
            "median_function_lines": statistics.median(lengths) if lengths else 0,
            "p95_function_lines": _percentile(lengths, 95),
        },
        "lines_by_room": dict(sorted(by_room.items())),
        "shared_class_names": names,
        # By file alone: line numbers would change with every edit.
        "places": {
            name: dict(sorted(Counter(place.rpartition(":")[0] for place in found).items()))
            for name, found in places.items()
            if name not in {"mappings", "dictionaries"}
        },
    }


def shared_class_names(sources: list[Source]) -> dict[str, list[str]]:
    """Return the names that several modules give to a class of their own, with these modules."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(source.path)
    return {name: paths for name, paths in sorted(found.items()) if len(paths) > 1}


def count_asserts(root: Path = ROOT) -> dict[str, int]:
    """Return the asserts of each file under tests/: ``assert``, ``pytest.raises`` and ``pytest.warns``."""
    found = {}
    for source in read_sources(root, ["tests"]):
        count = sum(isinstance(node, ast.Assert) or _is_pytest_check(node) for node in ast.walk(source.tree))
        if count:
            found[source.path] = count
    return found


def collect_tests(root: Path = ROOT) -> tuple[dict[str, int], int]:
    """Return how many tests each file under tests/ has, and how many doctests there are, as pytest collects them.

    Raises:
        RuntimeError: a file could not be collected.
    """
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "--quiet", "-p", "no:cacheprovider"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"pytest collects no tests:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    counts = {path: int(number) for path, number in re.findall(r"^(\S+\.py): (\d+)$", done.stdout, re.MULTILINE)}
    tests = {path: number for path, number in counts.items() if path.startswith("tests/")}
    return tests, sum(counts.values()) - sum(tests.values())


def list_commands(root: Path = ROOT) -> dict[str, list[str]]:
    """Return every command of the program with its options and arguments."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    ((name, target),) = project["scripts"].items()
    program = typer.main.get_command(import_module(target.partition(":")[0]).app)
    return dict(sorted(_walk_commands(program, name)))


def list_operations() -> list[str]:
    """Return every method and path of the OpenAPI document."""
    from tests.document import openapi_document

    document = openapi_document()
    return sorted(f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods)


def take_census(root: Path = ROOT) -> dict[str, Any]:
    """Return all counts."""
    found = count_code(read_sources(root, packages(root)))
    tests, doctests = collect_tests(root)
    asserts = count_asserts(root)
    commands, operations = list_commands(root), list_operations()
    found["counts"] |= {
        "tests": sum(tests.values()),
        "doctests": doctests,
        "asserts": sum(asserts.values()),
        "commands": len(commands),
        "operations": len(operations),
    }
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "commit": commit or None,
        **found,
        "tests": tests,
        "asserts": asserts,
        "commands": commands,
        "operations": operations,
    }


def find_losses(before: Mapping[str, Any], after: Mapping[str, Any], allowed: Allowed) -> list[str]:
    """Return a sentence for each loss that nobody decided.

    A count that ``after`` does not have is not compared, so that a quick test can leave out the slow one.
    """
    losses = []
    for name in _GUARDED:
        counted = after["counts"].get(name)
        wanted = before["counts"][name] - allowed.fewer[name]
        if counted is not None and counted < wanted:
            losses.append(
                f"{_LABELS[name]}: {counted:,}, {wanted - counted:,} fewer than {wanted:,}; by file: "
                f"{_fewer_by_file(before[name], after[name])}"
            )
    gone = _names(before) - _names(after) - allowed.gone
    return losses + [f"gone: {name}" for name in sorted(gone)]


def print_census(after: Mapping[str, Any], before: Mapping[str, Any] | None, console: Console) -> None:
    """Print a line a count, then lines by room, and the class names that are used twice."""
    table = Table("count", *(["before"] if before else []), "now", *(["change"] if before else []))
    for column in table.columns[1:]:
        column.justify = "right"
    rooms = sorted({*after["lines_by_room"], *(before or after)["lines_by_room"]})
    rows = [(_LABELS[name], name, "counts") for name in _LABELS] + [
        (f"lines of {room}/", room, "lines_by_room") for room in rooms
    ]
    for label, name, part in rows:
        now = after[part].get(name, 0)
        if before is None:
            table.add_row(escape(label), f"{now:,}")
        else:
            was = before[part].get(name, 0)
            table.add_row(escape(label), f"{was:,}", f"{now:,}", f"{now - was:+,}" if now != was else "")
    console.print(table)
    for name, paths in after["shared_class_names"].items():
        console.print(f"class {name}: {', '.join(paths)}", markup=False, highlight=False)


def main(arguments: list[str] | None = None) -> int:
    """Return 1 when something was lost that nobody decided."""
    parser = argparse.ArgumentParser(prog="make census", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with counts of --json in this file")
    chosen = parser.parse_args(arguments)
    before = json.loads(chosen.against.read_text()) if chosen.against else None
    after = take_census()
    if chosen.json:
        sys.stdout.write(json.dumps(after, indent=1) + "\n")
    else:
        terminal = Console()
        print_census(after, before, terminal if terminal.is_terminal else Console(width=_FILE_WIDTH))
    losses = find_losses(before, after, Allowed.read(ALLOWED)) if before else []
    for loss in losses:
        sys.stderr.write(f"{loss}\n")
    if losses:
        sys.stderr.write(f"A loss that is meant belongs into {ALLOWED.relative_to(ROOT)}, with its reason.\n")
    return 1 if losses else 0


def _function_lengths(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


def _percentile(lengths: list[int], percent: int) -> int:
    return sorted(lengths)[(len(lengths) - 1) * percent // 100] if lengths else 0


def _places(sources: list[Source], is_wanted: Any) -> list[str]:
    return [
        f"{source.path}:{getattr(node, 'lineno', 0)}"
        for source in sources
        for node in ast.walk(source.tree)
        if is_wanted(node)
    ]


def _is_mapping(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and ast.unparse(node) == _LABELS["mappings"]


def _is_dictionary(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and ast.unparse(node) == _LABELS["dictionaries"]


def _is_warehouse_import(node: ast.AST) -> bool:
    match node:
        case ast.ImportFrom(module="connectors"):
            names = [f"connectors.{alias.name}" for alias in node.names]
        case ast.ImportFrom():
            names = [node.module or ""]
        case ast.Import():
            names = [alias.name for alias in node.names]
        case ast.Call(func=ast.Name(id="import_module"), args=[ast.Constant(value=str(name)), *_]):
            names = [name]
        case _:
            return False
    return any(name.split(".")[:2] in [["connectors", each] for each in _WAREHOUSES] for name in names)


def _is_warehouse_branch(node: ast.AST) -> bool:
    """Whether this asks which warehouse it is.

    By its name, by a thing that only one of them has (``.bigquery is None``, ``if self._bigquery``), or by class.
    """
    match node:
        case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]):
            tested, named = [left], []
        case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq() | ast.In() | ast.NotIn()], comparators=others):
            tested, named = [], [left, *others]
        case ast.match_case(pattern=ast.MatchValue(value=value)):
            tested, named = [], [value]
        case (
            ast.If(test=test)
            | ast.IfExp(test=test)
            | ast.While(test=test)
            | ast.UnaryOp(op=ast.Not(), operand=test)
        ):
            tested, named = [test], []
        case ast.BoolOp(values=values):
            tested, named = values, []
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, classes]):
            return any(_WAREHOUSE_CLASS.match(_last_name(each)) for each in ast.walk(classes))
        case _:
            return False
    return any(map(_is_of_one_warehouse, tested)) or any(map(_names_warehouse, named))


def _names_warehouse(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(_names_warehouse(each) for each in node.elts)
    if isinstance(node, ast.Attribute):
        return node.attr in {name.upper() for name in _WAREHOUSES}
    return isinstance(node, ast.Constant) and node.value in _WAREHOUSES


def _is_of_one_warehouse(node: ast.expr) -> bool:
    return _last_name(node).lstrip("_") in _WAREHOUSES


def _last_name(node: ast.AST) -> str:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _is_field_declaration(node: ast.AST) -> bool:
    match node:
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.arg(arg=name):
            return name == _FIELD
    return False


def _is_pytest_check(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="pytest"), attr="raises" | "warns")):
            return True
    return False


def _walk_commands(command: Any, path: str) -> Iterator[tuple[str, list[str]]]:
    options = {
        option
        for parameter in command.params
        for option in (
            [f"<{parameter.name}>"]
            if parameter.param_type_name == "argument"
            else [*parameter.opts, *parameter.secondary_opts]
        )
    }
    yield path, sorted(options)
    for name, inner in getattr(command, "commands", {}).items():
        yield from _walk_commands(inner, f"{path} {name}")


def _names(census: Mapping[str, Any]) -> set[str]:
    """Return every command, every option of one and every HTTP operation, by the names of the allow-list."""
    commands = census["commands"]
    options = {f"{command} {option}" for command, listed in commands.items() for option in listed}
    return {*commands, *options, *census["operations"]}


def _fewer_by_file(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    fewer = {path: after.get(path, 0) - was for path, was in before.items() if after.get(path, 0) < was}
    return ", ".join(f"{path} {change:+}" for path, change in sorted(fewer.items(), key=lambda item: item[1]))


if __name__ == "__main__":
    sys.exit(main())
