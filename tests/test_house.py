"""What a stranger finds at the root: lock files, variables, targets, links."""

import ast
import re
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import requires, version
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import typer
from _pytest.mark.expression import Expression
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cli.main import app
from model.settings import read_settings
from model.table import Warehouse
from tests import selection

ROOT = Path(__file__).parents[1]
CODE = (
    "api", "app", "backfill", "backup", "cli", "client", "collector", "connectors", "console", "inventory",
    "jobs", "local", "model", "pipeline", "reporting", "rollout", "sql", "streams", "warehouse",
)  # fmt: skip
LOCKS = ("requirements.lock", "requirements-dev.lock")
SITE_LOCK = "requirements-docs.lock"
# What Refeed reads and no person sets: tests arm failpoints; the others belong to the shell, Google or Spark.
NOT_SETTINGS = {
    "HOME",
    "PATH",
    "REFEED_FAILPOINTS",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "SPARK_HOME",
    "SPARK_REMOTE",
}


class Recorded(Mapping[str, str]):
    """An environment without variables that remembers which were asked for."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.asked.add(name)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def variables_in_example() -> set[str]:
    text = (ROOT / ".env.example").read_text()
    return set(re.findall(r"^# ([A-Z][A-Z0-9_]+)=", text, re.MULTILINE))


@cache
def variables_in_code() -> set[str]:
    """Every string constant that looks like a variable of ours."""
    found: set[str] = set()
    for folder in CODE:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.update(re.findall(r"^REFEED_[A-Z_]+$", node.value))
    return found


def comparisons_with_a_warehouse(tree: ast.AST) -> list[int]:
    """The lines that compare something with a warehouse's name."""
    names = set(get_args(Warehouse))

    def is_name(node: ast.AST) -> bool:
        return any(isinstance(part, ast.Constant) and part.value in names for part in ast.walk(node))

    return [
        node.lineno for node in ast.walk(tree) if isinstance(node, ast.Compare | ast.MatchValue) and is_name(node)
    ]


def test_nothing_above_the_port_asks_which_warehouse_it_is() -> None:
    found = Counter(
        str(path.relative_to(ROOT))
        for folder in CODE
        if folder not in {"connectors", "warehouse"}
        for path in (ROOT / folder).rglob("*.py")
        for _ in comparisons_with_a_warehouse(ast.parse(path.read_text()))
    )
    assert found == Counter()


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('settings.warehouse == "lake"', 1),
        ('"bigquery" != name', 1),
        ('name in {"lake"}', 1),
        ('match name:\n case "bigquery": pass', 1),
        ('open("lake")', 0),
    ],
)
def test_a_comparison_with_a_warehouse_is_seen(text: str, count: int) -> None:
    assert len(comparisons_with_a_warehouse(ast.parse(text))) == count


def test_every_setting_is_in_the_example() -> None:
    environment = Recorded()
    read_settings(environment)
    assert environment.asked - NOT_SETTINGS - variables_in_example() == set()
    assert variables_in_code() - NOT_SETTINGS - variables_in_example() == set()


def test_the_example_names_nothing_that_is_not_read() -> None:
    environment = Recorded()
    read_settings(environment)
    assert variables_in_example() - environment.asked - variables_in_code() == {"JAVA_HOME"}


def test_the_example_s_values_are_the_defaults() -> None:
    text = (ROOT / ".env.example").read_text()
    given = dict(re.findall(r"^# ([A-Z][A-Z0-9_]+)=(.+)$", text, re.MULTILINE))
    for name in ("PUBSUB_EMULATOR_HOST", "REFEED_API_URL", "REFEED_LOG_LEVEL", "REFEED_HOME"):
        del given[name]
    home = {"HOME": "/somewhere"}
    assert read_settings({**given, **home}) == read_settings(home)


@pytest.mark.parametrize(("name", "fewest"), [*((name, 50) for name in LOCKS), (SITE_LOCK, 30)])
def test_a_lock_pins_every_package_with_hashes_and_names_no_index(name: str, fewest: int) -> None:
    lines = (ROOT / name).read_text().splitlines()
    packages = [line for line in lines if line and not line.startswith((" ", "#"))]
    assert len(packages) > fewest
    assert [line for line in packages if not re.match(r"[a-z0-9.\-]+==\S+ (; .* )?\\$", line)] == []
    assert [line for line in lines if "://" in line or line.startswith("-")] == []
    blocks = re.split(r"\n(?=\S)", (ROOT / name).read_text())
    assert [block.splitlines()[0] for block in blocks if "--hash=sha256:" not in block] == []


def test_what_runs_is_pinned_the_same_for_tests() -> None:
    pins = [set(re.findall(r"^(\S+==\S+)", (ROOT / name).read_text(), re.MULTILINE)) for name in LOCKS]
    assert pins[0] - pins[1] == set()


def test_the_site_s_packages_fit_beside_those_of_the_tests() -> None:
    # They share one environment, whichever is set up first.
    tests, site = (
        dict(re.findall(r"^(\S+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE))
        for name in (LOCKS[1], SITE_LOCK)
    )
    shared = tests.keys() & site.keys()
    assert shared
    assert {name: site[name] for name in shared} == {name: tests[name] for name in shared}


def test_a_lock_has_all_that_its_packages_need() -> None:
    # So pip needs no resolver for it: see the next test.
    pins = dict(re.findall(r"^(\S+)==(\S+)", (ROOT / LOCKS[0]).read_text(), re.MULTILINE))
    pins["refeed"] = version("refeed")
    asked, seen = [Requirement("refeed")], set()
    while asked:
        wanted = asked.pop()
        if wanted in seen:
            continue
        seen.add(wanted)
        name = canonicalize_name(wanted.name)
        assert name in pins, wanted
        assert wanted.specifier.contains(pins[name], prereleases=True), wanted
        extras = {"", *wanted.extras}
        asked += [
            need
            for need in map(Requirement, requires(name) or ())
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras)
        ]
    assert len(seen) > 50


@pytest.mark.parametrize("name", ["Makefile", "Dockerfile", "rollout/environments.py"])
def test_a_lock_is_installed_as_it_is_whatever_was_released_since(name: str) -> None:
    # With its resolver, pip before 23.3 takes the newest release for "google-auth[pyopenssl]" instead of the one
    # that is pinned, and refuses it: https://github.com/pypa/pip/issues/12345.
    installs = [line for line in (ROOT / name).read_text().splitlines() if "--require-hashes" in line]
    assert installs != []
    assert [line for line in installs if "--no-deps" not in line] == []


def test_the_wheel_carries_its_lock_and_so_does_one_that_is_built_from_the_source_archive(tmp_path: Path) -> None:
    (archive,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path))
    with tarfile.open(archive) as file:
        file.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 has it
        file.extractall(tmp_path)
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    (wheel,) = WheelBuilder(str(unpacked)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as files:
        (lock,) = (
            name for name in files.namelist() if name.endswith(".dist-info/extra_metadata/requirements.lock")
        )
        assert files.read(lock) == (ROOT / "requirements.lock").read_bytes()
        assert {f"{room}/__init__.py" for room in CODE} <= set(files.namelist())


def test_every_make_target_says_what_it_does() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony is not None
    documented = set(re.findall(r"^([a-z-]+):.*## \S", text, re.MULTILINE))
    assert set(phony[1].split()) == documented
    assert {"demo", "test", "lint", "fmt", "types", "bench", "up", "clean"} <= documented


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them of its headings."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in pages():
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text()):
            place = page.parent / target if target else page
            if "://" not in target and (not place.exists() or (anchor and anchor not in headings(place))):
                broken.append(f"{page.name}: {target}#{anchor}")
    assert broken == []


def options_by_command(command: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], set[str]]:
    own = {option for parameter in command.params for option in parameter.opts} | {"--home", "--help"}
    found = {path: own}
    for name, inner in getattr(command, "commands", {}).items():
        found |= options_by_command(inner, (*path, name))
    return found


def test_each_decision_has_a_number_of_its_own() -> None:
    numbers = Counter(page.name[:4] for page in (ROOT / "docs/decisions").glob("[0-9]*.md"))
    assert {number for number, pages in numbers.items() if pages > 1} == set()


def test_every_command_that_a_page_tells_to_run_is_there_with_its_options() -> None:
    known = options_by_command(typer.main.get_command(app))
    wrong, count = [], 0
    for page in [*pages(), ROOT / ".env.example"]:
        for line in page.read_text().splitlines():
            for words, rest in re.findall(r"(?:\$ |'|`|^\s*)refeed ((?:[a-z-]+ ?)+)([^'`]*)", line):
                named, path = words.split(), ()
                while named and (*path, named[0]) in known:
                    path = (*path, named.pop(0))
                count += 1
                options = set(re.findall(r"(?<![\w-])--[a-z-]+", rest.split("  #")[0]))
                if not path or not options <= known[path]:
                    wrong.append(f"{page.name}: {line.strip()}")
    assert wrong == []
    assert count > 100


def test_each_test_is_run_by_exactly_one_target() -> None:
    chosen = re.findall(
        r'^test[a-z-]*:.*\n\t@\$\(PYTEST\) -m "(.+)" \$\(ARGS\)$', (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    assert len(chosen) == 4
    for values in product((True, False), repeat=3):
        marks = dict(zip(("kills", "cloud", "browser"), values, strict=True))
        assert sum(Expression.compile(each).evaluate(marks.__getitem__) for each in chosen) == 1, marks


def test_a_test_that_the_selection_of_its_marker_would_not_find_is_refused(tmp_path: Path) -> None:
    found, missed = tmp_path / "test_found.py", tmp_path / "test_missed.py"
    found.write_text("from tests.worlds.bucket import SCHEMES")
    missed.write_text("from tests.worlds.http import serving")
    item = SimpleNamespace(path=found, get_closest_marker=lambda marker: marker == "cloud")
    selection.pytest_collection_modifyitems([item])
    item.path = missed
    with pytest.raises(pytest.UsageError, match=r"test_missed.py \(cloud\)"):
        selection.pytest_collection_modifyitems([item])


def test_a_class_name_means_one_thing_in_the_whole_product() -> None:
    modules: dict[str, list[str]] = {}
    for path in (path for folder in CODE for path in (ROOT / folder).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                modules.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in modules.items() if len(found) > 1} == {}
