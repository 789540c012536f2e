import ast
import subprocess
from pathlib import Path

import pytest

from tests.guards import mutants
from tests.guards.mutants import MutantList
from tests.guards.mutations import Mutant, MutantError, find, generate

TILL = '''\
"""A till."""

_MOST = 3


def add(one, other):
    return one + other


def pay(price):
    return price


def change(given, price):
    if given < price:
        raise ValueError("too little")
    return min(given - price, _MOST)


def book(journal, disk, *, is_open):
    if not is_open and journal:
        journal.write()
        disk.sync()
        journal.acknowledge()
        journal.close()
'''
FILES = {
    "shop/__init__.py": "",
    "shop/till.py": TILL,
    "tests/test_till.py": """\
import subprocess
import sys

import pytest

from shop import till


def run(program, folder):
    return subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True).stdout


def test_sums():
    assert till.add(1, 2) == 3


def test_sums_of_a_process(tmp_path):
    assert run("from shop import till; print(till.add(1, 2))", tmp_path) == "3\\n"


def test_nothing():
    assert till.pay


@pytest.mark.parametrize("given", [5, 6])
def test_change(given):
    assert till.change(given, 4) == given - 4


def test_little_of_a_process(tmp_path):
    assert run("from shop import till; print(till.change(4, 4))", tmp_path) == "0\\n"


@pytest.mark.kills
def test_change_is_bound():
    assert till.change(9, 4) == 3
""",
    "pyproject.toml": """\
[tool.pytest.ini_options]
addopts = ['--import-mode=importlib']
markers = ['kills: no test of the record']
""",
}
ROOM = """\
[[room]]
name = "shop"
code = ["shop/*.py"]
suites = ["tests"]

"""
LIST = """\
[[mutant]]
id = "{id}"
item = "1"
fault = "Sums are wrong."
file = "shop/till.py"
old = {old}
new = {new}
test = "tests/test_till.py::{test}"
"""


def entry(name: str, old: str, new: str, test: str) -> str:
    return LIST.format(id=name, old=repr(old), new=repr(new), test=test)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    return root


def run_mutants(root: Path, listed: str, *arguments: str) -> int:
    path = root.with_name("mutants.toml")
    path.write_text(listed)
    return mutants.main(["--root", str(root), "--list", str(path), "--package", "shop", *arguments])


def test_a_run_tells_what_is_noticed_from_what_is_not(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = (
        # Also what a process of the test imports, in a folder of its own, is the broken one.
        entry("noticed", "one + other", "one - other", "test_sums_of_a_process")
        + entry("survivor", "return price", "return 0", "test_nothing")
        + entry("broken", "def add", "def add(", "test_sums")
        + entry("moved", "one * other", "one - other", "test_sums")
    )
    assert run_mutants(root, listed) == 1
    said = capsys.readouterr().out
    assert "\nnoticed:" not in said
    assert "\nsurvivor: it SURVIVED" in said
    assert "\nbroken: its test does not fail by an assertion: error" in said
    assert "\nmoved: its old text is 0 times in shop/till.py, not once" in said
    assert "1 of 4 mutants noticed" in said
    assert {name: (root / name).read_text() for name in FILES} == FILES


def test_a_generated_mutant_meets_the_tests_that_cover_it(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def only(*names: str) -> str:
        return ",".join(f"shop/till.py:{name}" for name in names)

    # Only a process of a test runs into this edge.
    assert run_mutants(root, ROOM, "--only", only("change:edge-moved:1")) == 0
    said = capsys.readouterr().out
    assert "6 of 6 tests recorded" in said
    assert "noticed tests/test_till.py::test_little_of_a_process: AssertionError" in said
    # The record finds its lines where they are now, and a test that is gone is no error.
    (root / "shop/till.py").write_text(TILL.replace("_MOST = 3\n", "# Notes.\n_LEAST = 0\n_MOST = 3\n"))
    tests = root / "tests/test_till.py"
    tests.write_text(tests.read_text().replace("def test_sums(", "def gone("))
    chosen = only("change:comparison-flipped:1", "change:bound-removed:1", "book:sync-left-out:1")
    assert run_mutants(root, ROOM, "--only", chosen) == 1
    said = capsys.readouterr().out
    assert "recorded" not in said
    assert "change:bound-removed:1: it SURVIVED: 3 tests cover it" in said
    assert "book:sync-left-out:1: it SURVIVED: 0 tests cover it" in said
    assert "1 of 3 mutants noticed" in said


def test_every_kind_of_fault_has_a_name_that_outlives_moved_lines() -> None:
    found = {mutant.id.partition(":")[2]: mutant for mutant in find("till.py", TILL)}
    broken = {name: mutant.render(TILL) for name, mutant in found.items()}
    assert [name for name, text in broken.items() if text == TILL or not ast.parse(text)] == []
    assert "_MOST = 4" in broken["_MOST:off-by-one:1"]
    assert "if given >= price:" in broken["change:comparison-flipped:1"]
    assert "if given <= price:" in broken["change:edge-moved:1"]
    assert "    pass\n    return min" in broken["change:guard-removed:1"]
    assert "return (given - price)" in broken["change:bound-removed:1"]
    assert "if  is_open and journal:" in broken["book:not-dropped:1"]
    assert "if not is_open and True:" in broken["book:condition-dropped:1"]
    assert "        pass\n        journal.acknowledge()" in broken["book:sync-left-out:1"]
    assert "disk.sync()\n        journal.write()" in broken["book:swapped-calls:1"]
    assert "journal.acknowledge()\n        disk.sync()" in broken["book:swapped-calls:2"]
    assert len(found) == 10
    assert {each.id for each in find("till.py", f"# Café\n\n{TILL}")} == {each.id for each in found.values()}


@pytest.mark.parametrize(
    ("code", "is_made"),
    [
        ("while count < most: pass", True),
        ("while attempt < _ATTEMPTS - 1: pass", True),
        ("while time.monotonic() < ends: pass", False),
        ("while now - begun > every: pass", False),
        ("while later.created_at < failed.created_at: pass", False),
        ("while len(body) > _MAX_BYTES: pass", False),
        ("while noted >= newest - _OVERLAP: pass", False),
        ("if count > 1: failpoint.hit('between')", False),
    ],
)
def test_an_edge_is_moved_where_a_value_can_be_at_it(code: str, *, is_made: bool) -> None:
    assert any(mutant.fault == "edge-moved" for mutant in find("f.py", f"def f():\n    {code}\n")) is is_made


@pytest.mark.parametrize(
    ("calls", "is_made"),
    [
        ("file.rename(place); sync(folder)", True),
        ("self._expect_again(ids); self._acknowledge(ids)", True),
        ("file.write(text); file.flush()", False),
        ("sync(file); sync(folder)", False),
        ("waiting.extend(left); changed.notify_all()", False),
        ("flying.add(call); call.then(answer)", False),
    ],
)
def test_calls_are_swapped_where_others_see_their_order(calls: str, *, is_made: bool) -> None:
    text = "def f():\n    {}\n    {}\n".format(*calls.split("; "))
    assert any(mutant.fault == "swapped-calls" for mutant in find("f.py", text)) is is_made


def test_the_choice_is_one_by_seed_and_little_of_it_changes_with_the_code(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("".join(TILL.replace("change", f"change{n}") for n in range(20)))

    def chosen(seed: int) -> set[str]:
        return {mutant.id for mutant in generate(tmp_path, {"shop": ["one.py"]}, 40, seed)}

    first = chosen(1)
    assert chosen(1) == first != chosen(2)
    (tmp_path / "one.py").write_text((tmp_path / "one.py").read_text() + "\n\ndef new(x):\n    return x < 1\n")
    assert len(chosen(1) & first) >= 36


def test_more_than_a_tenth_can_not_be_excused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    excused = '[[excused]]\nid = "shop/till.py:change:edge-moved:1"\nreason = "It must not be."\n'
    assert run_mutants(root, ROOM + excused, "--count", "9") == 2
    assert "1 of 9 mutants are excused: more than a tenth." in capsys.readouterr().err


def test_an_unknown_mutant_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutants.main(["--only", "nobody"]) == 2
    assert "There is no mutant nobody." in capsys.readouterr().err


def test_text_that_stands_twice_is_no_place() -> None:
    mutant = Mutant("m", "f.py", "x = 1", "x = 2")
    assert mutant.render("x = 1\n") == "x = 2\n"
    with pytest.raises(MutantError, match=r"2 times in f\.py"):
        mutant.render("x = 1\nx = 1\n")


def test_every_item_has_a_mutant_and_ids_are_unique() -> None:
    by_hand = MutantList().by_hand
    assert len({mutant.id for mutant in by_hand}) == len(by_hand)
    assert {mutant.item for mutant in by_hand} == {*(str(number) for number in range(1, 21)), "promise"}


def test_a_run_has_two_hundred_mutants_of_code_and_suites_that_are_there() -> None:
    listed = MutantList()
    everything = {mutant.id for mutant in listed.generated(mutants.ROOT, 1_000_000, 1)}
    assert len(listed.by_hand) + mutants.COUNT >= 200
    assert [name for name in listed.excused if name not in everything] == []
    for room in listed.rooms:
        assert [glob for glob in room.code if not list(mutants.ROOT.glob(glob))] == []
        assert [suite for suite in room.suites if not list(mutants.ROOT.glob(f"{suite}*"))] == []


@pytest.mark.parametrize("mutant", MutantList().by_hand, ids=lambda mutant: mutant.id)
def test_a_mutant_has_its_place_and_its_test(mutant: Mutant) -> None:
    broken = mutant.render((mutants.ROOT / mutant.file).read_text())
    if mutant.file.endswith(".py"):
        ast.parse(broken)
    path, _, name = mutant.test.partition("[")[0].partition("::")
    functions = {
        node.name
        for node in ast.walk(ast.parse((mutants.ROOT / path).read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert name == "" or name in functions
