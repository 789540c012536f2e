"""The dashboard and the alert rules name series that /metrics has, with labels and values that they have."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from api.metrics import Metrics
from api.stream_figures import FIGURES
from inventory.streams import StreamOut
from jobs.store import JobStore
from model.event import HistoryEventType
from model.fault import FaultRecord
from model.job import JobState, new_job_id

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "monitoring"
SERIES = re.compile(r"\b(refeed_[a-z0-9_]+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|=|!=|!~)\s*"([^"]*)"')


def rules():
    groups = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard():
    return json.loads((FOLDER / "dashboard.json").read_text())


def expressions():
    yield from (rule["expr"] for rule in rules())
    yield from (target["expr"] for panel in dashboard()["panels"] for target in panel["targets"])
    yield from (str(each["query"]) for each in dashboard()["templating"]["list"])


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory):
    """The labels of every series that /metrics can have, as it renders them."""
    store = JobStore(tmp_path_factory.mktemp("store") / "jobs.db")
    job = store.insert(new_job_id("bf"), "backfill", {}, actor="ann")
    store.move(job.id, JobState.FAILED, actor="refeed", error=FaultRecord("x", "X."))
    store.note_event("source", "orders", "types changed", actor="pipeline", kind=HistoryEventType.CHANGED)
    names = [figure.name.removeprefix("refeed_stream_") for figure in FIGURES]
    fields = dict.fromkeys(StreamOut.model_fields)
    numbers = ("seconds_since_report", "over_seconds", "lag_seconds", "backlog_messages", "batch_seconds")
    stream = StreamOut(
        **{
            **fields,
            **dict.fromkeys(numbers, 1.0),
            "name": "backup",
            "state": "RUNNING",
            "totals": dict.fromkeys(names, 1.0),
            "rates": {"messages": 1.0},
            "lag_measured_at": "2026-01-01T00:00:00Z",
        }
    )
    metrics = Metrics(lambda: store, lambda: [stream])
    metrics.count("listBackfills", 200)
    families = text_string_to_metric_families(metrics.render())
    found = {}
    for sample in (sample for family in families for sample in family.samples):
        found.setdefault(sample.name, set()).update(sample.labels)
    store.close()
    return found


def test_every_series_that_is_named_exists_with_the_labels_that_are_named(catalogue):
    named = [match for text in expressions() for match in SERIES.finditer(text)]
    assert len(named) > 20
    assert {match[1] for match in named} - set(catalogue) == set()
    for match in named:
        labels = {label for label, _ in MATCHER.findall(match[2] or "")}
        assert labels <= catalogue[match[1]], match[0]


def test_every_state_that_is_named_is_a_jobs_state():
    states = [value for text in expressions() for label, value in MATCHER.findall(text) if label == "state"]
    assert states
    assert {state for value in states for state in value.split("|")} <= {state.value for state in JobState}


def test_every_series_of_streams_is_on_the_dashboard_or_in_a_rule(catalogue):
    named = {match[1] for text in expressions() for match in SERIES.finditer(text)}
    # They say of what time another one is; the total is that one's integral.
    beside = {
        "refeed_stream_rate_window_seconds",
        "refeed_stream_lag_measured_timestamp_seconds",
        "refeed_stream_messages_total",
    }
    assert {name for name in catalogue if name.startswith("refeed_stream_")} - named == beside


def test_every_rule_has_a_name_of_its_own_a_severity_and_says_what_to_do():
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    assert all(rule["labels"]["severity"] in {"page", "ticket"} for rule in rules())
    assert {tuple(rule["annotations"]) for rule in rules()} == {("summary", "description", "action")}


def test_panels_have_places_and_numbers_of_their_own():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_reads_the_rules():
    command = ["promtool", "check", "rules", str(FOLDER / "alerts.yaml")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_the_rules_ring_when_they_should_and_only_then(tmp_path):
    situations = (Path(__file__).parent / "alerts_test.yaml").read_text()
    path = tmp_path / "alerts_test.yaml"
    path.write_text(situations.replace("ALERTS]", f"{FOLDER / 'alerts.yaml'}]", 1))
    command = ["promtool", "test", "rules", str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
