"""The last lines of a log."""

import pytest

from jobs import log
from jobs.log import read_tail


@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n", b"\r\n"])
@pytest.mark.parametrize("width", [0, 1, 7, 100_000])
def test_the_tail_has_as_many_lines_as_are_asked_for(tmp_path, end, width):
    content = b"\n".join(b"%d\r" % number + b"x" * width for number in range(30)) + end
    (tmp_path / "log").write_bytes(content)
    lines = content.split(b"\n")
    whole = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    for wanted in (0, 1, 2, 29, 30, 31, 32, 100):
        assert read_tail(tmp_path / "log", wanted) == (b"".join(whole[-wanted:] if wanted else []), len(content))


def test_no_more_of_a_long_log_is_read_than_its_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(log, "MAX_TAIL_BYTES", 70_000)
    (tmp_path / "log").write_bytes(b"a" * 10_000_000 + b"\nlast\n")
    assert read_tail(tmp_path / "log", 9)[0] == b"last\n"
    (tmp_path / "log").write_bytes(b"")
    assert read_tail(tmp_path / "log", 9) == (b"", 0)
