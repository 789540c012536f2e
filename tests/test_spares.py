from pathlib import Path

import pytest

from connectors.lake.archive import DataFile
from connectors.lake.query import ArchiveSnapshot, QueryLimits
from connectors.lake.query_process import QueryProcesses, Statement


def spare_pid(processes: QueryProcesses) -> int:
    assert processes._spare is not None
    pid: int = processes._spare._popen.pid
    return pid


def test_a_closed_service_leaves_its_spare_to_the_next_one_in_the_same_surroundings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, elsewhere, second = (QueryProcesses(keep_spare=True) for _ in range(3))
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
    files: list[DataFile] = []
    (table,) = second.run(ArchiveSnapshot(files, "day"), [Statement("SELECT 1 AS one", {})], limits)
    assert table.to_pylist() == [{"one": 1}]
    assert spare_pid(second) != pid
    second.close()
    elsewhere.close()
