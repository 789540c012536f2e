"""YAML that people write: every fault with its place, and the place of every part."""

import pytest

from model.plain_yaml import YamlFault, YamlFaultsError, read_yaml


def faults(content: str | bytes) -> list[YamlFault]:
    with pytest.raises(YamlFaultsError) as raised:
        read_yaml(content)
    assert all(str(fault) in str(raised.value) for fault in raised.value.faults)
    return list(raised.value.faults)


def test_every_name_that_comes_twice_is_named_also_before_a_text_that_breaks_off() -> None:
    assert faults("a: {b: 1, b: 2}\na: 3\nc: [") == [
        YamlFault("'b' comes twice", 1, 11),
        YamlFault("while parsing a flow node expected the node content, but found '<stream end>'", 3, 5),
    ]
    assert [(fault.line, fault.column) for fault in faults("a: {b: 1, b: 2}\na: 3\n")] == [(1, 11), (2, 1)]


@pytest.mark.parametrize(
    ("content", "line", "column", "message"),
    [
        (b"a: 1\nb: caf\xe9", 2, 7, "this is not UTF-8"),
        ("ä: 1\nb: \x07", 2, 4, "the character U+0007 can't stand in YAML"),
        ("a: 1\nb: 2024-13-01", 2, 4, "month must be in 1..12"),
        ("a: 1\nb: !!python/name:os.system", 2, 4, "could not determine a constructor for the tag"),
    ],
)
def test_what_can_t_be_read_has_its_place(content: str | bytes, line: int, column: int, message: str) -> None:
    (found,) = faults(content)
    assert (found.line, found.column) == (line, column)
    assert message in found.message


def test_two_dates_that_do_not_exist_are_two_faults() -> None:
    assert [fault.line for fault in faults("a: 2024-13-01\nb: 2024-02-31\n")] == [1, 2]


def test_a_pointer_leads_to_the_name_or_the_item_or_the_last_part_that_is_there() -> None:
    document = read_yaml("# first\na:\n  - x\n  - {b/c: 1}\n")
    assert document.place_of("/a") == (2, 1)
    assert document.place_of("/a/1/b~1c") == (4, 6)
    assert document.place_of("/a/7") == (2, 1)
    assert document.place_of("") == (2, 1)
    assert read_yaml("").place_of("/a") == (1, 1)
