import time

import pytest

from model.errors import DescriptorError
from pipeline.options import FieldOptions
from pipeline.transforms import compile_transforms


@pytest.mark.parametrize(
    ("options", "text", "wanted"),
    [
        ({"filter": "[a-z]+"}, "abc", "abc"),
        ({"filter": "[a-z]+"}, "abc1", None),
        ({"filter": "[a-z]+"}, "", ""),
        ({"regex_extract": "[0-9]+"}, "a12b3", "12"),
        ({"regex_extract": "[0-9]+"}, "abc", "abc"),
        ({"append": "Z"}, "1", "1Z"),
        ({"append": "Z"}, "", ""),
        ({"regex_replace": "a{1,2},b"}, "aaa", "bb"),
        ({"regex_replace": r"(\w)(\w),$2$1"}, "ab", "ba"),
        ({"regex_replace": "(?P<x>a),[${x}]"}, "a", "[a]"),
        ({"regex_replace": r"a,\$1"}, "a", "$1"),
        ({"regex_replace": r"a,\\n"}, "a", r"\n"),
        ({"regex_replace": "a,"}, "bab", "bb"),
        # What only Java has, and what it reads otherwise than Python.
        ({"regex_replace": r"(?<x>a)(b)?,[${x}$2$0]"}, "a", "[aa]"),
        ({"regex_replace": r"(a),$12"}, "a", "a2"),
        ({"regex_replace": r"(?<x>a)\k<x>,b"}, "aaa", "ba"),
        ({"regex_extract": r"\p{Alpha}++[a-z&&[^c]]?"}, "1ab2", "ab"),
        ({"regex_extract": r"\d+"}, "\u06612", "2"),
        ({"regex_extract": r"\Qa.b(\E"}, "axb a.b(", "a.b("),
        ({"filter": "x(?i)abc"}, "xABC", "xABC"),
        ({"local_to_utc": "Europe/Stockholm"}, "", ""),
        # The order: filter, extract, append, replace, local-to-UTC.
        (
            {
                "filter": ".*at.*",
                "regex_extract": r"\d{4}-\d\d-\d\d",
                "append": " 12.00",
                "regex_replace": "[.],:",
                "local_to_utc": "Europe/Stockholm, yyyy-MM-dd HH:mm, dd/MM/yy HH:mm X",
            },
            "at 2024-07-01",
            "01/07/24 10:00 Z",
        ),
    ],
)
def test_an_option_does_what_it_says_in_the_fixed_order(options, text, wanted):
    assert compile_transforms(FieldOptions(**options))(text) == wanted


def test_a_text_that_a_pattern_would_take_years_for_is_a_fault_of_the_text():
    transform = compile_transforms(FieldOptions(filter="(a|aa)+"))
    assert transform("a" * 60) == "a" * 60
    started = time.monotonic()
    with pytest.raises(ValueError, match="takes the pattern"):
        transform("a" * 60 + "c")
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    "options",
    [
        {"filter": "("},
        {"regex_extract": r"\p{Nothing}"},
        {"regex_replace": "(a),$2"},
        {"regex_replace": "(a),${name}"},
        {"local_to_utc": "Nowhere"},
    ],
)
def test_an_option_that_can_t_be_used_is_told_before_any_message_comes(options):
    with pytest.raises(DescriptorError):
        compile_transforms(FieldOptions(**options))


def test_a_field_without_options_has_nothing_done_to_it():
    assert compile_transforms(FieldOptions(description="x")) is None
