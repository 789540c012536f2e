"""The index of keys beside a reporting table."""

import numpy as np

from connectors.lake.key_index import KeyDays, KeyIndex, join

HASHES = np.array([1, 2, 2**64 - 1], np.uint64)


def test_an_index_that_is_built_again_from_a_table_without_rows_finds_nothing_and_grows(tmp_path):
    index = KeyIndex(str(tmp_path), 0).rebuild(join([]))
    assert len(index.find(HASHES).hashes) == 0
    index = KeyIndex(str(tmp_path), index.number).add(KeyDays(HASHES, np.array([5, 6, 7], np.int32)))
    assert KeyIndex(str(tmp_path), index.number).find(HASHES[1:]).days.tolist() == [6, 7]
