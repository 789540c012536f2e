"""The HTTP collector: events a second and the slowest hundredth, beside FastAPI with Google's client.

1 KB events from wrk over 64 connections, the local Pub/Sub server on the same cores. At half load each connection
waits between its requests. Nobody may be answered with an error; after the queue's run nothing may wait in it.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.processes import CpuMeter
from bench.yard import MESSAGE_BYTES, TOPIC, attach, make_messages, start_program, start_server
from cli.processes import free_port, is_listening
from rollout.child import Child, Children

SECONDS = 6
CONNECTIONS = 64
_QUEUE_BYTES = 2_000_000_000
_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass(frozen=True)
class Load:
    """What wrk has counted."""

    events_a_second: float
    p99_milliseconds: float
    cpu_us_per_event: float


def run(seconds: int = SECONDS) -> list[dict[str, Any]]:
    """Put each contender under full load, and ours under half of theirs too."""
    if shutil.which("wrk") is None:
        print("  wrk is not installed: apt-get install wrk")
        return []
    found: dict[str, Load] = {}
    half: dict[str, Load] = {}
    for name in ("direct", "queue", "await", "forget"):
        found[name], more = measure(name, seconds)
        if more is not None:
            half[name] = more
        print(f"  {name}: {found[name]}, at half load: {more}", flush=True)
    # The column "limit" is FastAPI with Google's client: awaited beside the first, not awaited beside the second.
    ratios = [
        ("collector: published before the answer", "direct", "await", 3.0),
        ("collector: on disk before the answer", "queue", "forget", 0.8),
    ]
    rates = [
        {
            "name": name,
            "unit": "events/s",
            "refeed": found[ours].events_a_second,
            "limit": found[theirs].events_a_second,
            "ratio": found[ours].events_a_second / found[theirs].events_a_second,
            "goal_ratio": goal,
            "cpu_us_per_message": {
                "refeed": found[ours].cpu_us_per_event,
                "limit": found[theirs].cpu_us_per_event,
            },
        }
        for name, ours, theirs, goal in ratios
    ]
    slowest = [
        {"name": f"{name}, p99 at half load", "unit": "ms", "refeed": half[ours].p99_milliseconds}
        for name, ours, _, _ in ratios
    ]
    return [*rates, *slowest]


def measure(name: str, seconds: int) -> tuple[Load, Load | None]:
    """Return what a contender takes, and what ours does at half of that."""
    with tempfile.TemporaryDirectory() as folder_name, Children() as children:
        folder = Path(folder_name)
        settings, environment, _ = start_server(folder, children)
        attach(settings)
        port = free_port()
        if name in ("direct", "queue"):
            environment["REFEED_COLLECTOR_QUEUE_BYTES"] = str(_QUEUE_BYTES if name == "queue" else 0)
            command = [sys.executable, "-m", "cli.main", "collector", "--topics", TOPIC, "--port", str(port)]
            child = children.start(Child(name, command, environment=environment, log=folder / "collector.log"))
        else:
            arguments = [settings.project, TOPIC, str(port), name]
            child = start_program("fastapi_publisher", arguments, folder, children, environment)
        child.wait_until(lambda: is_listening(f"127.0.0.1:{port}"), seconds=60, what="begun to listen")
        load(folder, port, child, 2)
        full = load(folder, port, child, seconds)
        if name not in ("direct", "queue"):
            return full, None
        wait_until_empty(port)
        pause = round(1000 * CONNECTIONS / (full.events_a_second / 2))
        half = load(folder, port, child, max(2, seconds // 2), pause_milliseconds=pause)
        wait_until_empty(port)
        return full, half


def load(folder: Path, port: int, child: Child, seconds: int, *, pause_milliseconds: int = 0) -> Load:
    """Send events for some seconds and return what wrk says."""
    script = folder / "post.lua"
    script.write_text(
        f'wrk.method = "POST"\nwrk.headers["content-type"] = "application/json"\n'
        f"wrk.body = [==[{make_event().decode()}]==]\n"
        + (f"function delay() return {pause_milliseconds} end\n" if pause_milliseconds else "")
    )
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--latency", "-s", str(script)]
    meter = CpuMeter()
    before = meter.read_seconds([child.pid])
    said = subprocess.run(
        [*command, f"http://127.0.0.1:{port}/{TOPIC}"], capture_output=True, text=True, check=True
    ).stdout
    assert "Non-2xx" not in said, said
    assert "Socket errors" not in said, said
    used = meter.read_seconds([child.pid]) - before
    [events] = re.findall(r"(\d+) requests in", said)
    [rate] = re.findall(r"Requests/sec:\s+([\d.]+)", said)
    [(number, unit)] = re.findall(r"99%\s+([\d.]+)(us|ms|s)", said)
    return Load(float(rate), float(number) * _UNITS[unit], used / int(events) * 1e6)


def make_event() -> bytes:
    """Return an order of a shop as JSON, of the size that messages have in the other benchmarks."""
    whole = make_messages()[0].data
    return b'{"order":"%s"}' % re.sub(rb"[^a-z0-9 ,:]", b" ", whole)[: MESSAGE_BYTES - 12]


def wait_until_empty(port: int, seconds: int = 60) -> None:
    """Return once the collector's queue is empty, and say how long that took."""
    began = time.monotonic()
    while True:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        waiting = re.findall(r"^refeed_collector_waiting_events\{.*\} ([\d.e+]+)$", text, re.MULTILINE)
        if not any(float(each) for each in waiting):
            break
        assert time.monotonic() - began < seconds, f"{waiting} events wait after {seconds} s"
        time.sleep(0.05)
    print(f"    the queue was empty after {time.monotonic() - began:.1f} s", flush=True)
