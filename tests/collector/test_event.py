from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from collector.event import fact_attributes, new_identity
from model.message import MAX_ATTRIBUTE_VALUE_BYTES


def test_ids_are_of_version_7_and_sort_by_time() -> None:
    found = [new_identity().uuid for _ in range(2_000)]
    assert {(UUID(each).version, UUID(each).variant) for each in found} == {(7, "specified in RFC 4122")}
    # Of one 250 ns step of rand_a only the random part decides.
    assert [each[:18] for each in found] == sorted(each[:18] for each in found)
    assert len(set(found)) == len(found)


def test_the_moment_in_the_id_is_the_timestamp() -> None:
    identity = new_identity()
    milliseconds = int(identity.uuid.replace("-", "")[:12], 16)
    assert f"{milliseconds % 1000:03d}" == identity.timestamp[20:23]


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet="aé🙂", min_size=200, max_size=1500))
def test_a_cut_ends_between_characters(value: str) -> None:
    found = fact_attributes({"query": value}, ["query"])
    assert value.startswith(found["http_query"])
    assert len(found["http_query"].encode()) > MAX_ATTRIBUTE_VALUE_BYTES - 4 or found["http_query"] == value
    assert len(found["http_query"].encode()) <= MAX_ATTRIBUTE_VALUE_BYTES
    assert ("http_cut" in found) == (found["http_query"] != value)
