"""Packages of Node's registry that tests need, all of one lock file."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("node")
_AWAY = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT")


@cache
def install_packages() -> Path:
    """Return a folder with the scripts of ``tests/node`` and their packages; skips without npm or its registry.

    The packages are installed once for each state of these files, by the first process that needs them.
    """
    npm = shutil.which("npm")
    if shutil.which("node") is None or npm is None:
        pytest.skip("node or npm is not installed")
    state = hashlib.sha256(b"".join(each.read_bytes() for each in sorted(_SOURCE.iterdir()))).hexdigest()[:16]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "refeed"
    caches.mkdir(parents=True, exist_ok=True)
    folder = caches / f"tests-{state}"
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            # Installed beside its place, so that a run that was cut short leaves no half of it.
            with tempfile.TemporaryDirectory(dir=caches) as parent:
                new = shutil.copytree(_SOURCE, Path(parent, "new"))
                command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
                done = subprocess.run(command, cwd=new, capture_output=True, text=True, timeout=150, check=False)
                if done.returncode:
                    if any(sign in done.stderr for sign in _AWAY):
                        pytest.skip("npm reaches no registry")
                    pytest.fail(f"npm ci failed: {done.stderr[-2000:]}")
                new.rename(folder)
    return folder
