"""The environments of releases: a Python with the packages of one lock, shared by all releases that carry it."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

from packaging.markers import Marker
from packaging.utils import canonicalize_name

from model.errors import EnvironmentFailedError

# A package of a lock: its name, its version, and where it is needed.
_PIN: Final = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)(?: ; (.+?))? \\$", re.MULTILINE)
_PIP: Final = ("-m", "pip", "--no-input", "--disable-pip-version-check", "--quiet")
_UNFINISHED: Final = ".unfinished-"
# Some 500 MB of packages over a slow line; on a busy machine a wheel of 1 MB is unpacked in seconds.
_DOWNLOAD_SECONDS: Final = 3600.0
_UNPACK_SECONDS: Final = 300.0
_TOLD_CHARACTERS: Final = 2000


class Environments:
    """Environments in ``folder``, each named after its lock and the Python that it is for.

    Where the Python that runs here has all that a lock names, it is the environment, and nothing is downloaded. An
    environment is complete or not there. One process at a time makes some: the caller holds a lock.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def python_of(self, key: str) -> str | None:
        """Return the Python of the lock that :meth:`make` called ``key``; None where its packages are gone."""
        own = self._folder / key / "bin" / "python"
        if own.exists():
            return str(own)
        lock = self._lock_of(key)
        return sys.executable if lock.is_file() and is_installed(lock.read_text()) else None

    def make(self, lock: str) -> str:
        """Return the key of an environment that has all that ``lock`` names; pip installs one if need be.

        Every package is checked against its hash in the lock.

        Raises:
            EnvironmentFailedError: a package can't be had, or is not the one of the lock.
        """
        key = f"{hashlib.sha256(lock.encode()).hexdigest()[:16]}-{sys.implementation.cache_tag}"
        self._folder.mkdir(parents=True, exist_ok=True)
        unfinished = self._folder / f"{_UNFINISHED}{key}"
        unfinished.with_suffix(".lock").write_text(lock)
        unfinished.with_suffix(".lock").replace(self._lock_of(key))
        if self.python_of(key) is not None:
            return key
        for leftover in (unfinished, self._folder / key):
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            # Without pip, which would be 10 MB more in each: the one that runs here installs into them.
            _run(["-m", "venv", "--without-pip", str(unfinished)], seconds=_UNPACK_SECONDS)
            python = str(unfinished / "bin" / "python")
            # A lock names all that its packages need.
            install = ["install", "--no-deps", "--require-hashes", "-r", str(self._lock_of(key))]
            _run([*_PIP, "--python", python, *install], seconds=_DOWNLOAD_SECONDS)
            # After a power cut too, a folder that is there is complete.
            os.sync()
            unfinished.rename(self._folder / key)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return key

    def remove_others(self, keys: Collection[str]) -> None:
        """Remove every environment but those that are called ``keys``, with its lock."""
        for lock in self._folder.glob("[!.]*.lock"):
            if lock.stem not in keys:
                lock.unlink(missing_ok=True)
        for folder in self._folder.glob("[!.]*/"):
            if folder.name not in keys:
                shutil.rmtree(folder, ignore_errors=True)

    def _lock_of(self, key: str) -> Path:
        return self._folder / f"{key}.lock"


def is_installed(lock: str) -> bool:
    """Whether the Python that runs here has each package that ``lock`` names for it, in the same version."""
    wanted = {
        canonicalize_name(name): version
        for name, version, marker in _PIN.findall(lock)
        if not marker or Marker(marker).evaluate()
    }
    found = {canonicalize_name(each.metadata["Name"]): each.version for each in distributions()}
    return all(found.get(name) == version for name, version in wanted.items())


def unpack_wheel(wheel: Path, folder: Path) -> None:
    """Install ``wheel`` into ``folder`` without the packages that it needs.

    Raises:
        EnvironmentFailedError: pip can't.
    """
    command = [*_PIP, "install", "--no-deps", "--no-index", "--target", str(folder), str(wheel)]
    _run(command, seconds=_UNPACK_SECONDS)


def _run(arguments: list[str], *, seconds: float) -> None:
    try:
        subprocess.run(  # noqa: S603 - our own Python
            [sys.executable, *arguments], check=True, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.CalledProcessError as exc:
        raise EnvironmentFailedError(
            f"pip failed: {(exc.stderr or exc.stdout)[-_TOLD_CHARACTERS:].strip()}"
        ) from exc
    except subprocess.TimeoutExpired as exc:
        raise EnvironmentFailedError(f"pip took longer than {seconds:.0f} s.") from exc
