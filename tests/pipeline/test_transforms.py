import pytest

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
    transform = compile_transforms(FieldOptions(**options))
    assert transform is not None
    assert transform(text) == wanted


def test_a_field_without_options_has_nothing_done_to_it():
    assert compile_transforms(FieldOptions(description="x")) is None
