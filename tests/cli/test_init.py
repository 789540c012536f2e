import json
import uuid

import pytest


@pytest.fixture
def bigquery(shared_standin, monkeypatch):
    """The stand-in as this process's BigQuery."""
    shared_standin.lead_here(monkeypatch)
    return shared_standin


@pytest.fixture
def project():
    """A project of the test's own, in which nothing is yet."""
    return f"p{uuid.uuid4().hex[:12]}"


def test_it_creates_the_lakes_archive_and_says_so_once(refeed, home):
    first = refeed("init")
    assert first.code == 0
    assert f"+ {home}/lake/backup/messages  table: missing -> created" in first.out
    assert (home / "lake" / "backup" / "messages" / "_delta_log").is_dir()
    assert "is up to date" in refeed("init").out


def test_a_dry_run_shows_what_is_missing_and_creates_nothing(refeed, bigquery, project):
    shown = refeed("init", "--project", project, "--dataset", "raw", "--location", "EU", "--dry-run")
    assert shown.code == 0
    assert f"+ {project}.raw  dataset: missing -> EU" in shown.out
    assert f"+ {project}.raw.messages  table: missing -> created" in shown.out
    assert "nothing was changed" in shown.out
    assert list(bigquery.client(project).list_datasets()) == []


def test_it_creates_tables_and_prints_the_lines_that_every_other_command_needs(refeed, bigquery, project):
    done = refeed("init", "--project", project, "--dataset", "raw", "--location", "EU")
    assert done.code == 0
    assert "export REFEED_ARCHIVE_TABLE=raw.messages" in done.out
    assert "export REFEED_BIGQUERY_LOCATION=EU" in done.out
    assert bigquery.client(project).get_dataset("raw").location == "EU"
    again = refeed("init", "--project", project, "--dataset", "raw", "--location", "EU", "--json")
    assert json.loads(again.out) == {
        "archive": f"bigquery://{project}.raw.messages",
        "dry_run": False,
        "changes": [],
    }


def test_a_difference_that_cannot_be_mended_is_shown_and_refused(refeed, bigquery, project, monkeypatch):
    assert refeed("init", "--project", project).code == 0
    monkeypatch.setenv("REFEED_ARCHIVE_PARTITIONING", "hour")
    shown = refeed("init", "--project", project, "--dry-run")
    assert shown.code == 1
    assert f"! {project}.backup.messages  partitioning: DAY -> HOUR  (can't be changed)" in shown.out
    refused = refeed("init", "--project", project)
    assert refused.code == 1
    assert "table_mismatch" in refused.err


def test_options_of_bigquery_are_refused_for_a_lake(refeed):
    refused = refeed("init", "--dataset", "raw")
    assert refused.code != 0
    assert "REFEED_WAREHOUSE=bigquery" in refused.err


def test_one_of_the_two_hosts_alone_is_refused_before_anything_is_called(refeed, bigquery, monkeypatch):
    monkeypatch.delenv("REFEED_BIGQUERY_STORAGE_HOST")
    refused = refeed("init")
    assert "belong together" in refused.err


def test_what_reads_a_lake_says_so_instead_of_reading_one_that_nobody_writes(refeed, bigquery):
    refused = refeed("compact")
    assert refused.code == 2
    assert "only with a lake, but REFEED_WAREHOUSE is bigquery" in refused.err
