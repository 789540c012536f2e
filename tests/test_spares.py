import os
import signal
import sys

from connectors.lake import query_wire as wire
from connectors.lake.query import ArchiveSnapshot, QueryLimits
from connectors.lake.query_process import QueryProcesses, Statement
from tests.nursery import Nursery
from tests.spares import MAX_KEPT


def spare_pid(processes: QueryProcesses) -> int:
    return processes._spare._popen.pid


def test_a_closed_service_leaves_its_spare_to_the_next_one_in_the_same_surroundings(tmp_path, monkeypatch):
    first, elsewhere, second = (QueryProcesses(keep_spare=True) for _ in range(3))
    # What earlier tests left is in use, so that the one that is left here is the only one.
    others = [QueryProcesses(keep_spare=True) for _ in range(MAX_KEPT)]
    for other in others:
        other.warm()
    first.warm()
    pid = spare_pid(first)
    first.close()
    with monkeypatch.context() as moved:
        moved.setenv("LC_ALL", "C.UTF-8")
        elsewhere.warm()
        assert spare_pid(elsewhere) != pid
        elsewhere._spare.end()
    second.warm()
    assert spare_pid(second) == pid
    limits = QueryLimits("200MB", tmp_path / "spill", seconds=60)
    files = []
    (table,) = second.run(ArchiveSnapshot(files, "day"), [Statement("SELECT 1 AS one", {})], limits)
    assert table.to_pylist() == [{"one": 1}]
    assert spare_pid(second) != pid
    for processes in (second, elsewhere, *others):
        processes.close()


def test_a_process_is_forked_with_its_imports_made_and_tells_how_it_ended():
    nursery = Nursery({"PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        ended, killed = nursery.fork(), nursery.fork()
        for process in (ended, killed):
            assert process.stdout.read(wire.HEAD.size) == wire.HEAD.pack(0, wire.READY), "it takes a request"
            assert process.poll() is None
        ended.stdin.close()
        assert ended.wait(30) == 0, "without a request it ends with its asker"
        killed.kill()
        assert killed.wait(30) == -signal.SIGKILL
        for pipe in (ended.stdout, killed.stdin, killed.stdout):
            pipe.close()
    finally:
        nursery.end()
