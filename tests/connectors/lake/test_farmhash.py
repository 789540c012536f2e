"""Fingerprints beside those of Google's reference engine, one of each length that is treated apart."""

import pytest

from connectors.lake.farmhash import fingerprint


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, -7286425919675154353),
        (3, 7836721383716570152),
        (7, 1123016345076934235),
        (8, -2573794281055111257),
        (16, -310057867672146533),
        (17, -6531458125173161868),
        (32, 764915578794662492),
        (33, -341158500388626361),
        (64, -2286581940167837302),
        (65, 1750252573709625707),
        (128, -6361978639264201605),
        (129, -1390946558950256037),
        (1000, -7693643720511775873),
    ],
)
def test_a_fingerprint_is_googles(size: int, expected: int) -> None:
    assert fingerprint(bytes(n * 7 % 256 for n in range(size))) == expected
