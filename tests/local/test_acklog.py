import os

import pytest

from local import acklog, segments
from local.acklog import AckLog
from local.seqset import SeqSet
from local.status import StatusError
from tests.worlds.full_disk import full


def state(log: AckLog) -> tuple[int, list[tuple[int, int]]]:
    return log.acked.floor, log.acked.runs()


@pytest.mark.parametrize("cut", range(1, 33))
def test_a_torn_entry_is_cut_off_and_the_next_one_is_whole(tmp_path, cut):
    path = tmp_path / "a"
    log = AckLog(path, 0)
    log.record([(0, 3)])
    log.record([(5, 6)])
    os.truncate(path, path.stat().st_size - cut)
    again = AckLog(path, 0)
    assert state(again) == (3, [])
    again.record([(8, 9)])
    assert state(AckLog(path, 0)) == (3, [(8, 9)])


def test_a_replaced_state_may_go_back(tmp_path):
    log = AckLog(tmp_path / "a", 10)
    log.record([(10, 20)])
    log.replace(SeqSet(4, [(6, 7)]))
    log.record([(4, 5)])
    assert state(log) == state(AckLog(tmp_path / "a", 10)) == (5, [(6, 7)])


def test_the_file_stays_small_over_many_acknowledgements(tmp_path, monkeypatch):
    monkeypatch.setattr(acklog, "_COMPACT_BYTES", 1000)
    log = AckLog(tmp_path / "a", 0)
    for n in range(0, 2000, 2):
        log.record([(n, n + 1)])
        log.record([(n + 1, n + 2)])
    assert (tmp_path / "a").stat().st_size < 2000
    assert state(AckLog(tmp_path / "a", 0)) == (2000, [])


def test_a_full_disk_leaves_the_state_as_it_was(tmp_path, monkeypatch):
    log = AckLog(tmp_path / "a", 0)
    log.record([(0, 1)])

    with monkeypatch.context() as patch:
        patch.setattr(segments.os, "pwrite", full)
        with pytest.raises(StatusError):
            log.record([(1, 2)])
        with pytest.raises(StatusError):
            log.replace(SeqSet(9))
    assert state(log) == (1, [])
    log.record([(3, 4)])
    assert state(AckLog(tmp_path / "a", 0)) == (1, [(3, 4)])


def test_with_fsync_the_names_of_new_files_are_durable_too(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    log = AckLog(tmp_path / "a", 0, fsync=True)
    assert synced == [tmp_path.stat().st_ino]
    log.replace(SeqSet(5))
    assert synced == [tmp_path.stat().st_ino] * 2
    log.close()
