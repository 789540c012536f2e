import random

import pytest

from tests.power import File, Survival, replay

# As strace wrote it beside other threads: a call that another thread's line interrupts is told in two pieces.
TRACE = b"""\
7 openat(AT_FDCWD</work>, "%(root)b/entry#1", O_RDWR|O_CREAT|O_EXCL|O_CLOEXEC, 0666 <unfinished ...>
8 openat(AT_FDCWD</work>, "/elsewhere", O_RDONLY|O_CLOEXEC) = 3</elsewhere>
7 <... openat resumed>)             = 15<%(root)b/entry#1>
7 write(15<%(root)b/entry#1>, "commit\\n", 7 <unfinished ...>
8 write(10<anon_inode:[eventfd]>, "\\1\\0\\0\\0\\0\\0\\0\\0", 8) = 8
7 <... write resumed>)              = 7
7 fsync(15<%(root)b/entry#1> <unfinished ...>
8 write(10<anon_inode:[eventfd]>, "\\1\\0\\0\\0\\0\\0\\0\\0", 8 <unfinished ...>
7 <... fsync resumed>)              = 0
8 <... write resumed>)              = 8
7 linkat(AT_FDCWD</work>, "%(root)b/entry#1", AT_FDCWD</work>, "%(root)b/entry", 0 <unfinished ...>
7 <... linkat resumed>)             = 0
"""


def recorded(tmp_path, lines):
    trace = tmp_path / "trace"
    trace.write_bytes(lines)
    return list(replay(trace, tmp_path / "root", tmp_path / "marks"))


def test_a_call_that_strace_tells_in_two_pieces_is_recorded_as_one(tmp_path):
    root = tmp_path / "root"
    moments = recorded(tmp_path, TRACE % {b"root": str(root).encode()})
    assert [moment.call.split(" ")[0] for moment in moments] == ["write", "fsync", "linkat"]
    entry = moments[-1].folder.now[f"{root}/entry"]
    assert (entry.now, entry.synced) == (b"commit\n", b"commit\n")


@pytest.mark.parametrize("call", ["write(4<%(root)b/a>, ???, 7) = 7", "fsync(4<%(root)b/a>, 1) = 0"])
def test_a_call_on_the_folder_that_can_t_be_read_is_an_error_and_not_left_out(tmp_path, call):
    root = str(tmp_path / "root").encode()
    with pytest.raises(ValueError, match="can't read"):
        recorded(tmp_path, b"7 " + call.encode() % {b"root": root} + b"\n")


def test_an_append_that_is_cut_short_leaves_what_was_synced_before_it():
    file = File(now=b"synced and much longer|new", synced=b"synced and much longer|")
    left = {file.survivor(Survival.CHANCE, random.Random(seed)) for seed in range(50)}
    assert left == {file.now, file.synced, b"synced and much longer|n"}


def test_a_file_that_was_written_anew_may_be_cut_anywhere():
    left = {File(b"new bytes", b"old").survivor(Survival.CHANCE, random.Random(seed)) for seed in range(50)}
    assert left == {b"new bytes", b"old", b"new "}
