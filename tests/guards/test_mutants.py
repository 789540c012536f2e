import ast
import subprocess
from pathlib import Path

import pytest

from tests.guards import mutants
from tests.guards.mutants import Mutant, MutantError

FILES = {
    "shop/__init__.py": "",
    "shop/till.py": "def add(one, other):\n    return one + other\n\n\ndef pay(price):\n    return price\n",
    "tests/test_till.py": """\
import subprocess
import sys

from shop import till


def test_sums():
    assert till.add(1, 2) == 3


def test_sums_of_a_process(tmp_path):
    program = [sys.executable, "-c", "from shop import till; print(till.add(1, 2))"]
    assert subprocess.run(program, cwd=tmp_path, capture_output=True, text=True).stdout == "3\\n"


def test_nothing():
    assert till.pay
""",
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = ['--import-mode=importlib']\n",
}
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


def test_a_run_tells_what_is_noticed_from_what_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "tree"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    listed = tmp_path / "mutants.toml"
    listed.write_text(
        # Also what a process of the test imports, in a folder of its own, is the broken one.
        entry("noticed", "one + other", "one - other", "test_sums_of_a_process")
        + entry("survivor", "return price", "return 0", "test_nothing")
        + entry("broken", "def add", "def add(", "test_sums")
        + entry("moved", "one * other", "one - other", "test_sums")
    )
    arguments = ["--root", str(root), "--list", str(listed), "--package", "shop", "--jobs", "2"]
    assert mutants.main(arguments) == 1
    said = capsys.readouterr().out
    assert "\nnoticed:" not in said
    assert "\nsurvivor: it SURVIVED" in said
    assert "\nbroken: its test does not fail by an assertion: error" in said
    assert "\nmoved: its old text is 0 times in shop/till.py, not once" in said
    assert "1 of 4 mutants noticed" in said
    assert {name: (root / name).read_text() for name in FILES} == FILES


def test_an_unknown_mutant_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutants.main(["--only", "nobody"]) == 2
    assert "There is no mutant nobody." in capsys.readouterr().err


def test_text_that_stands_twice_is_no_place() -> None:
    mutant = Mutant("m", "1", "a fault", "f.py", "x = 1", "x = 2", "tests/test_f.py")
    assert mutant.render("x = 1\n") == "x = 2\n"
    with pytest.raises(MutantError, match=r"2 times in f\.py"):
        mutant.render("x = 1\nx = 1\n")


def test_every_item_has_a_mutant_and_ids_are_unique() -> None:
    listed = mutants.read_mutants()
    assert len({mutant.id for mutant in listed}) == len(listed)
    assert {mutant.item for mutant in listed} == {str(number) for number in range(1, 21)}


@pytest.mark.parametrize("mutant", mutants.read_mutants(), ids=lambda mutant: mutant.id)
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
