"""The backup stream beside its limit, a script, and Apache Beam: messages a second and CPU time a message.

All drain a backlog of 1 KB messages with 4 attributes from a local server of their own, turn about. The limit is a
plain loop in one process a core: raw Pull, Arrow, the same commit, no Spark. The script is a callback of Google's
client with rows in batches into the same table. Beam reads with attributes and writes Parquet on its local runner.
The stream also drains a server whose Pulls bring a part of what waits, or nothing.
Timed is from the first commit on (Beam: from the first message that it took), so that nobody's start counts.
Then latency: seconds from publish to commit at three steady rates.
"""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.beam import BeamMissingError, find_python
from bench.comparison import Goal, Run, Sample, alternate, ratio, steady_run, summarise, watch
from bench.yard import (
    SUBSCRIPTION,
    TOPIC,
    attach,
    count_rows,
    make_messages,
    publish,
    publish_steadily,
    read_commit_times,
    start_backup,
    start_program,
    start_server,
    wait_for_rows,
)
from connectors.lake.archive import LakeArchive
from connectors.pubsub.channel import open_channel
from connectors.pubsub.publish import Publisher
from connectors.pubsub.stats import read_stats
from model.settings import read_settings
from rollout.child import Child, Children

ROUNDS = 5
MESSAGES = 1_200_000
# Those that are many times slower get less to do, and Beam fewer rounds.
SCRIPT_MESSAGES = 200_000
BEAM_MESSAGES = 10_000
BEAM_ROUNDS = 3
# Of the speed with whole Pulls, when Pulls bring a part of what waits, or nothing.
PARTIAL_RATIO = 0.8
# A batch lasts a second: half of it, and a commit. What waits for more than one batch has something in its way.
LATENCY_GOAL_SECONDS = 1.2
RATIOS = {"limit": 0.7, "script": 7.0, "beam": 50.0}
CPU_US = 9.0
LATENCY_RATES = (100, 1_000, 8_000)
LATENCY_SECONDS = 15
_GAP_SECONDS = 2.0


def run(messages: int = MESSAGES, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Measure the drains turn about, then the latency."""
    return [run_drain(messages, rounds), *run_latency()]


def run_drain(messages: int, rounds: int) -> dict[str, Any]:
    """Drain a backlog with each, turn about, and return the medians."""
    contenders: dict[str, Callable[[], Run]] = {
        "limit": lambda: measure_commits(messages, start_limit),
        "refeed": lambda: measure_commits(messages, start_backup),
        "partial": lambda: measure_commits(messages, start_backup, server_options=("--partial-pulls",)),
        "script": lambda: measure_commits(min(messages, SCRIPT_MESSAGES), start_script),
    }
    turns = dict.fromkeys(contenders, rounds)
    skipped = None
    try:
        python = find_python()
    except BeamMissingError as exc:
        skipped = str(exc)
        print(f"  without Beam: {skipped}", flush=True)
    else:
        contenders["beam"] = lambda: measure_beam(BEAM_MESSAGES, python)
        turns["beam"] = min(rounds, BEAM_ROUNDS)
    runs = alternate(contenders, turns)
    result = summarise("backup", runs, ratios=RATIOS, cpu_us=CPU_US)
    in_part = ratio({"refeed": runs["partial"], "whole": runs["refeed"]}, "whole")
    result["goals"].append(Goal("Pulls in part / whole Pulls", PARTIAL_RATIO).judge(in_part))
    sizes = {"refeed": messages, "partial": messages, "script": SCRIPT_MESSAGES, "beam": BEAM_MESSAGES}
    return result | {"messages": sizes, "beam_skipped": skipped}


def start_limit(folder: Path, children: Children, environment: dict[str, str]) -> list[Child]:
    """Start one process of the limit a core."""
    return [
        start_program("limit_backup", [str(number)], folder, children, environment)
        for number in range(os.cpu_count() or 1)
    ]


def start_script(folder: Path, children: Children, environment: dict[str, str]) -> Child:
    """Start the script on a table that exists already."""
    settings = read_settings(environment)
    archive = LakeArchive(settings.lake, settings.archive_table)
    archive.create()
    arguments = [f"projects/{settings.project}/subscriptions/{SUBSCRIPTION}", archive.uri]
    return start_program("script_backup", arguments, folder, children, environment)


def measure_commits(
    messages: int,
    start: Callable[[Path, Children, dict[str, str]], Child | list[Child]],
    *,
    server_options: Sequence[str] = (),
    **published: Any,
) -> Run:
    """Drain a backlog into the archive with what ``start`` starts, and watch the archive grow."""
    with tempfile.TemporaryDirectory() as name, Children() as children:
        folder = Path(name)
        settings, environment, _ = start_server(folder, children, *server_options)
        attach(settings)
        publish(settings, messages, **published)
        started = start(folder, children, environment)
        drainers = started if isinstance(started, list) else [started]
        archive = LakeArchive(settings.lake, settings.archive_table)
        samples = watch(
            lambda: count_rows(archive), messages, lambda: [d.pid for d in drainers], lambda: check(drainers)
        )
        return steady_run(samples, has_linger=True)


def measure_beam(messages: int, python: str) -> Run:
    """Drain a backlog with Beam, whose files hold rows that nobody counts."""

    def start(folder: Path, children: Children, environment: dict[str, str]) -> Child:
        written = folder / "written"
        written.mkdir()
        subscription = f"projects/{read_settings(environment).project}/subscriptions/{SUBSCRIPTION}"
        arguments = [subscription, str(written)]
        return start_program("beam_backup", arguments, folder, children, environment, python=python)

    return steady_run(watch_acks(messages, start))


def watch_acks(
    messages: int, start: Callable[[Path, Children, dict[str, str]], Child], *, lake: str | None = None
) -> list[Sample]:
    """Drain a backlog with what ``start`` starts, and watch the subscription."""
    with tempfile.TemporaryDirectory() as name, Children() as children:
        folder = Path(name)
        settings, environment, _ = start_server(folder, children, lake=lake)
        attach(settings)
        publish(settings, messages)
        drainer = start(folder, children, environment)
        with open_channel(settings.pubsub_emulator_host) as channel:
            return watch(
                lambda: messages - (read_stats(channel, settings.project) or {})[SUBSCRIPTION].messages,
                messages,
                lambda: [drainer.pid],
                lambda: check([drainer]),
            )


def check(children: list[Child]) -> None:
    """Raise when one of them has ended."""
    for child in children:
        if not child.is_running:
            raise child.ended_error()


def run_latency(seconds: int = LATENCY_SECONDS) -> list[dict[str, Any]]:
    """Publish at one rate after the other to one stream; compare each message's publish time with its commit's."""
    with tempfile.TemporaryDirectory() as name, Children() as children:
        folder = Path(name)
        settings, environment, _ = start_server(folder, children)
        attach(settings)
        backup = start_backup(folder, children, environment)
        archive = LakeArchive(settings.lake, settings.archive_table)
        # What a JVM is slow with at first is no one's latency.
        with open_channel(settings.pubsub_emulator_host) as channel:
            publisher = Publisher(channel, f"projects/{settings.project}/topics/{TOPIC}")
            sent = publish_steadily(publisher, make_messages(), LATENCY_RATES[-1], 5)
            wait_for_rows(backup, archive, sent)
            spans: dict[int, tuple[float, float, float]] = {}
            for rate in LATENCY_RATES:
                time.sleep(_GAP_SECONDS)
                began = time.time()
                count = publish_steadily(publisher, make_messages(), rate, seconds)
                ended = time.time()
                spans[rate] = began, ended, count / (ended - began)
                sent += count
                wait_for_rows(backup, archive, sent)
        published, committed = read_commit_times([Path(archive.uri)], "publish_time")
    return [
        _latency_result(rate, reached, committed[within] - published[within])
        for rate, (began, ended, reached) in spans.items()
        for within in [(began <= published) & (published <= ended)]
    ]


def _latency_result(rate: int, reached: float, latencies: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, Any]:
    p50, p99 = (float(np.percentile(latencies, q)) for q in (50, 99))
    print(f"  {reached:,.0f} msg/s published, durable after p50 {p50:.2f} s, p99 {p99:.2f} s", flush=True)
    return {
        "name": f"backup latency at {rate:,}/s",
        "unit": "s, p50",
        "refeed": p50,
        "p99": p99,
        "messages_per_second": reached,
        "goals": [Goal("s, p50", LATENCY_GOAL_SECONDS, is_most=True).judge(p50)],
    }
