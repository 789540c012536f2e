"""Every column of the job store has a reader, which docs/explanation/job-store.md names."""

import re
from pathlib import Path

from inventory import recorder
from jobs.store.tables import METADATA
from rollout import stream_reports

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "job-store.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| `([\w/]+\.py)` \| \S.* \|$", re.MULTILINE)
# By heading, without the backticks of a table's name.
SECTIONS = {
    part.partition("\n")[0].strip("# `"): ROW.findall(part) for part in re.split(r"^##", PAGE, flags=re.MULTILINE)
}


def test_the_page_lists_every_column_of_the_store_and_no_other():
    listed = {name: {column for column, _ in SECTIONS.get(name, ())} for name in METADATA.tables}
    assert listed == {name: {column.name for column in table.columns} for name, table in METADATA.tables.items()}


def test_the_store_has_twelve_tables_at_most():
    assert len(METADATA.tables) <= 12


def test_each_reader_names_what_it_reads_and_is_no_migration():
    rows = [row for rows in SECTIONS.values() for row in rows]
    assert len(rows) == len(re.findall(r"^\| `", PAGE, re.MULTILINE))
    faults = [
        f"{file}: {name}"
        for name, file in rows
        if "migrations" in file or not re.search(rf"\b{name}\b", (ROOT / file).read_text())
    ]
    assert faults == []


def test_reports_of_streams_and_figures_of_jobs_have_no_other_fields():
    assert [name for name, _ in SECTIONS["Status of a stream in its report"]] == [*stream_reports._REPORTED]
    own = {"state", "rate_limit_messages_per_second"}
    assert {name for name, _ in SECTIONS["Figures of a job"]} == own | {*recorder._JOB_FIGURES}
