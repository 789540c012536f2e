"""Which tables a stream looks at to compact them."""

import threading
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from streams.compaction import Compactor
from tests.years.clock import replaced


class InlineThread:
    """A thread whose work is done when ``start`` returns."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], **_: Any) -> None:
        self.start = partial(target, *args)

    def is_alive(self) -> bool:
        return False


class Tables:
    """Opens tables that need no compaction, and knows which ones were looked at."""

    def __init__(self) -> None:
        self.looked_at: list[str] = []

    def open(self, name: str) -> Any:
        self.looked_at.append(name)
        return SimpleNamespace(compact=lambda max_small_files: 0)


def test_a_table_is_looked_at_first_and_then_whenever_it_has_many_new_files() -> None:
    tables, now = Tables(), [0.0]
    others = [
        ("time", time, SimpleNamespace(monotonic=lambda: now[0])),
        ("threading", threading, SimpleNamespace(Thread=InlineThread)),
    ]
    with replaced({"streams.compaction"}, others):
        compactor = Compactor(tables)  # type: ignore[arg-type]
        looks = []
        for _ in range(8):
            now[0] += 31
            compactor.touch({"busy": 20, "quiet": 3})
            looks.append(tables.looked_at)
            tables.looked_at = []
    assert [look.count("busy") for look in looks] == [1] * 8
    assert [look.count("quiet") for look in looks] == [1, 0, 0, 0, 0, 0, 1, 0]
