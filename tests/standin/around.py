"""Runs a command with a BigQuery stand-in that lives as long: ``python -m tests.standin.around COMMAND...``."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.standin.fixture import run_standin


def main(command: list[str]) -> int:
    """Return the command's exit code; it finds the stand-in by the usual variables."""
    with tempfile.TemporaryDirectory(prefix="bigquery-standin-") as folder, run_standin(Path(folder)) as standin:
        try:
            return subprocess.run(command, env={**os.environ, **standin.environment}, check=False).returncode
        except KeyboardInterrupt:
            # The terminal tells the command too, which has ended by now.
            return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
