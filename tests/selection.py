"""Reads only the files that may have a test of a target that selects by a rare marker, as ``make test-kills``.

Reading all of them takes each process of a run longer than most files' tests do.
"""

from pathlib import Path
from typing import Final

import pytest

# Few files have one of these.
_RARE: Final = ("kills", "cloud", "browser", "soak")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore a file of Python that does not name the marker with which the selection (``-m``) begins."""
    marker = str(config.getoption("markexpr")).partition(" ")[0]
    if marker not in _RARE or collection_path.suffix != ".py":
        return None
    return None if f"mark.{marker}" in collection_path.read_text() else True
