"""The streams' figures for Prometheus: those that docs/reference/metrics.md names, and none that nobody knows."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from api.stream_figures import StreamFigures
from inventory.streams import StreamOut
from model.stream import StreamReport
from tests.api.test_metrics import parse

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
DOCUMENTED = set(re.findall(r"`(refeed_stream_\w+)`", PAGE))
TOTALS = ("messages", "dead_letters", "replays", "forged_replays", "redelivered", "unknown_fields", "faults")


def stream(name: str, **fields: Any) -> StreamOut:
    known: dict[str, Any] = dict.fromkeys(StreamOut.model_fields)
    return StreamOut(**{**known, "name": name, "state": "RUNNING", "totals": {}, **fields})


def render(*streams: StreamOut) -> str:
    registry = CollectorRegistry()
    registry.register(StreamFigures(lambda: streams))
    return generate_latest(registry).decode()


def test_every_documented_figure_is_there_with_its_help_and_type_and_no_other():
    text = render(
        stream(
            "backup",
            seconds_since_report=1.5,
            totals=dict(zip(TOTALS, range(10, 80, 10), strict=True)),
            rates={"messages": 12.5},
            over_seconds=60.0,
            batch_seconds=0.25,
            backlog_messages=4,
            lag_seconds=2.0,
            lag_measured_at="2026-01-01T00:00:30.000000Z",
        )
    )
    figures = {name: value for (name, labelled), value in parse(text).items() if labelled == "backup"}
    assert set(figures) == DOCUMENTED
    assert figures["refeed_stream_up"] == 1
    assert figures["refeed_stream_report_age_seconds"] == 1.5
    assert (figures["refeed_stream_messages_total"], figures["refeed_stream_faults_total"]) == (10, 70)
    assert figures["refeed_stream_messages_per_second"] == 12.5
    assert (figures["refeed_stream_lag_seconds"], figures["refeed_stream_backlog_messages"]) == (2, 4)
    assert figures["refeed_stream_lag_measured_timestamp_seconds"] == 1767225630
    assert figures["refeed_stream_batch_seconds"] == 0.25
    for family in text_string_to_metric_families(text):
        assert family.documentation
        assert family.type == ("counter" if f"{family.name}_total" in DOCUMENTED else "gauge")


def test_what_nobody_knows_is_absent_and_what_was_counted_is_0():
    figures = parse(render(stream("silent", state="NOT_REPORTING"), stream("new", totals={"messages": 0})))
    assert figures == {
        ("refeed_stream_up", "silent"): 0,
        ("refeed_stream_up", "new"): 1,
        ("refeed_stream_wanted", "silent"): 1,
        ("refeed_stream_wanted", "new"): 1,
        ("refeed_stream_messages_total", "new"): 0,
    }


def test_streams_that_ended_or_are_silent_are_down():
    for state, is_up in {"STARTING": 1, "DRAINING": 1, "DRAINED": 0, "FAILED": 0, "NOT_REPORTING": 0}.items():
        assert parse(render(stream("backup", state=state)))["refeed_stream_up", "backup"] == is_up


def test_streams_that_somebody_ended_are_not_wanted():
    for state, is_wanted in {"RUNNING": 1, "DRAINING": 1, "DRAINED": 0, "CANCELLED": 0, "FAILED": 1}.items():
        assert parse(render(stream("backup", state=state)))["refeed_stream_wanted", "backup"] == is_wanted


@pytest.mark.parametrize("state", ["DRAINED", "FAILED", "NOT_REPORTING"])
def test_a_group_that_left_the_registry_keeps_no_alarm_ringing(state):
    gone = stream("pipeline-a", state=state, is_retired=True, totals={"messages": 5}, seconds_since_report=1e6)
    unknown = stream("pipeline-b", state=state, is_retired=None)
    assert parse(render(gone, unknown)) == {
        ("refeed_stream_up", "pipeline-b"): 0,
        ("refeed_stream_wanted", "pipeline-b"): 0 if state == "DRAINED" else 1,
    }
    still = stream("pipeline-a", state="DRAINING", is_retired=True)
    assert parse(render(still)) == {
        ("refeed_stream_up", "pipeline-a"): 1,
        ("refeed_stream_wanted", "pipeline-a"): 1,
    }


def test_the_api_has_the_figures_and_the_problems_of_streams_in_other_pods(start_api):
    api = start_api()
    status = {
        "totals": {"messages": 7},
        "rates": {"messages": 2.5},
        "rates_over_seconds": 60.0,
        "batch_seconds": 0.5,
    }
    report = StreamReport("backup", "home-1", "pod-1", 7, "running", status)
    failure = {"code": "lease_lost", "message": "Another stream took over."}
    api.store.put_stream_reports([(report, 0.0)])
    api.store.put_stream_reports(
        [(replace(report, name="pipeline-a", state="failed", status={"error": failure}), 0.0)]
    )
    with api.client() as client:
        backup, pipeline = client.get("/streams").json()["streams"]
        figures = parse(client.get("/metrics").text)
        problems = client.get("/status").json()["problems"]
    assert (backup["state"], backup["owner"]) == ("RUNNING", {"host": "pod-1", "pid": 7})
    assert backup["instance_id"] == "home-1"
    assert (backup["rates"], backup["over_seconds"], backup["batch_seconds"]) == ({"messages": 2.5}, 60.0, 0.5)
    assert (pipeline["state"], pipeline["error"]) == ("FAILED", failure)
    assert (figures["refeed_stream_up", "backup"], figures["refeed_stream_up", "pipeline-a"]) == (1, 0)
    assert figures["refeed_stream_messages_total", "backup"] == 7
    assert [(each["code"], each["name"]) for each in problems] == [("stream_failing", "pipeline-a")]
