"""Templates: manifests that are read strictly, parameters that are typed, and every fault at once."""

import pytest

from backfill.plan.request import BackfillRequest
from model.errors import ManifestInvalidError, RequestInvalidError
from rollout.launching import parse_request
from rollout.manifests.manifest import parse_manifest
from rollout.manifests.template import TemplateManifest
from rollout.request import StreamLaunch

REPLAY = """
kind: Template
name: replay
description: Replays a day of one topic.
parameters:
  day: {type: DATE, required: true, help: The day of ingestion}
  topic: {type: STRING, default: orders}
  rate: {type: INT64, default: 500}
  most: {type: INT64}
  paused: {type: BOOL, default: false}
launch:
  kind: backfill
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


def read(text):
    spec = parse_manifest(text.encode()).spec
    assert isinstance(spec, TemplateManifest)
    return spec


def replay():
    return read(REPLAY)


def faults(text, name="replay"):
    with pytest.raises(ManifestInvalidError) as raised:
        parse_manifest(text.encode(), name)
    errors = raised.value.details["errors"]
    assert all(error["message"] in raised.value.message for error in errors)
    return {error["pointer"]: error["message"] for error in errors}


def wrong_parameters(given):
    with pytest.raises(RequestInvalidError) as raised:
        replay().render(given)
    return {error["pointer"]: (error["code"], error["message"]) for error in raised.value.details["errors"]}


def test_parameters_go_where_their_placeholders_are_with_their_types():
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


def test_a_value_is_never_read_as_a_placeholder_or_as_sql():
    rendered = replay().render({"day": "2026-01-02", "topic": "${day}' OR TRUE --"})
    assert rendered["topic"] == "${day}' OR TRUE --"
    assert rendered["query"] == replay().launch.request["query"]
    assert rendered["description"].startswith("${day}' OR TRUE -- of 2026-01-02")


def test_every_wrong_parameter_is_named_at_once_with_the_name_that_was_meant():
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
def test_a_value_of_another_type_is_wrong(given, pointer):
    assert list(wrong_parameters(given)) == [pointer]


def test_what_the_parameters_make_of_a_request_is_read_as_strictly_as_the_api_reads_it():
    with pytest.raises(RequestInvalidError) as raised:
        parse_request("backfill", {"topic": 5, "from": 5, "max_rows": "many"})
    assert {error["pointer"] for error in raised.value.details["errors"]} == {
        "/request/topic",
        "/request/from",
        "/request/max_rows",
    }
    assert parse_request("merge", {"source": "orders"}).source == "orders"


RANGE = """
kind: Template
name: hour
parameters:
  from: {type: TIMESTAMP, required: true}
  to: {type: TIMESTAMP, default: "1h"}
  region: {required: true}
launch:
  kind: backfill
  request:
    source_topic: orders
    from: ${from}
    to: "2026-01-01T03:00:00Z"
    source_attributes: {region: "${region}", at: "${to}"}
    where: WHERE
"""


def test_a_range_has_placeholders_wherever_no_value_is_read_as_sql():
    evil = "x' OR ''='"
    text = RANGE.replace("1h", "2026-01-01T00:00:00Z")
    template = read(text.replace("WHERE", "topic IS NOT NULL"))
    rendered = template.render({"from": "2026-01-01T02:00:00Z", "region": evil})
    query = parse_request("backfill", rendered).write("backup.messages").query
    assert "publish_time >= TIMESTAMP '2026-01-01T02:00:00Z'" in query
    assert "a.value = 'x\\' OR \\'\\'=\\''" in query
    assert list(faults(text.replace("WHERE", "topic = '${region}'"), "hour")) == ["/launch/request/where"]


STREAM = """
kind: Template
name: topic-group
parameters:
  group: {required: true}
  seconds: {type: FLOAT64}
launch:
  kind: pipeline
  release: 0.2.0
  request:
    name: pipeline-${group}
    options: {group: "${group}", batch_seconds: "${seconds}"}
"""


def test_a_stream_is_launched_with_the_template_s_kind_and_release():
    template = read(STREAM)
    assert parse_request("pipeline", template.render({"group": "shop", "seconds": 2})) == StreamLaunch(
        "pipeline-shop", "pipeline", {"group": "shop", "batch_seconds": 2}, "0.2.0"
    )
    left_out = parse_request("pipeline", template.render({"group": "shop"}))
    assert left_out.options == {"group": "shop"}
    installed = read(STREAM.replace("  release: 0.2.0\n", ""))
    assert parse_request("pipeline", installed.render({"group": "shop"})).release is None


def test_a_stream_s_kind_and_release_are_the_template_s_and_a_job_has_no_release():
    twice = faults(
        STREAM.replace("    name: p", "    kind: pipeline\n    release: '3'\n    name: p"), "topic-group"
    )
    assert list(twice) == ["/launch/request/kind", "/launch/request/release"]
    assert "/launch/release" in faults(f"{MERGE} {{kind: merge, release: 0.2.0}}\n")


def test_every_fault_of_a_template_is_named_at_once():
    found = faults(
        """
kind: Template
name: other
colour: red
parameters:
  day: {type: DAY, hlep: x}
  topic: {default: 3, required: true}
  Upper: {}
  unused: {help: [1], required: 1}
  bare: 3
launch:
  kind: backfil
  request:
    query: SELECT ${day}
    description: the ${da} of ${note}
    topic: [1, "${nobody}"]
"""
    )
    assert found == {
        "/colour": "There is no field colour.",
        "/name": "name is 'other', but the manifest is replay.",
        "/launch/kind": "launch.kind: Input should be 'backfill', 'merge', 'backup', 'pipeline' or 'kinesis'.",
        "/parameters/day/hlep": "There is no field hlep.",
        "/parameters/day/type": "parameters.day.type: Input should be 'STRING', 'INT64', 'FLOAT64', 'BOOL', "
        "'DATE' or 'TIMESTAMP'.",
        "/parameters/topic": "No field uses the parameter topic. Write ${topic} where its value goes.",
        "/parameters/topic/default": "The default of topic: '3' is not a valid STRING.",
        "/parameters/topic/required": "topic has a default, so it can't be required.",
        "/parameters/Upper": "No field uses the parameter Upper. Write ${Upper} where its value goes.",
        "/parameters/Upper/[key]": "parameters.Upper.[key]: String should match pattern '^[a-z][a-z0-9_]{0,63}$'.",
        "/parameters/unused": "No field uses the parameter unused. Write ${unused} where its value goes.",
        "/parameters/unused/help": "parameters.unused.help: Input should be a valid string.",
        "/parameters/unused/required": "parameters.unused.required: Input should be a valid boolean.",
        "/parameters/bare": "No field uses the parameter bare. Write ${bare} where its value goes.",
        "/launch/request/query": (
            "A query has no ${...}: write @name, and give the value in the request's parameters."
        ),
        "/launch/request/description": "There is no parameter note.",
        "/launch/request/topic/1": "There is no parameter nobody.",
    }


MERGE = "kind: Template\nname: replay\nlaunch:"


def test_a_fault_has_the_line_and_the_column_where_it_stands():
    with pytest.raises(ManifestInvalidError) as raised:
        parse_manifest(f"{MERGE}\n  kind: merge\n  request:\n    sauce: orders\n    date: ${{day}}\n".encode())
    places = [(error["pointer"], error["line"], error["column"]) for error in raised.value.details["errors"]]
    assert places == [("/launch/request/sauce", 6, 5), ("/launch/request/date", 7, 5)]


def test_a_field_that_the_kind_does_not_have_is_a_fault_before_it_is_launched():
    found = faults(f"{MERGE} {{kind: merge, request: {{sauce: orders}}}}\n")
    assert found == {"/launch/request/sauce": "There is no field sauce. Did you mean source or since?"}


def test_a_placeholder_in_a_name_is_refused():
    text = f"{MERGE} {{kind: backfill, request: {{parameters: {{'${{d}}': {{type: DATE, value: '${{d}}'}}}}}}}}\n"
    found = faults(f"{text}parameters: {{d: {{type: DATE, required: true}}}}\n")
    assert found == {"/launch/request/parameters/${d}": "A name has no ${...}. A placeholder is a value."}


def test_a_parameter_within_a_text_always_has_a_value():
    text = f"{MERGE} {{kind: merge, request: {{source: 'a-${{s}}'}}}}\nparameters: {{s: {{}}}}\n"
    assert "must be required or have a default" in faults(text)["/launch/request/source"]


def test_what_yaml_takes_for_a_date_is_the_text_that_stands_there():
    text = (
        f"{MERGE} {{kind: merge, request: {{since: '${{d}}'}}}}\n"
        "parameters: {d: {type: DATE, default: 2026-01-02}}\n"
    )
    assert read(text).render({}) == {"since": "2026-01-02"}
    later = text.replace("DATE", "TIMESTAMP").replace("2026-01-02", "2026-01-02T03:04:05Z")
    assert read(later).render({}) == {"since": "2026-01-02T03:04:05Z"}
