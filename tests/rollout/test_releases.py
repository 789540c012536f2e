"""Releases side by side: installed whole or not at all, with their locks' packages, run from their own code."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from model.errors import (
    CheckpointCorruptError,
    EnvironmentFailedError,
    ReleaseExistsError,
    ReleaseInUseError,
    ReleaseInvalidError,
    ReleaseNotFoundError,
)
from rollout.environments import is_installed
from rollout.releases import Releases
from tests.rollout.wheels import lock_of, write_small_release, write_wheel

_INSTALLED = f"pyyaml=={version('pyyaml')} \\\n    --hash=sha256:00\n"


def keeping(code: str) -> dict[str, str]:
    """The file of a release that keeps Spark's classes at hand in its environment."""
    return {
        **dict.fromkeys(("connectors/__init__.py", "connectors/spark/__init__.py"), ""),
        "connectors/spark/classes.py": code,
    }


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_release_is_installed_beside_others_and_runs_its_own_code(tmp_path: Path) -> None:
    releases = Releases(tmp_path / "home")
    # The environment that is installed has Spark's classes since it was set up.
    made = keeping(f"open({str(tmp_path / 'made')!r}, 'w')")
    first = releases.add(write_small_release(tmp_path, "1.0", lock=_INSTALLED, more=made))
    assert not (tmp_path / "made").exists()
    second = releases.add(write_small_release(tmp_path, "2.0", lock=_INSTALLED), name="canary")

    assert [release.name for release in releases.list_releases()] == ["1.0", "canary"]
    assert releases.get_release("canary") == second
    assert (first.version, second.version, second.formats.version) == ("1.0", "2.0", "2.0")
    assert first.sha256 != second.sha256
    # All that their lock names is installed here, so that nothing was downloaded.
    assert first.environment == second.environment
    assert names_in(tmp_path / "home" / "environments") == [f"{first.environment}.lock"]
    # Ours is installed for editing in the Python that runs this, and its code does not win.
    started = releases.start("canary", {"PYTHONPATH": "/elsewhere", "REFEED_SPARK_CONF": '{"spark.x": "1"}'})
    ran = subprocess.run(
        started.command("backup"),
        env=started.variables,
        cwd=Path.cwd(),
        capture_output=True,
        text=True,
        check=True,
    )
    code = tmp_path / "home" / "releases" / "canary" / "code"
    assert ran.stdout.split() == [str(code / "cli" / "main.py"), "backup"]
    assert started.variables["PYTHONPATH"] == f"{code}:/elsewhere"
    assert '"spark.x": "1"' in started.variables["REFEED_SPARK_CONF"]


def test_the_same_wheel_again_changes_nothing_and_another_one_is_refused_its_name(tmp_path: Path) -> None:
    releases = Releases(tmp_path / "home")
    wheel = write_small_release(tmp_path, "1.0")
    first = releases.add(wheel)

    assert releases.add(wheel) == first
    with pytest.raises(ReleaseExistsError, match=r"1\.0 is another wheel already"):
        releases.add(write_small_release(tmp_path / "other", "1.0", extra="# another one"))
    assert releases.list_releases() == [first]

    with pytest.raises(ReleaseInUseError, match=r"1\.0 is the release of backup, pipeline-default"):
        releases.remove("1.0", used_by=["pipeline-default", "backup"])
    releases.remove("1.0", used_by=())
    assert releases.list_releases() == []
    assert names_in(tmp_path / "home" / "releases") == [".lock"]
    with pytest.raises(ReleaseNotFoundError):
        releases.remove("1.0", used_by=())


def test_packages_that_are_not_here_are_installed_by_their_hashes_and_shared_by_the_lock(tmp_path, monkeypatch):
    package = write_wheel(tmp_path / "index", "tinypackage", "3.1", {"tinypackage.py": "NAME = 'tiny'\n"})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    releases = Releases(tmp_path / "home")
    home = tmp_path / "home"

    wrong = write_small_release(tmp_path / "wrong", "0.9", lock=lock_of(package, digest="0" * 64))
    with pytest.raises(EnvironmentFailedError, match=r"(?s)DO NOT MATCH THE HASHES"):
        releases.add(wrong)
    assert releases.list_releases() == []
    assert [path for path in (home / "environments").iterdir() if path.is_dir()] == []

    needs_it = "from tinypackage import NAME"
    lock = lock_of(package)
    keeps = "import sys, tinypackage\nfrom pathlib import Path\n(Path(sys.prefix) / 'kept').write_text(__file__)\n"
    first = releases.add(write_small_release(tmp_path, "1.0", lock=lock, extra=needs_it, more=keeping(keeps)))
    kept = home / "environments" / first.environment / "kept"
    assert kept.read_text().endswith("connectors/spark/classes.py")
    # Nothing is at hand to be installed any more: what is there is used.
    package.unlink()
    # Classes that can't be kept cost time at each start, and nothing else.
    fails = keeping("raise SystemExit(1)")
    second = releases.add(write_small_release(tmp_path, "2.0", lock=lock, extra=needs_it, more=fails))
    assert first.environment == second.environment
    assert [path.name for path in (home / "environments").iterdir() if path.is_dir()] == [first.environment]
    started = releases.start("2.0", {})
    assert started.python == str(home / "environments" / first.environment / "bin" / "python")


def test_a_release_whose_packages_are_gone_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    releases = Releases(tmp_path / "home")
    release = releases.add(write_small_release(tmp_path, "1.0", lock=_INSTALLED))
    # As after an upgrade of what is installed here.
    lock = tmp_path / "home" / "environments" / f"{release.environment}.lock"
    lock.write_text("pyyaml==0.1 \\\n")
    with pytest.raises(EnvironmentFailedError, match="run 'refeed release add' with its wheel again"):
        releases.start("1.0", {})


@pytest.mark.parametrize(
    ("lock", "extra", "words"),
    [
        (None, "", "has no requirements.lock"),
        ("", "raise SystemExit('no such luck')", "does not start: no such luck"),
        ("", "print('hello')", "did not print the formats that it reads"),
    ],
)
def test_what_can_t_be_run_is_refused_and_leaves_nothing_behind(tmp_path, lock, extra, words):
    releases = Releases(tmp_path / "home")
    left_by_a_kill = tmp_path / "home" / "releases" / ".unfinished-00ff" / "code"
    left_by_a_kill.mkdir(parents=True)
    with pytest.raises(ReleaseInvalidError, match=words):
        releases.add(write_small_release(tmp_path, "1.0", lock=lock, extra=extra))
    assert names_in(tmp_path / "home" / "releases") == [".lock"]


def test_a_file_that_is_no_wheel_of_ours_and_a_name_that_leads_elsewhere_are_refused(tmp_path: Path) -> None:
    releases = Releases(tmp_path / "home")
    text = tmp_path / "refeed-1.0-py3-none-any.whl"
    text.write_text("no wheel")
    other = write_wheel(tmp_path, "tinypackage", "1.0", {})
    for wheel, words in (
        (text, "is not a wheel"),
        (other, "not a wheel of Refeed"),
        (tmp_path / "gone", "can't be read"),
    ):
        with pytest.raises(ReleaseInvalidError, match=words):
            releases.add(wheel)
    with pytest.raises(ReleaseInvalidError, match="not a valid name for a release"):
        releases.add(write_small_release(tmp_path / "fine", "1.0"), name="../up")
    for name in ("../up", "", ".lock"):
        with pytest.raises(ReleaseNotFoundError):
            releases.get_release(name)


def test_a_record_that_can_t_be_read_says_what_to_do(tmp_path: Path) -> None:
    releases = Releases(tmp_path / "home")
    record = tmp_path / "home" / "releases" / "1.0" / "release.json"
    record.parent.mkdir(parents=True)
    record.write_text("{")
    with pytest.raises(CheckpointCorruptError, match="add the release again"):
        releases.get_release("1.0")
    with pytest.raises(ReleaseNotFoundError, match=r"Did you mean 1\.0"):
        releases.get_release("1.00")


def test_what_is_installed_is_started_from_anywhere(tmp_path: Path) -> None:
    started = Releases(tmp_path).start(None, {"A": "b"})
    assert started.command("backup") == [sys.executable, "-m", "cli.main", "backup"]
    assert started.variables == {"A": "b", "PYTHONSAFEPATH": "1"}


@pytest.mark.parametrize(
    ("lock", "fits"),
    [
        (_INSTALLED, True),
        ("PyYAML==0.1 \\\n", False),
        ("no-such-package==1 \\\n", False),
        ("no-such-package==1 ; python_version < '3' \\\n", True),
        ((Path(__file__).parents[2] / "requirements.lock").read_text(), True),
    ],
)
def test_a_lock_is_installed_when_each_package_for_this_machine_is_in_its_version(lock: str, fits: bool) -> None:
    assert is_installed(lock) is fits


def test_the_environment_of_the_last_release_that_needs_it_goes_with_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    releases, folder = Releases(home), home / "environments"
    shared = [releases.add(write_small_release(tmp_path, name, lock=_INSTALLED)) for name in ("1.0", "2.0")]
    other = releases.add(write_small_release(tmp_path, "3.0", lock=""))
    for release in (*shared, other):
        # As where the packages are not installed here.
        (folder / release.environment).mkdir(exist_ok=True)
    (folder / "left-behind").mkdir()
    releases.remove("1.0", used_by=())
    assert names_in(folder) == sorted(f"{r.environment}{end}" for r in (shared[1], other) for end in ("", ".lock"))
    (home / "releases" / "3.0" / "release.json").write_text("{")
    releases.remove("2.0", used_by=())
    assert (folder / shared[1].environment).exists(), "3.0 can't be read, and may need any"
    (home / "releases" / "3.0" / "release.json").write_text(json.dumps(other.to_json()))
    releases.remove("3.0", used_by=())
    assert names_in(folder) == []
