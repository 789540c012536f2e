"""Draws that are equal whenever the code is."""

import importlib

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.draws import equal_draws

__all__ = ["equal_draws"]


def draw():
    found = []

    @settings(max_examples=300, database=None, derandomize=True)
    @given(st.text(), st.integers())
    def note(text, number):
        found.append((text, number))

    note()
    return found


def test_draws_are_the_same_whichever_modules_are_loaded(tmp_path, monkeypatch):
    before = draw()
    (tmp_path / "loaded_later.py").write_text('WORD, NUMBER = "loaded later", 123_456_789\n')
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("loaded_later")
    assert draw() == before
