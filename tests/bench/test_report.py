import io
import json

from rich.console import Console

from bench.report import COLUMNS, find_goals, render_row, show, write_results

RESULT = {
    "name": "backup",
    "unit": "messages/s",
    "refeed": 120_000.0,
    "limit": 150_000.0,
    "script": 15_000.0,
    "ratios": {"limit": 0.8, "script": 8.0, "beam": None},
    "cpu_us_per_message": {"refeed": 7.25, "limit": 5.0},
    "goals": [
        {"what": "refeed / limit", "value": 0.8, "goal": ">= 0.7", "met": True},
        {"what": "refeed / beam", "value": None, "goal": ">= 50", "met": None},
    ],
}


def test_a_row_has_a_cell_a_column_and_nothing_where_there_is_no_figure():
    row = render_row(RESULT)
    assert len(row) == len(COLUMNS)
    assert row == [
        *("backup", "messages/s", "120,000", "150,000", "", "15,000", "", "0.80", "", "8.00", "", "", "7.25"),
        "1 of 2 met",
    ]


def test_a_result_with_a_limit_alone_is_judged_by_its_ratio():
    result = {"name": "x", "unit": "s", "refeed": 1.0, "limit": 2.0, "ratio": 0.5, "goal_ratio": 0.7}
    assert render_row(result)[7:] == ["0.50", "", "", "", "", "", "NOT met"]
    assert find_goals({"name": "x", "ratio": 0.5, "goal_ratio": None}) == []


def test_goals_that_are_not_met_are_named_below_the_table():
    out = io.StringIO()
    missed = {**RESULT, "goals": [{"what": "refeed / limit", "value": 0.6, "goal": ">= 0.7", "met": False}]}
    show([RESULT, missed], Console(file=out, width=200))
    assert out.getvalue().splitlines()[-1] == "not met: backup, refeed / limit 0.60, goal >= 0.7"


def test_a_column_that_no_result_has_is_not_shown():
    out = io.StringIO()
    show([{"name": "gate, a plain query", "unit": "ms", "refeed": 0.7}], Console(file=out, width=80))
    assert "gate, a plain query" in out.getvalue()
    assert "Refeed" in out.getvalue()
    assert "script" not in out.getvalue()


def test_results_are_written_with_the_machine_they_come_from(tmp_path):
    write_results([RESULT], tmp_path / "results" / "latest.json")
    written = json.loads((tmp_path / "results" / "latest.json").read_text())
    assert written["results"] == [RESULT]
    assert {"cores", "python", "system"} <= written["machine"].keys()
