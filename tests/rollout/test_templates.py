"""Templates: files that are read strictly, parameters that are typed, and every fault at once."""

from pathlib import Path
from typing import Any

import pytest

from backfill.plan.request import BackfillRequest
from jobs.disk_files import DiskFiles
from model.errors import RequestInvalidError, TemplateInvalidError, TemplateNotFoundError
from rollout.request import StreamLaunch
from rollout.templates import BrokenTemplate, Template, Templates, parse_request, parse_template

REPLAY = """
name: replay
kind: backfill
description: Replays a day of one topic.
parameters:
  day: {type: DATE, required: true, help: The day of ingestion}
  topic: {type: STRING, default: orders}
  rate: {type: INT64, default: 500}
  most: {type: INT64}
  paused: {type: BOOL, default: false}
request:
  query: SELECT data, attributes FROM backup.messages WHERE _PARTITIONDATE = @day AND topic = @topic
  topic: ${topic}
  parameters:
    day: {type: DATE, value: "${day}"}
    topic: {type: STRING, value: "${topic}"}
  description: ${topic} of ${day}, paused ${paused}
  rate_limit_messages_per_second: ${rate}
  max_rows: ${most}
  start_paused: ${paused}
"""


def replay() -> Template:
    return parse_template("replay", REPLAY.encode())


def faults(text: str, name: str = "replay") -> dict[str, str]:
    with pytest.raises(TemplateInvalidError) as raised:
        parse_template(name, text.encode())
    errors = raised.value.details["errors"]
    assert all(error["message"] in raised.value.message for error in errors)
    return {error["pointer"]: error["message"] for error in errors}


def wrong_parameters(given: dict[str, Any]) -> dict[str, tuple[str, str]]:
    with pytest.raises(RequestInvalidError) as raised:
        replay().render(given)
    return {error["pointer"]: (error["code"], error["message"]) for error in raised.value.details["errors"]}


def test_parameters_go_where_their_placeholders_are_with_their_types() -> None:
    request = parse_request("backfill", replay().render({"day": "2026-01-02", "rate": 7, "paused": True}))
    assert isinstance(request, BackfillRequest)
    assert request.topic == "orders"
    assert request.parameters["day"] == {"type": "DATE", "value": "2026-01-02"}
    assert request.rate_limit_messages_per_second == 7
    assert request.start_paused is True
    assert request.description == "orders of 2026-01-02, paused true"
    # What was left out has the field's own default.
    assert request.max_rows is None
    assert "max_rows" not in replay().render({"day": "2026-01-02"})


def test_a_value_is_never_read_as_a_placeholder_or_as_sql() -> None:
    rendered = replay().render({"day": "2026-01-02", "topic": "${day}' OR TRUE --"})
    assert rendered["topic"] == "${day}' OR TRUE --"
    assert rendered["query"] == replay().request["query"]
    assert rendered["description"].startswith("${day}' OR TRUE -- of 2026-01-02")


def test_every_wrong_parameter_is_named_at_once_with_the_name_that_was_meant() -> None:
    assert wrong_parameters({"topik": "orders", "rate": "fast", "paused": "yes"}) == {
        "/parameters/topik": (
            "parameter_unknown",
            "The template replay has no parameter topik. Did you mean topic?",
        ),
        "/parameters/day": ("parameter_missing", "day is missing. It is a DATE: The day of ingestion."),
        "/parameters/rate": ("parameter_invalid", "rate: 'fast' is not a valid INT64."),
        "/parameters/paused": ("parameter_invalid", "paused: 'yes' is not a valid BOOL."),
    }


@pytest.mark.parametrize(
    ("given", "pointer"),
    [
        ({"day": "2026-13-01"}, "/parameters/day"),
        ({"day": "2026-01-02", "rate": "7"}, "/parameters/rate"),
        ({"day": "2026-01-02", "rate": True}, "/parameters/rate"),
        ({"day": "2026-01-02", "topic": ["a"]}, "/parameters/topic"),
        ({"day": None}, "/parameters/day"),
    ],
)
def test_a_value_of_another_type_is_wrong(given: dict[str, Any], pointer: str) -> None:
    assert list(wrong_parameters(given)) == [pointer]


def test_what_the_parameters_make_of_a_request_is_read_as_strictly_as_the_api_reads_it() -> None:
    with pytest.raises(RequestInvalidError) as raised:
        parse_request("backfill", {"topic": 5, "from": 5, "max_rows": "many"})
    assert {error["pointer"] for error in raised.value.details["errors"]} == {
        "/request/topic",
        "/request/from",
        "/request/max_rows",
    }
    assert parse_request("merge", {"source": "orders"}).source == "orders"


RANGE = """
name: hour
kind: backfill
parameters:
  from: {type: TIMESTAMP, required: true}
  to: {type: TIMESTAMP, default: "1h"}
  region: {required: true}
request:
  source_topic: orders
  from: ${from}
  to: "2026-01-01T03:00:00Z"
  source_attributes: {region: "${region}", at: "${to}"}
  where: WHERE
"""


def test_a_range_has_placeholders_wherever_no_value_is_read_as_sql() -> None:
    evil = "x' OR ''='"
    text = RANGE.replace("1h", "2026-01-01T00:00:00Z")
    template = parse_template("hour", text.replace("WHERE", "topic IS NOT NULL").encode())
    rendered = template.render({"from": "2026-01-01T02:00:00Z", "region": evil})
    query = parse_request("backfill", rendered).write("backup.messages").query
    assert "publish_time >= TIMESTAMP '2026-01-01T02:00:00Z'" in query
    assert "a.value = 'x\\' OR \\'\\'=\\''" in query
    with pytest.raises(TemplateInvalidError) as raised:
        parse_template("hour", text.replace("WHERE", "topic = '${region}'").encode())
    assert [error["pointer"] for error in raised.value.details["errors"]] == ["/request/where"]


STREAM = """
name: topic-group
kind: pipeline
release: 0.2.0
parameters:
  group: {required: true}
  seconds: {type: FLOAT64}
request:
  name: pipeline-${group}
  options: {group: "${group}", batch_seconds: "${seconds}"}
"""


def test_a_stream_is_launched_with_the_template_s_kind_and_release() -> None:
    template = parse_template("topic-group", STREAM.encode())
    assert parse_request("pipeline", template.render({"group": "shop", "seconds": 2})) == StreamLaunch(
        "pipeline-shop", "pipeline", {"group": "shop", "batch_seconds": 2}, "0.2.0"
    )
    left_out = parse_request("pipeline", template.render({"group": "shop"}))
    assert left_out.options == {"group": "shop"}
    installed = parse_template("topic-group", STREAM.replace("release: 0.2.0\n", "").encode())
    assert parse_request("pipeline", installed.render({"group": "shop"})).release is None


def test_a_stream_s_kind_and_release_are_the_template_s_and_a_job_has_no_release() -> None:
    twice = faults(STREAM.replace("  name: p", "  kind: pipeline\n  release: '3'\n  name: p"), "topic-group")
    assert list(twice) == ["/request/kind", "/request/release"]
    assert "/release" in faults("name: replay\nkind: merge\nrelease: 0.2.0\nrequest: {}\n")


def test_every_fault_of_a_file_is_named_at_once() -> None:
    found = faults(
        """
name: other
kind: backfil
colour: red
parameters:
  day: {type: DAY, hlep: x}
  Topic: {default: 3, required: true}
  unused: {help: [1], required: 1}
  bare: 3
request:
  query: SELECT ${day}
  description: the ${da} of ${note}
  topic: [1, "${nobody}"]
"""
    )
    assert found == {
        "/colour": "There is no field colour.",
        "/name": "name is 'other', but the file has the name replay.yaml.",
        "/kind": "There is no kind backfil. The kinds are backfill, merge, backup, pipeline, kinesis.",
        "/parameters/day/hlep": "There is no field hlep. Did you mean help?",
        "/parameters/day/type": "There is no type 'DAY'. The types are STRING, INT64, FLOAT64, BOOL, DATE, "
        "TIMESTAMP.",
        "/parameters/Topic": "No field uses the parameter Topic. Write ${Topic} where its value goes.",
        "/parameters/Topic/default": "The default of Topic: '3' is not a valid STRING.",
        "/parameters/Topic/required": "Topic has a default, so it can't be required.",
        "/parameters/unused": "No field uses the parameter unused. Write ${unused} where its value goes.",
        "/parameters/unused/help": "help must be a string.",
        "/parameters/unused/required": "required must be true or false.",
        "/parameters/bare": "bare: the fields of a parameter are type, default, help, required.",
        "/request/query": ("A query has no ${...}: write @name, and give the value in the request's parameters."),
        "/request/description": "There is no parameter note.",
        "/request/topic/1": "There is no parameter nobody.",
    }


def test_a_fault_has_the_line_and_the_column_where_it_stands() -> None:
    with pytest.raises(TemplateInvalidError) as raised:
        parse_template("replay", b"name: replay\nkind: merge\nrequest:\n  sauce: orders\n  date: ${day}\n")
    places = [(error["pointer"], error["line"], error["column"]) for error in raised.value.details["errors"]]
    assert places == [("/request/sauce", 4, 3), ("/request/date", 5, 3)]


def test_a_field_that_the_kind_does_not_have_is_a_fault_before_it_is_launched() -> None:
    found = faults("name: replay\nkind: merge\nrequest: {sauce: orders}\n")
    assert found == {"/request/sauce": "There is no field sauce. Did you mean source or since?"}


def test_a_parameter_within_a_text_always_has_a_value() -> None:
    text = "name: replay\nkind: merge\nparameters: {s: {}}\nrequest: {source: 'a-${s}'}\n"
    assert "must be required or have a default" in faults(text)["/request/source"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: [", "The file is not YAML with plain values"),
        ("- a", "The file must be a mapping of names to values."),
        ("name: replay\nname: replay\n", "comes twice"),
        ("kind: merge\n", "name is missing, or is not a string."),
        ("name: replay\nkind: merge\nrequest: [1]\n", "request must be a mapping of names to values."),
    ],
)
def test_a_file_that_is_no_template_is_refused(text: str, words: str) -> None:
    assert any(words in message for message in faults(text).values())


def test_what_yaml_takes_for_a_date_is_the_text_that_stands_there() -> None:
    text = (
        "name: replay\nkind: merge\nparameters: {d: {type: DATE, default: 2026-01-02}}\nrequest: {since: '${d}'}\n"
    )
    assert parse_template("replay", text.encode()).render({}) == {"since": "2026-01-02"}
    later = text.replace("DATE", "TIMESTAMP").replace("2026-01-02", "2026-01-02T03:04:05Z")
    assert parse_template("replay", later.encode()).render({}) == {"since": "2026-01-02T03:04:05+00:00"}
    assert "plain values" in faults(text.replace("2026-01-02", "!!binary aaaa"))[""]


def test_one_template_with_a_fault_hides_no_other(tmp_path: Path) -> None:
    templates = Templates(DiskFiles(tmp_path))
    assert templates.list_templates() == []
    (tmp_path / "replay.yaml").write_text(REPLAY)
    (tmp_path / "broken.yaml").write_text("name: broken")
    for other in ("notes.txt", "Upper.yaml"):
        (tmp_path / other).write_text("no template")
    broken, found = templates.list_templates()
    assert isinstance(broken, BrokenTemplate)
    assert broken.name == "broken"
    assert found == replay() == templates.get_template("replay")
    with pytest.raises(TemplateInvalidError):
        templates.get_template("broken")
    for name in ("replya", "../replay", "Upper", "replay.yaml"):
        with pytest.raises(TemplateNotFoundError):
            templates.get_template(name)
    with pytest.raises(TemplateNotFoundError, match="Did you mean replay"):
        templates.get_template("replya")
