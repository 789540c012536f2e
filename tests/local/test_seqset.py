import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from local.seqset import SeqSet, read_runs

runs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda r: (r[0], r[0] + r[1])), max_size=25)


@given(st.integers(0, 20), runs)
def test_a_seqset_holds_what_a_set_would_hold(floor: int, added: list[tuple[int, int]]) -> None:
    seqs = SeqSet(floor)
    expected = set(range(floor))
    for start, end in added:
        seqs.add(start, end)
        expected |= set(range(start, end))
    assert {n for n in range(100) if n in seqs} == expected
    assert {n for a, b in seqs.gaps(0, 90) for n in range(a, b)} == set(range(90)) - expected
    assert seqs.floor == min(set(range(101)) - expected)
    assert seqs.count_missing(90) == len(set(range(90)) - expected)
    assert all(b < c for (_, b), (c, _) in zip(seqs.runs(), seqs.runs()[1:], strict=False))


@given(runs)
def test_a_copy_made_of_floor_and_runs_is_equal(added: list[tuple[int, int]]) -> None:
    seqs = SeqSet(3, added)
    copy = SeqSet(seqs.floor, seqs.runs())
    assert (copy.floor, copy.runs()) == (seqs.floor, seqs.runs())


@given(st.lists(st.integers(0, 30), max_size=30))
def test_runs_give_back_the_numbers_in_their_order(numbers: list[int]) -> None:
    found = read_runs(np.array(numbers, dtype=np.int64))
    assert [n for start, end in found for n in range(start, end)] == numbers
