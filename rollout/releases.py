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
# A folder named cli or sql in the working directory must not hide our packages, also not in Spark's workers.
_SAFE_PATH: Final = {"PYTHONSAFEPATH": "1"}
_START_SECONDS: Final = 120.0
# Java runs twice, which takes half a minute on an idle machine.
_CLASSES_SECONDS: Final = 600.0
_CLASSES: Final = "connectors.spark.classes"
_log = structlog.get_logger(__name__)
_TOLD_CHARACTERS: Final = 2000


@dataclass(frozen=True, slots=True)
class Release:
    """An installed release; ``sha256`` is the hash of its wheel, ``environment`` the key of its packages."""

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
    """How to start a process of a release: the Python with its packages, and the environment variables."""

    python: str
    variables: Mapping[str, str]

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of ``refeed`` with ``arguments``."""
        return [self.python, "-m", "cli.main", *arguments]

    def run(self, *arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
        """Run ``refeed`` with ``arguments`` and wait for its end; a failure raises nothing.

        Raises:
            subprocess.TimeoutExpired: the command takes longer than ``seconds``.
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

    A release is complete or absent. A release can use the packages that are installed here, which may be upgraded:
    so call :meth:`start` before each start of a process, and do not keep its result.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._folder = home / "releases"
        self._environments = Environments(home / "environments")

    def add(self, wheel: Path, *, name: str | None = None) -> Release:
        """Install ``wheel`` as the release ``name`` (its version by default), with the packages in its lock.

        Nothing is downloaded if all packages are installed here. Adding the same wheel under the same name again
        only installs missing packages.

        Raises:
            ReleaseInvalidError: the file is no wheel of Refeed with a lock, or the release does not start.
            ReleaseExistsError: another wheel has the name.
            EnvironmentFailedError: pip can't install the packages.
        """
        with self._locked() as unfinished:
            # Hash and install the same copy: the given file may change meanwhile.
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
            # Sync first, so that a folder with this name is complete also after a power cut.
            os.sync()
            unfinished.rename(self._folder / name)
            return release

    def list_releases(self) -> list[Release]:
        """Return all releases, sorted by name."""
        return [self.get_release(name) for name in self._names()]

    def list_readable(self) -> list[Release]:
        """Return all releases with a readable record, sorted by name."""
        found = []
        for name in self._names():
            with suppress(ReleaseNotFoundError, CheckpointCorruptError):
                found.append(self.get_release(name))
        return found

    def get_release(self, name: str) -> Release:
        """Return one release.

        Raises:
            ReleaseNotFoundError: this home has no release with this name.
            CheckpointCorruptError: the record of the release can't be read.
        """
        self._check(name)
        path = self._folder / name / _RECORD
        try:
            return Release.from_json(json.loads(path.read_text()))
        except (OSError, ValueError, KeyError, TypeError) as exc:
            message = f"{path} can't be read ({exc}). Delete {path.parent} and add the release again."
            raise CheckpointCorruptError(message, file=str(path)) from exc

    def remove(self, name: str, *, used_by: Sequence[str]) -> None:
        """Remove a release; ``used_by`` names the streams that use it.

        Environments that no other release needs are removed too. While the record of any release can't be read,
        all environments stay, because that release may need them.

        Raises:
            ReleaseNotFoundError: this home has no release with this name.
            ReleaseInUseError: streams use it.
        """
        self._check(name)
        if used_by:
            streams = sorted(used_by)
            message = (
                f"{name} is the release of {', '.join(streams)}. Update, drain or cancel these streams first."
            )
            raise ReleaseInUseError(message, streams=streams)
        with self._locked() as unfinished:
            # The rename removes the release at once; deleting the files takes longer.
            (self._folder / name).rename(unfinished / _CODE)
            with suppress(CheckpointCorruptError):
                self._environments.remove_others({release.environment for release in self.list_releases()})

    def start(self, name: str | None, environment: Mapping[str, str]) -> ReleaseStart:
        """Return how to start a process of the release ``name``; None is the installed version.

        ``environment`` has further variables of the process. The release's code precedes the installed code, also
        an editable install: in the process, in the Python workers of its JVM, and in executors on other machines
        that have the release at the same path.

        Raises:
            ReleaseNotFoundError: this home has no release with this name.
            EnvironmentFailedError: packages of the release are missing.
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
        """Lock the folder of releases for this process, and yield a temporary folder in it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Temporary folders of processes that were killed.
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
    # Executors do not inherit the driver's environment, so they get the path by Spark's settings.
    executors = {"spark.executorEnv.PYTHONPATH": path, "spark.executorEnv.PYTHONSAFEPATH": "1"}
    variables = {"PYTHONPATH": path, "REFEED_SPARK_CONF": json.dumps({**executors, **conf}), **_SAFE_PATH}
    return ReleaseStart(python, {**environment, **variables})


def _read_wheel(path: Path) -> tuple[str, str]:
    """Return the version and the lock of a wheel of Refeed.

    Raises:
        ReleaseInvalidError: the file is no wheel of Refeed with a lock.
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
    """Archive Spark's classes in the release's own environment, so that its streams start faster.

    The setup has archived them for the installed version. Without the archive a start only takes longer.
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
    """Return the formats that a release prints; this also proves that the release starts.

    Raises:
        ReleaseInvalidError: the release does not start, or prints no formats.
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
