import pytest

from tests.guards import census
from tests.guards.census import Census, Holding

OVERVIEW = """\
# Overview

## What Refeed promises

| promise | where | details |
|---|---|---|
| Sold once | shop | A price | is paid once. |

## Processes

| till | one |

## What each component must do

**Till** (`till/`)
- MUST open at eight
  and close:
  - at six.
- MUST NOT lend.

## Layers

- None MUST be here.
"""
LIST = """\
[capabilities]
"sell" = ["tests/test_till.py::test_a_price_is_paid[cash]"]
[[promises]]
of = "Refeed"
says = "Sold once: shop"
tests = ["tests/test_till.py::test_a_price_is_paid"]
[[promises]]
of = "Till"
says = "MUST open at eight"
tests = ["tests/test_till.py::test_it_opens"]
mutants = ["stays-shut"]
[[promises]]
of = "Till"
says = "MUST NOT lend"
tests = ["tests/test_till.py::test_it_opens"]
[rooms]
till = 2
"""


@pytest.fixture
def root(tmp_path):
    for name, text in {
        "docs/overview.md": OVERVIEW,
        "pyproject.toml": '[tool.hatch.build.targets.wheel]\npackages = ["till"]\n',
        "till/coins.py": "one = 1\ntwo = 2\n",
        "tests/test_till.py": "def test_a_price_is_paid(): ...\ndef test_it_opens(): ...\n",
        "tests/guards/mutants.toml": '[[mutant]]\nid = "stays-shut"\n',
        "list.toml": LIST,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def faults(root, old="", new=""):
    (root / "list.toml").write_text(LIST.replace(old, new))
    return census.find_faults(Census.read(root / "list.toml"), root)


def test_a_list_whose_tests_are_there_has_no_fault_however_few_they_are(root):
    (root / "till/coins.py").write_text("")
    assert faults(root) == []


def test_a_test_that_is_gone_is_named_with_its_capability_and_its_new_home(root):
    (root / "tests/test_door.py").write_text("def test_it_opens(): ...\n")
    (root / "tests/test_till.py").write_text("")
    assert [fault.partition(" in tests/guards")[0] for fault in faults(root)] == [
        f"{holding}: tests/test_till.py::{test} is gone. {what}"
        for holding, test, what in (
            ("sell", "test_a_price_is_paid[cash]", "Name the test that holds it now"),
            ("Refeed: Sold once: shop", "test_a_price_is_paid", "Name the test that holds it now"),
            ("Till: MUST open at eight", "test_it_opens", "It is in tests/test_door.py now: name it"),
            ("Till: MUST NOT lend", "test_it_opens", "It is in tests/test_door.py now: name it"),
        )
    ]


def test_a_capability_without_a_test_and_a_mutant_that_is_none_are_named(root):
    assert "sell: no test holds it" in faults(root, '["tests/test_till.py::test_a_price_is_paid[cash]"]', "[]")[0]
    assert "has no mutant is-closed" in faults(root, "stays-shut", "is-closed")[0]


def test_a_promise_of_the_page_without_an_entry_and_an_entry_without_a_promise_are_named(root):
    found = faults(root, "MUST NOT lend", "MUST NOT borrow")
    assert [fault.partition(". Name")[0] for fault in found] == [
        "docs/overview.md promises of Till: 'MUST NOT lend.'",
        "capabilities.toml: 'MUST NOT borrow' is not how one promise of Till in docs/overview.md begins.",
    ]
    assert census.read_promises(OVERVIEW)["Till"] == ["MUST open at eight and close: - at six.", "MUST NOT lend."]


def test_a_room_grows_only_with_a_reason(root):
    (root / "till/coins.py").write_text("one = 1\n" * 5)
    assert "till has 5 lines and may have 2." in faults(root)[0]
    assert faults(root, "till = 2\n", 'till = 2\n[[growth]]\nroom = "till"\nlines = 3\nwhy = "euros"\n') == []
    with pytest.raises(ValueError, match="no reason"):
        faults(root, "till = 2\n", 'till = 2\n[[growth]]\nroom = "till"\nlines = 3\n')
    assert "shop is a room" in faults(root, "till = 2\n", "till = 2\nshop = 2\n")[0]


def test_a_page_has_each_promise_with_its_tests_and_mutants():
    promise = Holding("MUST open", ("tests/test_till.py::test_it_s_open[by_day]",), ("stays-shut",))
    page = census.render_page(Census([], {"Till": [promise]}, {}), OVERVIEW)
    assert page.endswith(
        "## Till\n\n| promise | tests | mutants |\n|---|---|---|\n"
        "| MUST open at eight and close | `tests/test_till.py::test_it_s_open[by_day]` | `stays-shut` |\n"
    )


def test_every_capability_and_every_promise_of_refeed_has_its_test():
    assert census.find_faults(Census.read()) == []


def test_the_page_of_promises_is_that_of_the_list():
    assert census.render_page(Census.read(), census.OVERVIEW.read_text()) == census.PAGE.read_text(), (
        "run: make census"
    )
