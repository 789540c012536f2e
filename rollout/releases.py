"""Releases: versions of Refeed installed side by side in a home, each run with its own code and packages."""

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.parser import Parser
from pathlib import Path
from sys import executable
from typing import Any, Final, Self

import structlog

from model.errors import (
    CheckpointCorruptError,
    EnvironmentFailedError,
    ReleaseExistsError,
    ReleaseInUseError,
    ReleaseInvalidError,
    ReleaseNotFoundError,
)
from model.naming import did_you_mean
from rollout.environments import Environments, unpack_wheel
from rollout.formats import ReleaseFormats

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.+_-]{0,63}")
# pyproject.toml puts the lock there.
_LOCK: Final = re.compile(r"refeed-[^/]+\.dist-info/extra_metadata/requirements\.lock")
_METADATA: Final = re.compile(r"refeed-[^/]+\.dist-info/METADATA")
_RECORD: Final = "release.json"
_CODE: Final = "code"
_UNFINISHED: Final = ".unfinished-"
# A folder named cli or sql where a process is started must not hide ours, in Spark's workers neither.
_SAFE_PATH: Final = {"PYTHONSAFEPATH": "1"}
_START_SECONDS: Final = 120.0
# Two runs of Java, half a minute on an idle machine.
_CLASSES_SECONDS: Final = 600.0
_CLASSES: Final = "connectors.spark.classes"
_log = structlog.get_logger(__name__)
_TOLD_CHARACTERS: Final = 2000


@dataclass(frozen=True, slots=True)
class Release:
    """An installed release; ``sha256`` is its wheel's, ``environment`` the key of its packages."""

    name: str
    version: str
    wheel: str
    sha256: str
    environment: str
    added_at: datetime
    formats: ReleaseFormats

    def to_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` takes."""
        return {**asdict(self), "added_at": self.added_at.isoformat(), "formats": self.formats.to_json()}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return the release that :meth:`to_json` described."""
        found = {**fields, "added_at": datetime.fromisoformat(fields["added_at"])}
        return cls(**{**found, "formats": ReleaseFormats.from_json(fields["formats"])})


@dataclass(frozen=True, slots=True)
class ReleaseStart:
    """How a process of a release is started: the Python that has its packages, and the process's variables."""

    python: str
    variables: Mapping[str, str]

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of ``refeed`` with ``arguments``."""
        return [self.python, "-m", "cli.main", *arguments]

    def run(self, *arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
        """Run ``refeed`` with ``arguments`` to its end, whatever its exit code is.

        Raises:
            subprocess.TimeoutExpired: it takes longer than ``seconds``.
        """
        return subprocess.run(  # noqa: S603 - a release's own Python
            self.command(*arguments),
            env=self.variables,
            check=False,
            capture_output=True,
            text=True,
            timeout=seconds,
        )


class Releases:
    """The releases of one home, in ``releases/``, and the environments that they share, in ``environments/``.

    A release is complete or not there. Its packages may be those that are installed here, so a process of it is
    started by what :meth:`start` returns now: they may be upgraded later.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._folder = home / "releases"
        self._environments = Environments(home / "environments")

    def add(self, wheel: Path, *, name: str | None = None) -> Release:
        """Install ``wheel`` as the release ``name``, by default its version, with the packages of its lock.

        Nothing is downloaded when they are installed here. The same wheel under the same name again changes
        nothing, and installs packages that are gone.

        Raises:
            ReleaseInvalidError: it is no wheel of Refeed with a lock, or it does not start.
            ReleaseExistsError: another wheel has the name.
            EnvironmentFailedError: pip can't install what it needs.
        """
        with self._locked() as unfinished:
            # A copy, so that the hash is that of the very file that is installed.
            copy = unfinished / wheel.name
            try:
                shutil.copyfile(wheel, copy)
            except OSError as exc:
                raise ReleaseInvalidError(f"{wheel} can't be read: {exc.strerror}.") from exc
            sha256 = hashlib.sha256(copy.read_bytes()).hexdigest()
            version, lock = _read_wheel(copy)
            name = name or version
            if not _NAME.fullmatch(name):
                raise ReleaseInvalidError(
                    f"{name!r} is not a valid name for a release. Use up to 64 lower-case letters, digits and .+_-"
                )
            found = self.get_release(name) if name in self._names() else None
            if found is not None and found.sha256 != sha256:
                message = f"{name} is another wheel already: {found.wheel}. Choose another name with --name."
                raise ReleaseExistsError(message, name=name, sha256=found.sha256)
            environment = self._environments.make(lock)
            if found is not None:
                return found
            code = unfinished / _CODE
            unpack_wheel(copy, code)
            copy.unlink()
            started = _start(self._python_of(name, environment), code, os.environ)
            formats = _ask_formats(started, wheel.name)
            _keep_classes(started, name)
            release = Release(name, version, wheel.name, sha256, environment, datetime.now(UTC), formats)
            (unfinished / _RECORD).write_text(json.dumps(release.to_json()))
            # After a power cut too, a folder that is there is complete.
            os.sync()
            unfinished.rename(self._folder / name)
            return release

    def list_releases(self) -> list[Release]:
        """Return all releases, by their names."""
        return [self.get_release(name) for name in self._names()]

    def list_readable(self) -> list[Release]:
        """Return all releases whose record can be read, by their names."""
        found = []
        for name in self._names():
            with suppress(ReleaseNotFoundError, CheckpointCorruptError):
                found.append(self.get_release(name))
        return found

    def get_release(self, name: str) -> Release:
        """Return one release.

        Raises:
            ReleaseNotFoundError: there is none of this name here.
            CheckpointCorruptError: its record can't be read.
        """
        self._check(name)
        path = self._folder / name / _RECORD
        try:
            return Release.from_json(json.loads(path.read_text()))
        except (OSError, ValueError, KeyError, TypeError) as exc:
            message = f"{path} can't be read ({exc}). Delete {path.parent} and add the release again."
            raise CheckpointCorruptError(message, file=str(path)) from exc

    def remove(self, name: str, *, used_by: Sequence[str]) -> None:
        """Remove a release; ``used_by`` names the streams that are of it.

        Environments that no release needs any more go too, unless a release can't be read: it may need any.

        Raises:
            ReleaseNotFoundError: there is none of this name here.
            ReleaseInUseError: streams are of it.
        """
        self._check(name)
        if used_by:
            streams = sorted(used_by)
            message = (
                f"{name} is the release of {', '.join(streams)}. Update, drain or cancel these streams first."
            )
            raise ReleaseInUseError(message, streams=streams)
        with self._locked() as unfinished:
            # Gone at once, however long it takes to delete the files.
            (self._folder / name).rename(unfinished / _CODE)
            with suppress(CheckpointCorruptError):
                self._environments.remove_others({release.environment for release in self.list_releases()})

    def start(self, name: str | None, environment: Mapping[str, str]) -> ReleaseStart:
        """Return how to start a process of the release ``name``, or of what is installed here for None.

        ``environment`` is what the process has besides. The release's code goes before what is installed, for
        editing too: in the process, in the Python workers that its JVM starts, and in executors elsewhere that
        have the release at the same path.

        Raises:
            ReleaseNotFoundError: there is none of this name here.
            EnvironmentFailedError: the packages that it needs are gone.
        """
        if name is None:
            return ReleaseStart(executable, {**environment, **_SAFE_PATH})
        found = self.get_release(name)
        return _start(self._python_of(name, found.environment), self._folder / name / _CODE, environment)

    def _python_of(self, name: str, environment: str) -> str:
        python = self._environments.python_of(environment)
        if python is None:
            message = f"The packages of {name} are gone; run 'refeed release add' with its wheel again."
            raise EnvironmentFailedError(message, release=name)
        return python

    def _names(self) -> list[str]:
        return sorted(path.parent.name for path in self._folder.glob(f"[!.]*/{_RECORD}"))

    def _check(self, name: str) -> None:
        if name not in (names := self._names()):
            message = f"There is no release {name[:80]} in {self._folder}.{did_you_mean(name, names)}"
            raise ReleaseNotFoundError(message, name=name[:80], releases=names)

    @contextmanager
    def _locked(self) -> Iterator[Path]:
        """Hold the folder of releases for this process, and give a folder in it that is deleted at the end."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Of a process that was killed.
            for leftover in self._folder.glob(f"{_UNFINISHED}*"):
                shutil.rmtree(leftover, ignore_errors=True)
            unfinished = self._folder / f"{_UNFINISHED}{secrets.token_hex(4)}"
            unfinished.mkdir()
            try:
                yield unfinished
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)


def _start(python: str, code: Path, environment: Mapping[str, str]) -> ReleaseStart:
    path = os.pathsep.join(filter(None, (str(code), environment.get("PYTHONPATH"))))
    conf = json.loads(environment.get("REFEED_SPARK_CONF") or "{}")
    # A driver's environment reaches the Python workers of its own JVM only.
    executors = {"spark.executorEnv.PYTHONPATH": path, "spark.executorEnv.PYTHONSAFEPATH": "1"}
    variables = {"PYTHONPATH": path, "REFEED_SPARK_CONF": json.dumps({**executors, **conf}), **_SAFE_PATH}
    return ReleaseStart(python, {**environment, **variables})


def _read_wheel(path: Path) -> tuple[str, str]:
    """Return the version and the lock of a wheel of Refeed.

    Raises:
        ReleaseInvalidError: it is no such wheel.
    """
    try:
        with zipfile.ZipFile(path) as wheel:
            found = {name: wheel.read(name).decode() for name in wheel.namelist() if _LOCK.fullmatch(name)}
            metadata = [wheel.read(name).decode() for name in wheel.namelist() if _METADATA.fullmatch(name)]
    except (OSError, ValueError, zipfile.BadZipFile) as exc:
        raise ReleaseInvalidError(f"{path.name} is not a wheel: {exc}.") from exc
    if not metadata:
        raise ReleaseInvalidError(f"{path.name} is not a wheel of Refeed.")
    if not found:
        raise ReleaseInvalidError(f"{path.name} has no requirements.lock, because an older Refeed built it.")
    return str(Parser().parsestr(metadata[0])["Version"]), next(iter(found.values()))


def _keep_classes(started: ReleaseStart, name: str) -> None:
    """Have Spark's classes kept in an environment of the release's own: its streams start as fast as others then.

    What is installed here has them since it was set up. Without them everything runs all the same, only later.
    """
    if started.python == executable:
        return
    try:
        subprocess.run(  # noqa: S603 - a release's own Python
            [started.python, "-m", _CLASSES],
            env=started.variables,
            check=True,
            capture_output=True,
            timeout=_CLASSES_SECONDS,
        )
    except subprocess.SubprocessError as exc:
        _log.warning("spark_classes_not_kept", release=name, error=str(exc))


def _ask_formats(started: ReleaseStart, wheel: str) -> ReleaseFormats:
    """Return the formats that a release prints, which shows that it starts.

    Raises:
        ReleaseInvalidError: it does not start, or prints no formats.
    """
    try:
        ran = started.run("release", "formats", "--json", seconds=_START_SECONDS)
        if ran.returncode:
            raise ReleaseInvalidError(f"{wheel} does not start: {ran.stderr[-_TOLD_CHARACTERS:].strip()}")
        return ReleaseFormats.from_json(json.loads(ran.stdout))
    except subprocess.TimeoutExpired as exc:
        raise ReleaseInvalidError(f"{wheel} does not start within {_START_SECONDS:.0f} s.") from exc
    except (ValueError, KeyError, TypeError) as exc:
        raise ReleaseInvalidError(
            f"The release in {wheel} did not print the formats that it reads: {exc}"
        ) from exc
