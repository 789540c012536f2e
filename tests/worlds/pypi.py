"""Programs of others from PyPI that only a few tests need, each in a folder of its own."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest


def install(*packages: str, options: tuple[str, ...] = ()) -> Path:
    """Return the folder with the packages, the first of which names it; they are installed once an environment."""
    folder = Path(sys.prefix) / "share" / "refeed-tests" / packages[0].replace("==", "-").replace("*", "x")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "installed").exists():
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(folder)]
            command += [*options, *packages]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            if done.returncode != 0:
                pytest.skip(f"PyPI is out of reach: {done.stderr.strip().splitlines()[-1]}")
            (folder / "installed").touch()
    return folder
