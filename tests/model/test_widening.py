import pytest

from model.errors import EvolutionRefusedError
from model.schema import Field, RowSchema, plan_evolution
from model.widening import describe_name, is_wider, json_name, plan_widening, widen_value

RECORD = Field("r", "RECORD", fields=(Field("x", "INT64"),))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (Field("n", "INT64"), Field("n", "FLOAT64"), True),
        (Field("n", "FLOAT64"), Field("n", "INT64"), False),
        (Field("n", "TIMESTAMP"), Field("n", "STRING"), False),
        (Field("n", "TIMESTAMP"), Field("n", "JSON"), True),
        (Field("n", "STRING"), Field("n", "STRING", "REPEATED"), False),
        (Field("n", "INT64", "REPEATED"), Field("n", "STRING", "REPEATED"), True),
        (RECORD, Field("r", "RECORD", fields=(Field("y", "BOOL"), Field("x", "STRING"))), True),
        (RECORD, Field("r", "RECORD", fields=(Field("y", "BOOL"),)), False),
    ],
)
def test_a_column_is_wider_when_it_holds_every_cell(old, new, expected):
    assert is_wider(old, new) is expected


@pytest.mark.parametrize("name", ["", '"', '""', '"a', "a", "+1", "x"])
def test_a_description_keeps_every_name(name):
    assert json_name(Field("x", "INT64", description=describe_name(name, "x"))) == name


@pytest.mark.parametrize(
    ("value", "old", "new", "expected"),
    [
        (1.0, "FLOAT64", "STRING", "1"),
        (float(1 << 53), "FLOAT64", "STRING", "9007199254740992"),
        (1e300, "FLOAT64", "STRING", "1e+300"),
        (-0.5, "FLOAT64", "JSON", "-0.5"),
        (True, "BOOL", "STRING", "true"),
        (None, "INT64", "JSON", None),
        ("7", "STRING", "JSON", "7"),
        ("true", "STRING", "JSON", "true"),
        ("1e+300", "STRING", "JSON", "1e+300"),
        *((text, "STRING", "JSON", f'"{text}"') for text in ("", "x", "1.10", "07", "-0", "1e5", "NaN", "9" * 25)),
    ],
)
def test_a_cell_has_one_text(value, old, new, expected):
    assert widen_value(value, Field("n", old), Field("n", new)) == expected


def test_a_plan_that_drops_a_column_or_narrows_one_is_refused():
    current = RowSchema((Field("n", "STRING"), RECORD))
    for wanted in (RowSchema((Field("n", "INT64"), RECORD)), RowSchema((Field("n", "JSON"),))):
        with pytest.raises(EvolutionRefusedError):
            plan_widening("t", current, wanted, plan_evolution(current, wanted))
