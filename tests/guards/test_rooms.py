from typing import Any

import pytest

from tests.guards.rooms import BEGIN, END, PAGE, read_contracts, read_rooms, render_table, replace_table

CONTRACTS: list[dict[str, Any]] = [
    {"type": "layers", "layers": ["shop", "till | shelf", "nouns"]},
    {"type": "independence", "modules": ["till.coins", "till.notes"]},
    {"type": "forbidden", "source_modules": ["shop"], "forbidden_modules": ["shelf", "till.coins", "shop.cellar"]},
    {"type": "forbidden", "source_modules": ["till", "nouns"], "forbidden_modules": ["bank"]},
]
TABLE = """\
| room | what it does | may import | must not import |
|---|---|---|---|
| `shop` | The shop | `till`, `nouns` | `till.coins` |
| `till` | The till | `nouns` | `bank` |
| `shelf` | The shelf | `nouns` | nothing |
| `nouns` | The nouns | nothing | `bank` |
"""


def test_a_room_may_import_what_lies_below_and_no_contract_forbids(tmp_path):
    for name in ("shop", "till", "shelf", "nouns"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f'"""The {name}.\n\nMore.\n"""\n')
    assert render_table(read_rooms(CONTRACTS, tmp_path)) == TABLE


def test_the_page_has_the_table_of_the_contracts_as_they_are():
    page = PAGE.read_text()
    assert replace_table(page, render_table(read_rooms(read_contracts()))) == page, "run: make rooms"


def test_only_what_is_between_the_marks_is_replaced():
    assert replace_table(f"a\n{BEGIN}old\n{END}b\n", "new\n") == f"a\n{BEGIN}new\n{END}b\n"
    with pytest.raises(ValueError, match="unpack"):
        replace_table("a page without marks", "new\n")
