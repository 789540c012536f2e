"""Builds wheel and sdist from the tracked files, checks both, and runs the wheel's demo in a bare environment.

It uploads nothing. The exit code is 0 only if every file that should be in an archive is there, no other file is,
the metadata is right, and the demo's verdict is clean.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
INSTALL_SECONDS = 1800
DEMO_SECONDS = 900
# Hatchling adds these to every sdist: https://hatch.pypa.io/latest/plugins/builder/sdist/
_ALWAYS_IN_SDIST = (".gitignore", "LICENSE", "README.md", "pyproject.toml")
_ENTRY_POINTS = "[console_scripts]\nrefeed = cli.main:main\n"


class ReleaseError(Exception):
    """The archives can't be released; each argument is one fault."""


def expected_in_wheel(tracked: Iterable[str], project: Mapping[str, Any]) -> set[str]:
    """Return the names of all files that the wheel must have; a wheel with another file is wrong too."""
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    files = {name for name in tracked if name.split("/")[0] in wheel["packages"]}
    for source, target in wheel["force-include"].items():
        for name in tracked:
            if name == source:
                files.add(target)
            elif name.startswith(f"{source}/"):
                files.add(target + name.removeprefix(source))
    info = f"{project['project']['name']}-{project['project']['version']}.dist-info"
    own = [
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
        "extra_metadata/requirements.lock",
    ]
    return files | {f"{info}/{name}" for name in own}


def expected_in_sdist(tracked: Iterable[str], project: Mapping[str, Any]) -> set[str]:
    """Return the names of all files that the sdist must have; an sdist with another file is wrong too."""
    include = [path.strip("/") for path in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]]
    folder = f"{project['project']['name']}-{project['project']['version']}"
    files = {name for name in tracked if any(name == path or name.startswith(f"{path}/") for path in include)}
    return {f"{folder}/{name}" for name in (*files, *_ALWAYS_IN_SDIST, "PKG-INFO")}


def compare_names(archive: str, names: Iterable[str], expected: set[str]) -> list[str]:
    """Return a fault for each file that is missing from an archive or should not be in it."""
    there = set(names)
    return [
        *(f"{archive}: {name} is missing" for name in sorted(expected - there)),
        *(f"{archive}: {name} should not be there" for name in sorted(there - expected)),
    ]


def compare_metadata(metadata: Message, readme: str, project: Mapping[str, Any]) -> list[str]:
    """Return a fault for each field of METADATA that differs from pyproject.toml or README.md.

    PyPI shows the README with this type; twine says that rendering Markdown can't fail:
    https://github.com/pypa/twine/blob/main/twine/commands/check.py
    """
    own = project["project"]
    wanted = {
        "Name": own["name"],
        "Version": own["version"],
        "Requires-Python": own["requires-python"],
        "License-Expression": own["license"],
        "Summary": own["description"],
        "Description-Content-Type": "text/markdown",
    }
    faults = [
        f"METADATA: {field} is {metadata[field]!r}, not {value!r}"
        for field, value in wanted.items()
        if metadata[field] != value
    ]
    description = metadata.get_payload(decode=True)
    if not isinstance(description, bytes) or not readme.strip() or description.decode().strip() != readme.strip():
        faults.append("METADATA: the description is not README.md")
    return faults


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, check, install and run; print each step with its seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2000, help="Messages that the demo publishes.")
    messages: int = parser.parse_args(arguments).messages
    with tempfile.TemporaryDirectory(prefix="refeed-release-") as folder:
        try:
            _check(Path(folder), messages)
        except ReleaseError as error:
            for fault in error.args:
                _say(fault)
            return 1
    _say("the release is good")
    return 0


def _check(folder: Path, messages: int) -> None:
    began = time.monotonic()

    def done(step: str) -> None:
        _say(f"{step} ({time.monotonic() - began:.0f} s)")

    tree = folder / "tree"
    tracked = _copy_tracked_files(tree)
    project = tomllib.loads((tree / "pyproject.toml").read_text())
    done(f"{len(tracked)} tracked files copied")

    dist = folder / "dist"
    sdist, wheel = _build(tree, dist)
    done(f"built {sdist.name} of {sdist.stat().st_size:,} bytes, from it {wheel.name} of {wheel.stat().st_size:,}")

    with tarfile.open(sdist) as archive:
        in_sdist = [member.name for member in archive if not member.isdir()]
    faults = compare_names("sdist", in_sdist, expected_in_sdist(tracked, project))
    with zipfile.ZipFile(wheel) as files:
        in_wheel = files.namelist()
        faults += compare_names("wheel", in_wheel, expected_in_wheel(tracked, project))
        info = f"{project['project']['name']}-{project['project']['version']}.dist-info"
        if not faults:
            metadata = message_from_bytes(files.read(f"{info}/METADATA"))
            faults += compare_metadata(metadata, (tree / "README.md").read_text(), project)
            if files.read(f"{info}/entry_points.txt").decode() != _ENTRY_POINTS:
                faults.append(f"wheel: entry_points.txt is not {_ENTRY_POINTS!r}")
    if faults:
        raise ReleaseError(*faults)
    done(f"contents and metadata are right: {len(in_sdist)} files in the sdist, {len(in_wheel)} in the wheel")

    environment = folder / "environment"
    python = _install(environment, tree / "requirements.lock", wheel)
    shutil.rmtree(tree)
    done("installed the wheel with the packages of requirements.lock")

    empty, home = folder / "empty", folder / "home"
    empty.mkdir()
    home.mkdir()
    bare = {"PATH": f"{environment}/bin:/usr/bin:/bin", "HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8"}
    rooms = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    look = f"import {', '.join(rooms)}\nfor room in ({', '.join(rooms)}): print(room.__file__)"
    places = _run([str(python), "-c", look], empty, bare, 120).split()
    if strangers := [place for place in places if not place.startswith(f"{environment}/")]:
        raise ReleaseError(*(f"imported from elsewhere: {place}" for place in strangers))
    refeed = str(environment / "bin" / "refeed")
    done(_run([refeed, "--version"], empty, bare, 120).strip())

    told = _run([refeed, "demo", "--messages", str(messages), "--json"], empty, bare, DEMO_SECONDS)
    verdict = json.loads(told.strip().splitlines()[-1])
    _say(json.dumps(verdict))
    if not verdict["ok"]:
        raise ReleaseError("the demo's verdict is not clean")
    done("the demo's verdict is clean")


def _copy_tracked_files(tree: Path) -> list[str]:
    """Copy what git tracks, as it is in the working tree, and return its names."""
    listed = _run(["git", "ls-files", "-z"], ROOT, dict(os.environ), 60)
    names = [name for name in listed.split("\0") if name]
    for name in names:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    return names


def _build(tree: Path, dist: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from the sdist, each through its PEP 517 hook."""
    dist.mkdir()
    environment = dict(os.environ)
    hook = f"from hatchling.build import build_sdist; print(build_sdist({str(dist)!r}))"
    sdist = dist / _run([sys.executable, "-c", hook], tree, environment, 300).split()[-1]
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--use-pep517", "--no-build-isolation", "--no-deps"]
    _run([*pip, "--wheel-dir", str(dist), str(sdist)], dist, environment, 300)
    (wheel,) = dist.glob("*.whl")
    return sdist, wheel


def _install(environment: Path, lock: Path, wheel: Path) -> Path:
    """Make a bare environment with the locked packages and the wheel, and return its Python."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    _run([sys.executable, "-m", "venv", str(environment)], environment.parent, variables, 300)
    python = environment / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet", "--use-pep517", "--no-deps"]
    _run([*install, "--require-hashes", "--requirement", str(lock)], environment, variables, INSTALL_SECONDS)
    _run([*install, "--no-index", str(wheel)], environment, variables, 300)
    _run([*pip, "check"], environment, variables, 300)
    return python


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str], seconds: float) -> str:
    try:
        done = subprocess.run(  # noqa: S603
            command,
            cwd=folder,
            env=dict(environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise ReleaseError(f"{command[0]} did not end within {seconds:.0f} s") from None
    if done.returncode != 0:
        raise ReleaseError(f"{' '.join(command)}: exit code {done.returncode}", done.stdout + done.stderr)
    return done.stdout


def _say(text: str) -> None:
    sys.stdout.write(f"release-check: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
