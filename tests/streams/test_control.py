"""Which order stands when the control file is damaged, half-written or older than the last one."""

import json
import threading

import pytest

from streams.control import BatchPace, ControlFile, StreamControl


@pytest.fixture
def path(tmp_path):
    return tmp_path / "instances" / "in_1" / "control.json"


def test_without_a_file_the_stream_runs_as_it_was_started(path):
    control = ControlFile(path).read()
    assert (control, control.pace) == (StreamControl(0, "run"), BatchPace())


def test_an_order_replaces_the_one_before(path):
    file = ControlFile(path)
    StreamControl(1, "run", batch_seconds=0.5, batch_bytes=1000).write(path)
    assert file.read().pace == BatchPace(0.5, 1000)
    StreamControl(2, "drain", timeout_seconds=120).write(path)
    assert file.read() == StreamControl(2, "drain", timeout_seconds=120)
    assert list(path.parent.iterdir()) == [path], "no part of it is left beside it"


def test_an_older_number_changes_nothing(path):
    file = ControlFile(path)
    StreamControl(5, "drain", timeout_seconds=120).write(path)
    assert file.read().number == 5
    StreamControl(4, "run").write(path)
    assert file.read().order == "drain"
    StreamControl(5, "run").write(path)
    assert file.read().order == "drain", "the same number is the same order"
    path.unlink()
    assert file.read().order == "drain"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "\x00\xff",
        '{"number": 9}garbage',
        '{"number": 9, "order": "stop"}',
        '{"number": "9", "order": "drain"}',
        '{"number": true, "order": "drain"}',
        '{"number": -1, "order": "drain"}',
        '{"number": 9, "order": ["drain"]}',
        '{"number": 9, "order": "drain", "timeout_seconds": "soon"}',
        '{"number": 9, "order": "drain", "timeout_seconds": -1}',
        '{"number": 9, "order": "drain", "timeout_seconds": NaN}',
        '{"number": 9, "order": "run", "batch_bytes": 0}',
        '{"number": 9, "order": "run", "batch_seconds": true}',
        '{"number": 9, "order": "run", "unheard_of": 1}',
    ],
)
def test_a_damaged_file_leaves_the_last_good_order_standing(path, text):
    file = ControlFile(path)
    StreamControl(3, "run", batch_seconds=0.5).write(path)
    file.read()
    path.write_text(text)
    assert file.read() == StreamControl(3, "run", batch_seconds=0.5)
    StreamControl(4, "cancel").write(path)
    assert file.read().order == "cancel", "a good one is read again"


def test_a_file_that_is_cut_off_anywhere_is_never_another_order(path):
    StreamControl(3, "drain", timeout_seconds=120).write(path)
    whole = path.read_text()
    for length in range(len(whole)):
        path.write_text(whole[:length])
        assert ControlFile(path).read() == StreamControl(), whole[:length]


def test_a_reader_beside_a_writer_sees_each_order_whole(path):
    def write():
        for number in range(1, 300):
            StreamControl(number, "run", batch_bytes=number).write(path)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    file, seen = ControlFile(path), [StreamControl()]
    while writer.is_alive():
        seen.append(file.read())
    writer.join(30)
    seen.append(file.read())
    assert all(found.number == (found.batch_bytes or 0) for found in seen)
    assert [found.number for found in seen] == sorted(found.number for found in seen)
    assert json.loads(path.read_text())["number"] == seen[-1].number == 299
