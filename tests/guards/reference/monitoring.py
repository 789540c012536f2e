"""The pages of metrics and alerts: the figures as the code declares them, and the rules of deploy/monitoring."""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

import yaml
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from api.metrics import Metrics
from collector.figures import Figures
from jobs.store import JobCount, JobStore
from model.event import HistoryEvent, HistoryEventType
from model.job import JobState
from tests.guards.reference.markdown import ROOT, page, prose, sentence, table

METRICS: Final = """\
The API and each collector answer `GET /metrics` in Prometheus' text format, without a key. The answer contains no
names of people and no contents of messages. [Alerts](alerts.md) use these figures, and
`deploy/monitoring/dashboard.json` shows them in Grafana.

If a figure is unknown, the answer does not contain the figure. A counter starts at 0 when its process starts.
The counters of jobs come from the job store, so all replicas of the API return the same values."""
STREAMS: Final = """\
An ended stream has no figures if the registry no longer contains its group of sources. On
Google Cloud, lag and backlog come from Cloud Monitoring, and are one to three minutes old."""
ALERTS: Final = """\
[deploy/monitoring/alerts.yaml](../../deploy/monitoring/alerts.yaml) contains these rules for Prometheus. Load
the file with `rule_files`, and name the scrape job `refeed`. All replicas of the API report the same figures
about streams and jobs. Each rule uses the maximum over all replicas, so an alert fires only once. The
[runbook](../runbook.md#alarms) says what to do about each alert."""


class _OneJob:
    """A job store with one job, so that each figure of jobs has its labels."""

    def count_jobs(self, sums: Sequence[str], *, of_kind: str) -> list[JobCount]:
        return [JobCount(of_kind, JobState.FAILED, 1, dict.fromkeys(sums, 1))]

    def find_last_failures(self) -> dict[str, datetime]:
        return {"backfill": datetime(2026, 1, 1, tzinfo=UTC)}

    def list_last_events(self, since: datetime, **_: Any) -> list[HistoryEvent]:
        """Return a type change."""
        return [HistoryEvent(1, "source", "orders", since, None, HistoryEventType.CHANGED, "types changed", None)]


def render_metrics() -> str:
    service = Metrics(lambda: cast("JobStore", _OneJob()), list)
    service.count("listBackfills", 200)
    found = list(text_string_to_metric_families(service.render()))
    streams = [each for each in found if each.name.startswith("refeed_stream_")]
    collector = Figures()
    collector.count_answer("orders", 200)
    collector.count_events("orders", 1, 1)
    collector.count_unread("orders")
    collected = text_string_to_metric_families(collector.render({"orders": 1}).decode())
    parts = [
        f"## The API\n\n{_figures(each for each in found if each not in streams)}",
        f"## Streams\n\nEach figure has the label `stream`.\n\n{STREAMS}\n\n{_figures(streams)}",
        f"## A collector\n\n{_figures(collected)}",
    ]
    sources = "api/metrics.py, api/stream_figures.py and collector/figures.py"
    return page("Metrics", sources, METRICS, *parts)


def _figures(families: Iterable[Metric]) -> str:
    rows = []
    for each in families:
        if each.name.endswith("_created"):
            continue
        labels = sorted({label for sample in each.samples for label in sample.labels})
        name = f"{each.name}{'_total' if each.type == 'counter' else ''}"
        shown = ", ".join(f"`{label}`" for label in labels)
        rows.append([f"`{name}`", each.type, shown, prose(each.documentation)])
    has_labels = any(row[2] for row in rows)
    columns = ["figure", "type", "labels", "means"] if has_labels else ["figure", "type", "means"]
    return table(columns, sorted(row if has_labels else [*row[:2], row[3]] for row in rows))


def render_alerts() -> str:
    groups = yaml.safe_load((ROOT / "deploy" / "monitoring" / "alerts.yaml").read_text())["groups"]
    overview = [
        [f"[`{rule['alert']}`](#{rule['alert'].lower()})", rule["labels"]["severity"], rule.get("for", "at once")]
        for group in groups
        for rule in group["rules"]
    ]
    parts = [table(["alert", "severity", "fires after"], overview)]
    parts += [_render(rule) for group in groups for rule in group["rules"]]
    return page("Alerts", "deploy/monitoring/alerts.yaml", ALERTS, *parts)


def _render(rule: dict[str, Any]) -> str:
    said = {name: _plain(text) for name, text in rule["annotations"].items()}
    text = f"{said['summary']} {said['description']}\n\n**What to do.** {said['action']}"
    lines = "\n".join(f"    {line}" for line in rule["expr"].strip().splitlines())
    return f"## `{rule['alert']}`\n\n{text}\n\n{lines}\n"


def _plain(text: str) -> str:
    """Return an annotation with a word for each of its values."""
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda label: label[1].upper(), text)
    return prose(sentence(re.sub(r"\{\{ \$value[^}]*\}\}", "N", text)))
