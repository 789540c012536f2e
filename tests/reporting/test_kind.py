"""What a merge has found out, as the store keeps it."""

from jobs.folder import JobFolder
from model.job import JobState
from reporting.kind import MERGE
from reporting.view import Merge, MergedSource


def test_a_retry_that_finds_what_the_attempt_before_found_is_shown_with_it(store, tmp_path):
    """A retry begins without findings; one that ends within seconds finds the same again."""
    request = {"source": None, "since": None, "dry_run": False, "sources": ["orders"]}
    job = store.insert("mg_1", MERGE.name, request, actor="ann")
    folder = JobFolder(tmp_path / job.id)
    folder.write_specification({})
    folder.write_findings(
        {"orders": MergedSource(source="orders", state="merged", changed=3).model_dump(mode="json")}
    )
    write_figures = MERGE.figures(folder)
    write_figures(store, job.id)
    store.move(job.id, JobState.CANCELLED, actor="ann")
    store.move(job.id, JobState.PENDING, actor="ann")
    write_figures(store, job.id)
    assert Merge.from_job(store.get(job.id)).progress.changed == 3
