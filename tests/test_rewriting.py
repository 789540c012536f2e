"""Asserts of test files are rewritten once, where pytest finds them."""

from pathlib import Path

import pytest
from _pytest.assertion import rewrite

from tests.rewriting import rewrite_asserts


def test_a_file_is_rewritten_once_until_it_changes(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    file = tmp_path / "test_shop.py"
    for text in ("def test_price():\n    assert 1 == 2\n", "def test_price():\n    assert 10 == 20\n"):
        file.write_text(text)
        assert [rewrite_asserts(file, request.config) for _ in range(2)] == [True, False]

    kept = rewrite.get_cache_dir(file) / f"test_shop{rewrite.PYC_TAIL}"
    code = rewrite._read_pyc(file, kept)
    space: dict[str, object] = {}
    exec(code, space)
    with pytest.raises(AssertionError, match="assert 10 == 20"):
        space["test_price"]()
