"""The orders of one stream's process, given by an agent and by a snapshot's thread at once."""

import threading
from types import SimpleNamespace
from typing import Any, cast

from model.disk import replace_text
from rollout.process import StreamProcess
from streams.control import BatchPace, ControlFile
from streams.folder import StreamFolder

SECONDS = 10.0


def test_an_agent_that_looks_while_a_pause_is_written_does_not_end_it(tmp_path, monkeypatch):
    folder = StreamFolder.of(tmp_path, "backup", "i1")
    process = StreamProcess(folder, cast("Any", SimpleNamespace()))
    process.order("run", pace=BatchPace(1.0, None))
    is_writing, may_end = threading.Event(), threading.Event()

    def write_slowly(path, text):
        if '"pause"' in text:
            is_writing.set()
            assert may_end.wait(SECONDS)
        replace_text(path, text)

    monkeypatch.setattr("streams.control.replace_text", write_slowly)
    pausing = threading.Thread(target=process.pause, args=(60.0,))
    pausing.start()
    assert is_writing.wait(SECONDS)
    looking = threading.Thread(target=process.keep_pace, args=(BatchPace(2.0, None),))
    looking.start()
    # It may wait for the pause to be written, or end before: both leave the pause as it is.
    looking.join(0.2)
    may_end.set()
    for each in (pausing, looking):
        each.join(SECONDS)
        assert not each.is_alive()
    assert ControlFile(folder.control).read().order == "pause"
    earlier = process.control.number
    assert process.pause(60.0) == earlier + 1
    # A thread that hung in an earlier attempt wakes up, and ends nothing but its own pause.
    process.resume(earlier)
    assert ControlFile(folder.control).read().order == "pause"
    process.resume(earlier + 1)
    process.keep_pace(BatchPace(2.0, None))
    newest = ControlFile(folder.control).read()
    assert (newest.order, newest.pace) == ("run", BatchPace(2.0, None))
