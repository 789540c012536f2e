"""Processes of a deployment that tests start, and kill: each has what it writes in a log of its home."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from cli.processes import is_listening
from rollout.child import Child, Children


def plain_environment(**settings: str) -> dict[str, str]:
    """Return this process's environment with ``settings`` and no others."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("REFEED_", "PUBSUB_"))}
    return {**kept, **settings}


def start_module(
    children: Children,
    home: Path,
    name: str,
    *command: str,
    environment: Mapping[str, str],
    port: int | None = None,
) -> Child:
    log = home / "logs" / f"{name}.log"
    child = children.start(Child(name, [sys.executable, "-m", *command], environment=environment, log=log))
    if port is not None:
        child.wait_until(lambda: is_listening(f"127.0.0.1:{port}"), seconds=60, what="begun to listen")
    return child


def start_pubsub(
    children: Children, home: Path, port: int, *options: str, environment: Mapping[str, str] | None = None
) -> Child:
    """Start a Pub/Sub server with its messages under ``home``."""
    command = ("local.server", "--port", str(port), "--data-dir", str(home / "pubsub"), *options)
    return start_module(children, home, "pubsub", *command, environment=environment or {}, port=port)


def start_numbered(
    children: Children, home: Path, name: str, *command: str, environment: Mapping[str, str], **more: str
) -> Child:
    """Start a command of ``refeed`` in ``environment`` and ``more``, with a log of its own for each start."""
    numbered = f"{name}-{len(list(children))}"
    return start_module(children, home, numbered, "cli.main", *command, environment={**environment, **more})
