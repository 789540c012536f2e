import json
from types import SimpleNamespace

from connectors.bigquery.writes.attempt_notes import AttemptNote
from connectors.bigquery.writes.stream_tables import RowCommitter


def test_large_rows_of_a_forgotten_commit_that_a_crash_left_uninserted_are_inserted():
    inserted = []
    committer = RowCommitter(SimpleNamespace())
    committer._committer = SimpleNamespace(
        commit_streams=lambda *_: False,
        flush_streams=lambda *_: True,
        has_rows_of=lambda *_, **__: True,
        insert_large=lambda _note, _table, staged, _ends_at: inserted.extend(staged),
    )
    entry = {"streams": ["gone"], "staged": [{"table": "large", "rows": 1}], "ingest_times": ["t"]}
    note = AttemptNote("l", 1, "s", 1, json.dumps({"shop.staging.orders": entry}))
    assert committer.drive(note, seconds=1) == {"shop.staging.orders"}
    assert inserted == entry["staged"]
