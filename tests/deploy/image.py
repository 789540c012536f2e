"""Builds the stages of the Dockerfile into folders, with the commands that stand there, where no engine is.

It knows the instructions and programs that the Dockerfile has, and fails at any other. Every path of an image lies
below one folder, and only one stage lies there at a time, because scripts of a virtual environment hold its path.
So a later stage has only what it copies from an earlier one, as in an image.
"""

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

_RUN_SECONDS = 600
# What a package brings of that which this project's processes call.
_PROGRAMS = {"procps": {"ps"}, "tini": {"tini"}}
# The base image has one Python, and no Java.
_NOT_THERE = re.compile(r"(python|pip|pydoc|java|jcmd|refeed|spark|pyspark)")


class IndexAwayError(Exception):
    """The index of packages does not answer."""


@dataclass(frozen=True)
class User:
    """Who a process runs as, and the home of that user in the image."""

    uid: int
    gid: int
    home: str


_ROOT_USER = User(0, 0, "/root")


@dataclass(frozen=True)
class Image:
    """A stage that is built; its paths are those of the image."""

    base: str
    folder: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, User] = field(default_factory=dict)
    packages: frozenset[str] = frozenset()
    user: User = _ROOT_USER
    workdir: str = "/"
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()


def read_stages(text: str) -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Return by name what each stage begins with, and its instructions."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    stages: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    for line in re.sub(r"\\\n", " ", lines).splitlines():
        if not line.strip():
            continue
        keyword, _, rest = line.partition(" ")
        if keyword == "FROM":
            base, name = rest.split(" AS ")
            current: list[tuple[str, str]] = []
            stages[name] = (base, current)
        else:
            current.append((keyword, rest.strip()))
    return stages


class Builder:
    """Builds stages below ``folder``, with ``python`` for that of the base image."""

    def __init__(self, folder: Path, context: Path, python: Path) -> None:
        self._stages = read_stages((context / "Dockerfile").read_text())
        self._context = context
        self._python = python
        # Where every stage lies while it is built or run.
        self._root = folder / "image"
        self._layers = folder / "layers"
        self._layers.mkdir()
        self._programs = folder / "programs"
        self._images: dict[str, Image] = {}

    def build(self, name: str) -> Image:
        if name in self._images:
            return self._images[name]
        base, instructions = self._stages[name]
        for source in [base, *re.findall(r"--from=(\S+)", str(instructions))]:
            if source in self._stages:
                self.build(source)
        if base in self._stages:
            image = self.build(base)
            # Files are never written in place here, so that links serve.
            shutil.copytree(_built(image), self._root, symlinks=True, copy_function=os.link)
        else:
            image = Image(base)
            self._root.mkdir()
        for keyword, rest in instructions:
            image = self._apply(image, keyword, rest)
        self._images[name] = replace(image, folder=self._layers / name)
        self._root.rename(_built(self._images[name]))
        return self._images[name]

    @contextmanager
    def entered(self, image: Image) -> Iterator["Machine"]:
        """Put the stage where it runs, and give what runs commands in it."""
        _built(image).rename(self._root)
        try:
            yield Machine(self._root, image, self._link_programs(image))
        finally:
            self._root.rename(_built(image))

    def _apply(self, image: Image, keyword: str, rest: str) -> Image:
        apply = {
            "RUN": self._apply_run,
            "COPY": self._copy,
            "ENV": _set_environment,
            "WORKDIR": self._make_workdir,
            "USER": lambda image, name: replace(image, user=image.users[name]),
            "ENTRYPOINT": lambda image, words: replace(image, entrypoint=json.loads(words)),
            "CMD": lambda image, words: replace(image, command=json.loads(words)),
            "VOLUME": self._check_volume,
        }.get(keyword)
        assert apply is not None, f"an instruction that is not known here: {keyword} {rest}"
        return apply(image, rest)

    def _apply_run(self, image: Image, line: str) -> Image:
        for command in re.split(r"\s&&\s", line):
            program, *arguments = shlex.split(command)
            apply = {
                "apt-get": _install,
                "groupadd": lambda image, _: image,
                "useradd": self._add_user,
                "rm": self._remove,
                "mkdir": self._make_folder,
            }.get(program)
            if apply is None:
                self._start(image, [program, *arguments])
            else:
                image = apply(image, arguments)
        return image

    def _make_workdir(self, image: Image, path: str) -> Image:
        self._place(path).mkdir(parents=True, exist_ok=True)
        return replace(image, workdir=path)

    def _check_volume(self, image: Image, path: str) -> Image:
        assert self._place(path).is_dir(), f"{path} is made for root when a container starts"
        return image

    def _add_user(self, image: Image, arguments: list[str]) -> Image:
        options = dict(pairwise(arguments))
        uid = int(options["--uid"])
        user = User(uid, int(options.get("--gid", uid)), options["--home-dir"])
        assert "--create-home" in arguments
        home = self._place(user.home)
        home.mkdir(parents=True)
        if os.geteuid() == 0:
            os.chown(home, user.uid, user.gid)
        # Spark ends where its user has no name.
        users = self._place("/etc/passwd")
        users.parent.mkdir(exist_ok=True)
        users.write_text(
            f"{Path('/etc/passwd').read_text()}{arguments[-1]}:x:{uid}:{user.gid}::{user.home}:/bin/sh\n"
        )
        return replace(image, users={**image.users, arguments[-1]: user, str(uid): user})

    def _remove(self, image: Image, arguments: list[str]) -> Image:
        options, *patterns = arguments
        assert options == "-rf"
        for pattern in patterns:
            found = list(self._root.glob(pattern.lstrip("/")))
            # rm -rf takes no offence at a path that is wrong.
            assert found or "*" in pattern, f"there is no {pattern} to remove"
            for path in found:
                shutil.rmtree(path)
        return image

    def _make_folder(self, image: Image, arguments: list[str]) -> Image:
        (path,) = arguments
        # As in the base image, which has the folders above it.
        self._place(path).mkdir(parents=True)
        return image

    def _start(self, image: Image, words: list[str]) -> None:
        assert image.user == _ROOT_USER
        python = str(self._python)
        # The index and the cache of packages are this machine's; no layer holds a cache anyway.
        command = [
            python if word == "python" else self._inside(word) for word in words if word != "--no-cache-dir"
        ]
        left_out = ("PYTHON", "REFEED_", "SPARK_", "PYSPARK_", "JAVA_", "VIRTUAL_ENV", "PATH")
        done = subprocess.run(
            command,
            cwd=self._place(image.workdir),
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith(left_out)},
                "PATH": str(self._link_programs(image)),
            },
            capture_output=True,
            text=True,
            timeout=_RUN_SECONDS,
            check=False,
        )
        said = done.stdout[-2000:] + done.stderr[-4000:]
        if done.returncode and re.search("after connection broken|Max retries exceeded", said):
            raise IndexAwayError(said.strip().splitlines()[-1])
        assert done.returncode == 0, f"{shlex.join(words)}:\n{said}"

    def _copy(self, image: Image, line: str) -> Image:
        *options, source, target = shlex.split(line)
        # An absolute target is one of the image, too.
        to = self._place(f"{image.workdir}/{target}" if not target.startswith("/") else target)
        if options:
            ((_, _, name),) = (option.partition("--from=") for option in options)
            path = _built(self.build(name)) / source.lstrip("/")
            shutil.copytree(path, to, symlinks=True, copy_function=os.link)
        elif source == ".":
            shutil.copytree(self._context, to, ignore=self._ignored(), dirs_exist_ok=True)
        else:
            shutil.copy(self._context / source, to)
        return image

    def _ignored(self) -> Any:
        names = (self._context / ".dockerignore").read_text().split()
        anywhere = [name.removeprefix("**/") for name in names if name.startswith("**/")]
        at_top = {self._context / name for name in names}

        def ignore(folder: str, entries: list[str]) -> list[str]:
            return [name for name in entries if name in anywhere or Path(folder, name) in at_top]

        return ignore

    def _place(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def _inside(self, word: str) -> str:
        return inside(self._root, word)

    def _link_programs(self, image: Image) -> Path:
        """Return a folder with this machine's programs but those that the image lacks."""
        folder = self._programs / ("-".join(sorted(image.packages)) or "base")
        if not folder.exists():
            folder.mkdir(parents=True)
            lacking = set().union(*(found for name, found in _PROGRAMS.items() if name not in image.packages))
            for path in [*Path("/bin").iterdir(), *Path("/usr/bin").iterdir()]:
                link = folder / path.name
                if path.name not in lacking and not _NOT_THERE.match(path.name) and not link.is_symlink():
                    link.symlink_to(path)
        return folder


@dataclass(frozen=True)
class Machine:
    """Runs commands in a stage as its user; where this process may not, as itself."""

    root: Path
    image: Image
    programs: Path

    def place(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def environment(self, **given: str) -> dict[str, str]:
        """Return the environment of a process, with what ``docker run --env`` gives it."""
        own = {name: inside(self.root, value) for name, value in self.image.environment.items()}
        own["PATH"] = own.get("PATH", "$PATH").replace("$PATH", str(self.programs))
        return {**own, "HOME": str(self.place(self.image.user.home)), "LANG": "C.UTF-8", **given}

    def command(self, program: str, *words: str) -> list[str]:
        path = self.environment()["PATH"]
        found = shutil.which(program, path=path)
        assert found, f"{program} is not on the image's PATH, {path}"
        switch = self._switch() if self.is_its_user else []
        return [*switch, "env", f"--chdir={self.place(self.image.workdir)}", found, *words]

    @cached_property
    def is_its_user(self) -> bool:
        """Whether commands run as the image's user, which takes root who may mount."""
        if os.geteuid() != 0 or self.image.user == _ROOT_USER:
            return False
        return (
            subprocess.run([*self._switch(), "true"], capture_output=True, timeout=60, check=False).returncode == 0
        )

    def _switch(self) -> list[str]:
        # The user has its name for these processes alone.
        known = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/passwd && exec "$@"']
        user = self.image.user
        become = ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups", "--"]
        return [*known, str(self.place("/etc/passwd")), *become]

    def docker_run(self, *words: str) -> list[str]:
        """Return the command that ``docker run IMAGE`` with these words starts, but for tini."""
        init, dashes, program, *others = self.image.entrypoint
        assert (init, dashes) == ("tini", "--")
        assert any(init in _PROGRAMS[package] for package in self.image.packages)
        return self.command(program, *others, *(words or self.image.command))


def inside(root: Path, word: str) -> str:
    """Return a word of a command or a variable with each absolute path below ``root``."""
    return re.sub(r"(^|[=:])/(?=\w)", lambda match: f"{match[1]}{root}/", word)


def find_python(image: str) -> Path:
    """Return a Python of the version in the name of a base image; a root's has to be one that every user may run.

    Raises:
        FileNotFoundError: there is none here.
    """
    version = re.fullmatch(r"python:(\d+\.\d+)-.*", image)
    assert version, image
    name = f"python{version[1]}"
    for path in (Path(sys.base_prefix) / "bin" / name, Path("/usr/local/bin") / name, Path("/usr/bin") / name):
        if path.exists() and (os.geteuid() != 0 or _is_for_everybody(path.resolve())):
            return path
    raise FileNotFoundError(f"no {name} that every user may run")


def _set_environment(image: Image, line: str) -> Image:
    found = dict(image.environment)
    for name, value in (pair.split("=", 1) for pair in shlex.split(line)):
        # $PATH stays as it is where the base image sets it.
        found[name] = value.replace(f"${name}", found.get(name, f"${name}"))
    return replace(image, environment=found)


def _install(image: Image, arguments: list[str]) -> Image:
    command, *words = arguments
    names = {word for word in words if not word.startswith("-")} if command == "install" else set()
    return replace(image, packages=image.packages | names)


def _is_for_everybody(path: Path) -> bool:
    return all(place.stat().st_mode & stat.S_IXOTH for place in (path, *path.parents))


def _built(image: Image) -> Path:
    assert image.folder is not None
    return image.folder
