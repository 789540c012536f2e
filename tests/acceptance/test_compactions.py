"""A schedule's compaction of many small files, by a real API and its driver, which is killed after a commit."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from model import failpoint
from rollout.child import Children
from tests.acceptance.test_merges import Office
from tests.archive import fill_archive
from tests.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(500)]
ARCHIVE, STAGING = "backup/messages", "staging/orders"
FILES = 24
MANIFEST = """\
kind: Schedule
name: small-files
cron: "* * * * *"
job: {kind: compaction, request: {tables: [archive, staging.orders]}}
"""


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    with Children() as children:
        office = Office(tmp_path, children)
        try:
            yield office
        finally:
            office.close()


def files_and_rows(office: Office, table: str) -> tuple[int, Counter[str]]:
    """Return how many files the table has, and how often it has each row."""
    found = DeltaTable(str(office.home / "lake" / table))
    return len(found.file_uris()), Counter(map(repr, found.to_pyarrow_table().to_pylist()))


def test_a_slot_compacts_many_small_files_and_no_row_changes_though_its_driver_is_killed(office: Office) -> None:
    for number in range(FILES):
        fill_archive(office.home, {"orders": 1 + number % 3})
        office.orders.stage((1, number), (1, number + 100))
    before = {table: files_and_rows(office, table) for table in (ARCHIVE, STAGING)}
    assert {files for files, _ in before.values()} == {FILES}
    failpoint.arm(office.places, "compact.after")

    office.client.put("/manifests/small-files", content=MANIFEST).raise_for_status()
    run = ended_run(office)
    office.client.delete("/manifests/small-files").raise_for_status()

    assert failpoint.is_hit(office.places, "compact.after")
    assert (run["state"], run["job_kind"]) == ("SUCCEEDED", "compaction")
    done = office.client.get(f"/compactions/{run['job_id']}").json()
    assert (done["state"], done["restarts"], done["error"]) == ("SUCCEEDED", 1, None)
    assert done["created_by"] == "schedule:small-files"
    # The driver died before it had noted the archive, and found nothing more to compact there.
    assert done["files_removed"] == {"archive": 0, "staging.orders": FILES - 1}
    after = {table: files_and_rows(office, table) for table in (ARCHIVE, STAGING)}
    assert {table: files for table, (files, _) in after.items()} == {ARCHIVE: 1, STAGING: 1}
    for table in (ARCHIVE, STAGING):
        assert after[table][1] == before[table][1], table
    status = office.client.get("/status").json()
    assert [each["id"] for each in status["compactions"]] == []
    assert [item for item in status["inbox"] if item["resource"] == "compaction"] == []
    assert "compacted" in office.client.get(f"/compactions/{done['id']}/logs").text


def ended_run(office: Office) -> dict[str, Any]:
    """Return the first run of the schedule that has ended; each slot begins one."""
    found: dict[str, Any] = {}

    def has_ended() -> bool:
        runs = office.client.get("/schedules/small-files").json()["runs"]
        found.update(runs[-1] if runs else {"state": "none"})
        return found["state"] in {"SUCCEEDED", "FAILED", "CANCELLED"}

    wait_until(
        has_ended, f"a slot is compacted; the API's log: {office.api.log_tail()}", seconds=180, every_seconds=0.1
    )
    return found
