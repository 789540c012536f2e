"""Packages of Node's registry that a test needs: installed once for each state of their lock file."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

_AWAY = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED")


def install_packages(source: Path, *, name: str, files: Sequence[str] = ()) -> Path:
    """Return a folder with the packages that ``source`` locks, and ``files`` of it; skips without npm."""
    npm = shutil.which("npm")
    if shutil.which("node") is None or npm is None:
        pytest.skip("node or npm is not installed")
    state = hashlib.sha256((source / "package-lock.json").read_bytes()).hexdigest()[:16]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "refeed"
    cache = caches / f"{name}-{state}"
    caches.mkdir(parents=True, exist_ok=True)
    if not (cache / "node_modules").exists():
        # Installed beside its place, so that a run that was cut short leaves no half of it.
        with tempfile.TemporaryDirectory(dir=caches) as folder:
            for each in ("package.json", "package-lock.json"):
                shutil.copy(source / each, folder)
            command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=150, check=False)
            if done.returncode:
                if any(sign in done.stderr for sign in _AWAY):
                    pytest.skip("npm reaches no registry")
                pytest.fail(f"npm ci failed: {done.stderr[-2000:]}")
            shutil.rmtree(cache, ignore_errors=True)
            shutil.move(folder, cache)
            Path(folder).mkdir()
    for each in files:
        shutil.copy(source / each, cache)
    return cache
