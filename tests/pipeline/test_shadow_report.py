"""The report of a shadow: what another release wrote is read, and nothing of it outlives its folder."""

import json
import os
from dataclasses import asdict

from model.errors import CheckpointCorruptError
from pipeline.shadow_report import FORGOTTEN_SECONDS, ShadowExample, ShadowFolder, ShadowReport, ShadowState


def example(table: str, number: int = 0) -> ShadowExample:
    return ShadowExample(table, "orders", str(number), "id", "1", "2")


def test_a_report_is_read_as_it_was_written_also_with_fields_of_another_release(tmp_path):
    folder = ShadowFolder.of(tmp_path, "pipeline", "sh_1")
    assert folder.read() == ShadowReport()
    folder.want()
    report = ShadowReport(
        ShadowState.FOLLOWING, rows_equal=3, rows_different=1, examples=[example("staging.orders")]
    )
    folder.write(report)
    assert folder.read() == report
    (folder.path / "report.json").write_text(json.dumps({**asdict(report), "of_a_later_release": 1}))
    assert folder.read() == report
    folder.forget()
    assert folder.read() == ShadowReport()


def test_twenty_cells_of_each_table_are_shown(tmp_path):
    report = ShadowReport()
    for number in range(50):
        report.show(example("staging.orders", number))
    report.show(example("staging.members"))
    tables = [one.table for one in report.examples]
    assert (tables.count("staging.orders"), tables.count("staging.members")) == (20, 1)


def test_a_shadow_is_wanted_while_somebody_looks_and_writes_nothing_after_it(tmp_path):
    folder = ShadowFolder.of(tmp_path, "pipeline", "sh_1")
    assert not folder.is_wanted()
    folder.write(ShadowReport())
    assert not folder.path.exists()
    folder.want()
    assert (folder.is_wanted(), folder.read_acknowledged_until()) == (True, None)
    folder.want(1700000000.25)
    folder.want()
    assert folder.read_acknowledged_until() == 1700000000.25
    assert list(ShadowFolder.all_of(tmp_path)) == [folder]
    long_ago = folder.path.stat().st_mtime - FORGOTTEN_SECONDS - 1
    os.utime(folder.path / "wanted", (long_ago, long_ago))
    assert not folder.is_wanted()


def test_a_report_says_why_the_shadow_failed(tmp_path):
    report = ShadowReport(ShadowState.CATCHING_UP, rows_equal=3)
    report.fail(CheckpointCorruptError("The plan can't be read."))
    assert report.state is ShadowState.FAILED
    assert report.error == {"code": "checkpoint_corrupt", "message": "The plan can't be read."}
    assert report.rows_equal == 3
