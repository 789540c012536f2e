"""Apache Beam in a virtual environment of its own, made when a benchmark first asks for it."""

import subprocess
import sys
import venv
from functools import cache
from pathlib import Path

VERSION = "2.76.0"
_FOLDER = Path(__file__).parent / ".cache" / "beam"
_INSTALL_SECONDS = 1200


class BeamMissingError(Exception):
    """Beam can't be installed here; the message says why."""


@cache
def find_python() -> str:
    """Return the Python that has Beam, and install it (800 MB, a minute or two) when there is none yet.

    Raises:
        BeamMissingError: it can't be installed.
    """
    python, done = _FOLDER / "bin" / "python", _FOLDER / f"installed-{VERSION}"
    if not done.exists():
        print(f"  installing apache-beam {VERSION} into {_FOLDER}, once ...", flush=True)
        venv.create(_FOLDER, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", f"apache-beam[gcp]=={VERSION}"]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
        except subprocess.CalledProcessError as exc:
            last_line = (exc.stderr.strip().splitlines() or ["pip said nothing"])[-1]
            raise BeamMissingError(f"apache-beam {VERSION} on {sys.version.split()[0]}: {last_line}") from exc
        except subprocess.TimeoutExpired as exc:
            raise BeamMissingError(f"apache-beam was not installed in {_INSTALL_SECONDS} s") from exc
        done.touch()
    return str(python)
