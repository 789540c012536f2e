import json

from sql.check import check_lines, check_query

GOOD = "SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE >= '2024-01-01'"


def test_a_good_query_is_accepted_with_its_window_and_columns(policy):
    report = check_query(GOOD, {}, policy)
    assert report.exit_code == 0
    document = json.loads(json.dumps(report.to_json()))
    assert document["verdict"] == "accept"
    assert document["window"] == {"from": "2024-01-01T00:00:00+00:00", "to": "2024-01-10T12:00:00+00:00"}
    assert document["tables"] == ["backup.messages"]
    assert [column["name"] for column in document["columns"]] == ["data", "attributes", "message_id"]
    assert report.to_text().startswith("accepted\n")


def test_a_wrong_parameter_is_a_violation_like_any_other(policy):
    report = check_query(GOOD, {"x": {"type": "INT64", "value": "y"}}, policy)
    assert report.to_json()["codes"] == ["parameter_value"]


def test_thousands_are_checked_in_one_process(policy):
    lines = [json.dumps({"id": n, "sql": GOOD if n % 2 else "DROP TABLE x"}) for n in range(500)]
    lines += ["", "no json", '{"id": 1}', "[]", '{"id": "p", "sql": "SELECT 1", "params": {"a": ["INT64"]}}']
    lines.append(
        json.dumps({"id": "q", "sql": GOOD.replace("'2024-01-01'", "@d"), "params": {"d": ["DATE", "2024-01-01"]}})
    )
    answers = list(check_lines(lines, policy))
    assert [answer["verdict"] for answer in answers[:4]] == ["reject", "accept", "reject", "accept"]
    assert [answer["codes"] for answer in answers[500:504]] == [["line_invalid"]] * 4
    assert answers[-1]["id"] == "q"
    assert answers[-1]["verdict"] == "accept"
    assert set(answers[0]) == {"id", "verdict", "codes", "ms"}
