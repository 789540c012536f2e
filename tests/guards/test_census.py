import copy
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.guards import census
from tests.guards.census import Allowed

PYPROJECT = """\
[project.scripts]
shop = "shop.main:main"
[tool.hatch.build.targets.wheel]
packages = ["shop", "warehouse"]
"""
SHOP = '''\
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import connectors.bigquery.client
from connectors import lake, pubsub
from connectors.lake.tables import Table


class Order:
    max_failed: int = 0


class _Odd(Order):
    """``settings.warehouse == "lake"`` in a text is no branch."""


def sell(settings: Mapping[str, Any], max_failed: int) -> dict[str, Any]:
    import_module("connectors.lake.files")
    if settings.warehouse == "lake":
        return {}
    if settings.warehouse in ("bigquery", "other") or settings.bigquery is None:
        return {}
    if isinstance(settings.archive, BigQueryArchive) and not settings._bigquery:
        return {}
    match settings.warehouse:
        case "bigquery":
            return {"warehouse": "bigquery"}
    return {"lake": settings.other == "lakes", "max_failed": max_failed}
'''
TEST = """\
import pytest

def test_of_two():
    assert 1
    with pytest.raises(ValueError, match="assert"):
        assert_nothing()

@pytest.mark.parametrize("n", [1, 2, 3])
def test_of_many(n):
    assert n
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # The shop's tests need none, and these take longer to load than all else.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    files = {
        "pyproject.toml": PYPROJECT,
        "shop/main.py": SHOP,
        "shop/long.py": "def tall():\n" + "    x = 1\n" * 301,
        "warehouse/lake.py": "from connectors.lake import files\n\nclass Order: ...\nok = name == 'lake'\n",
        "tests/test_shop.py": TEST,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_code_is_counted_as_python_reads_it(root: Path) -> None:
    found = census.count_code(census.read_sources(root, census.packages(root)))
    assert found["counts"] == {
        "lines": 29 + 302 + 4,
        "files": 3,
        "short_modules": 2,
        "long_modules": 1,
        "shared_class_names": 1,
        "mappings": 1,
        "dictionaries": 1,
        "warehouse_imports": 4,
        "warehouse_branches": 6,
        "field_declarations": 2,
        "functions": 2,
        "long_functions": 1,
        "median_function_lines": (12 + 302) / 2,
        "p95_function_lines": 12,
    }
    assert found["lines_by_room"] == {"shop": 331, "warehouse": 4}
    assert found["shared_class_names"] == {"Order": ["shop/main.py", "warehouse/lake.py"]}
    assert found["places"]["warehouse_branches"] == {"shop/main.py": 6}


def test_tests_and_asserts_are_counted_by_file(root: Path) -> None:
    assert census.collect_tests(root) == ({"tests/test_shop.py": 4}, 0)
    assert census.count_asserts(root) == {"tests/test_shop.py": 3}


def test_tests_that_can_not_be_collected_are_no_zero(root: Path) -> None:
    (root / "tests" / "test_broken.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(RuntimeError, match="nothing_of_this_name"):
        census.collect_tests(root)


BEFORE: dict[str, Any] = {
    "counts": {"tests": 5, "asserts": 9, "lines": 10},
    "tests": {"tests/a.py": 2, "tests/b.py": 3},
    "asserts": {"tests/a.py": 4, "tests/b.py": 5},
    "commands": {"shop": [], "shop sell": ["--price", "<what>"]},
    "operations": ["GET /orders", "POST /orders"],
    "lines_by_room": {"shop": 10},
}


def changed(**parts: Any) -> dict[str, Any]:
    after = copy.deepcopy(BEFORE) | {name: part for name, part in parts.items() if name != "counts"}
    after["counts"] = BEFORE["counts"] | parts.get("counts", {})
    return after


def test_the_same_or_more_is_no_loss() -> None:
    more = changed(
        counts={"tests": 6, "asserts": 9, "lines": 1}, operations=["GET /", "GET /orders", "POST /orders"]
    )
    assert census.find_losses(BEFORE, BEFORE, Allowed()) == []
    assert census.find_losses(BEFORE, more, Allowed()) == []


def test_a_test_that_moved_is_no_loss_and_a_missing_one_is_named_by_its_file() -> None:
    moved = changed(tests={"tests/a.py": 4, "tests/c.py": 1})
    missing = changed(counts={"tests": 4}, tests={"tests/a.py": 2, "tests/b.py": 2})
    assert census.find_losses(BEFORE, moved, Allowed()) == []
    assert census.find_losses(BEFORE, missing, Allowed()) == [
        "collected tests: 4, 1 fewer than 5; by file: tests/b.py -1"
    ]


def test_commands_options_arguments_and_operations_that_are_gone_are_named() -> None:
    after = changed(commands={"shop": [], "shop sell": ["--price"]}, operations=["GET /orders"])
    assert census.find_losses(BEFORE, after, Allowed()) == ["gone: POST /orders", "gone: shop sell <what>"]


def test_a_decided_loss_is_allowed_and_no_more_than_that(tmp_path: Path) -> None:
    listed = tmp_path / "allowed.toml"
    listed.write_text(
        '[[gone]]\nname = "POST /orders"\nwhy = "nobody asked for it"\n'
        '[[fewer]]\nasserts = 2\nwhy = "its asserts"\n[[fewer]]\nasserts = 1\nwhy = "one more"\n'
    )
    allowed = Allowed.read(listed)
    fine = changed(counts={"asserts": 6}, asserts={"tests/a.py": 4, "tests/b.py": 2}, operations=["GET /orders"])
    worse = changed(counts={"asserts": 5, "tests": 4}, asserts={}, tests={}, operations=[])
    assert census.find_losses(BEFORE, fine, allowed) == []
    assert [loss.partition(";")[0] for loss in census.find_losses(BEFORE, worse, allowed)] == [
        "collected tests: 4, 1 fewer than 5",
        "asserts in tests: 5, 1 fewer than 6",
        "gone: GET /orders",
    ]


def test_a_loss_without_a_reason_is_refused(tmp_path: Path) -> None:
    listed = tmp_path / "allowed.toml"
    listed.write_text('[[gone]]\nname = "POST /orders"\n')
    with pytest.raises(ValueError, match="POST /orders"):
        Allowed.read(listed)


def test_the_whole_program_compares_and_ends_with_1_when_something_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tmp_path / "before.json"
    now = json.loads(census.BEFORE.read_text())
    before.write_text(json.dumps(now))
    monkeypatch.setattr(census, "take_census", lambda: now)
    assert census.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out) == now
    assert census.main(["--against", str(before)]) == 0
    now = copy.deepcopy(now)
    now["counts"]["lines"] -= 5
    del now["commands"]["refeed merge create"]
    assert census.main(["--against", str(before)]) == 1
    printed = capsys.readouterr()
    assert "gone: refeed merge create\n" in printed.err
    assert "-5" in printed.out


def test_a_table_shows_each_room_before_and_now() -> None:
    now = changed(lines_by_room={"stall": 7}, shared_class_names={"Order": ["stall/a.py", "stall/b.py"]})
    page = io.StringIO()
    census.print_census(now, BEFORE, Console(width=100, file=page))
    shown = " ".join(page.getvalue().split())
    assert "lines of shop/ │ 10 │ 0 │ -10" in shown
    assert "lines of stall/ │ 0 │ 7 │ +7" in shown
    assert "Mapping[str, Any]" in shown
    assert "class Order: stall/a.py, stall/b.py" in shown


def test_no_assert_command_option_or_operation_is_lost_here() -> None:
    before = json.loads(census.BEFORE.read_text())
    asserts = census.count_asserts()
    now = {
        # Collecting all tests takes half a minute: `make census` compares their number.
        "counts": {"asserts": sum(asserts.values())},
        "asserts": asserts,
        "commands": census.list_commands(),
        "operations": census.list_operations(),
    }
    assert census.find_losses(before, now, Allowed.read(census.ALLOWED)) == []
