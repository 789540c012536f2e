"""What differs between two JSON values."""

import pytest

from model.event import ValueChange, find_changes


@pytest.mark.parametrize(
    ("before", "after", "pointer"),
    [
        ({"a": 1}, {"a": True}, "/a"),
        ({"a": 1}, {"a": 1.0}, "/a"),
        ({"a": {"b": [0, {"c": 0}]}}, {"a": {"b": [0, {"c": False}]}}, "/a/b"),
    ],
)
def test_values_that_only_python_takes_for_the_same_differ(before, after, pointer):
    (found,) = find_changes(before, after)
    assert found.pointer == pointer


def test_a_null_is_no_value_except_where_documents_are_compared():
    assert [*find_changes({}, {"a": None})] == [*find_changes({"a": None}, {})] == []
    for before, after in (({}, {"a/b": None}), ({"a/b": None}, {})):
        assert [*find_changes(before, after, tells_null=True)] == [ValueChange("/a~1b", None, None)]
    assert [*find_changes({"a": None}, {"a": None}, tells_null=True)] == []
    assert [*find_changes({"a": None}, {"a": 1}, tells_null=True)] == [ValueChange("/a", None, 1)]
