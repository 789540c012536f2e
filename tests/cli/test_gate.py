import json

import pyarrow as pa
from deltalake import write_deltalake

REPLAY = (
    "SELECT data, attributes, message_id FROM backup.messages "
    "WHERE _PARTITIONTIME >= '2026-01-01T00:00:00Z' AND _PARTITIONTIME < '2026-01-02T00:00:00Z'"
)


def test_a_query_that_may_run_says_what_it_reads(refeed):
    result = refeed("check", REPLAY, "--json")
    assert result.code == 0
    answer = json.loads(result.out)
    assert answer["verdict"] == "accept"
    assert answer["window"]["from"].startswith("2026-01-01T00:00:00")
    assert answer["window"]["to"].startswith("2026-01-02T00:00:00")
    assert refeed("check", REPLAY).out.startswith("accepted")


def test_every_violation_is_told_at_once(refeed):
    result = refeed("check", "SELECT data FROM backup.messages", "--json")
    assert result.code == 2
    answer = json.loads(result.out)
    assert answer["verdict"] == "reject"
    assert len(answer["violations"]) >= 2
    text = refeed("check", "SELECT data FROM backup.messages").out
    assert all(violation["message"] in text for violation in answer["violations"])


def test_a_file_is_read_by_its_name(refeed, tmp_path):
    file = tmp_path / "replay.sql"
    file.write_text(REPLAY)
    assert refeed("check", str(file)).code == 0


def test_a_file_of_queries_gets_a_verdict_a_line(refeed, tmp_path):
    file = tmp_path / "queries.jsonl"
    with_parameter = REPLAY.replace("'2026-01-01T00:00:00Z'", "@from")
    lines = [
        {"id": 1, "sql": REPLAY},
        {"id": 2, "sql": "DROP TABLE backup.messages"},
        {"id": 3, "sql": with_parameter, "params": {"from": ["TIMESTAMP", "2026-01-01T00:00:00Z"]}},
    ]
    file.write_text("\n".join(json.dumps(line) for line in lines))
    result = refeed("check", "--jsonl", str(file))
    assert result.code == 0
    verdicts = [json.loads(line) for line in result.out.splitlines()]
    assert [(v["id"], v["verdict"]) for v in verdicts] == [(1, "accept"), (2, "reject"), (3, "accept")]
    assert verdicts[1]["codes"] == ["statement_not_allowed"]


def test_no_query_or_two_are_a_wrong_command_line(refeed):
    assert refeed("check").code == 2
    assert refeed("check", REPLAY, "--jsonl", "x").code == 2


def test_free_asks_for_no_window_and_no_columns(refeed):
    sql = "SELECT COUNT(*) AS n FROM backup.messages"
    assert refeed("check", sql).code == 2
    assert refeed("check", sql, "--free").code == 0


def test_a_query_longer_than_a_files_name_is_a_query(refeed):
    assert refeed("check", REPLAY + " AND topic IN (" + ", ".join(["'orders'"] * 1000) + ")").code == 0


def test_a_declared_table_can_be_read(refeed):
    text = "SELECT data, attributes, message_id FROM ops.dead WHERE _PARTITIONDATE = '2026-01-01'"
    columns = "data BYTES, attributes ARRAY<STRUCT<key STRING, value STRING>>, message_id STRING"
    declared = f"ops.dead({columns}, _PARTITIONTIME TIMESTAMP)"
    answer = json.loads(refeed("check", text, "--table-schema", declared, "--json").out)
    assert (answer["verdict"], answer["tables"], answer["lake"]) == ("accept", ["ops.dead"], [])
    assert answer["window"] == {"from": "2026-01-01T00:00:00+00:00", "to": "2026-01-02T00:00:00+00:00"}
    assert "table_not_allowed" in refeed("check", text).out
    assert refeed("check", text, "--table-schema", "ops.dead").code == 2


def test_a_listed_table_is_looked_up_in_the_lake(refeed, home, monkeypatch):
    monkeypatch.setenv("REFEED_QUERY_TABLES", "ops.dead, ops.gone")
    text = "SELECT data, attributes, message_id FROM ops.dead"
    unknown = json.loads(refeed("check", text, "--json").out)
    assert (unknown["verdict"], [gap["code"] for gap in unknown["lake"]]) == ("accept", ["lake_unsupported"])
    attributes = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
    schema = pa.schema([("data", pa.binary()), ("attributes", attributes), ("message_id", pa.string())])
    write_deltalake(str(home / "lake" / "ops" / "dead"), schema.empty_table())
    known = json.loads(refeed("check", text, "--json").out)
    assert (known["verdict"], known["lake"]) == ("accept", [])
    gone = json.loads(refeed("check", text.replace("dead", "gone"), "--json").out)
    assert gone["codes"] == ["table_missing"]


def test_the_rewritten_query_is_printed_and_passes(refeed):
    result = refeed("check", "SELECT data FROM backup.messages", "--rewrite")
    assert result.code == 0
    assert refeed("check", result.out).code == 0
    # What can't be mended is printed as it is.
    kept = refeed("check", "DROP TABLE x", "--rewrite")
    assert (kept.code, kept.out) == (2, "DROP TABLE x\n")
