import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from model import failpoint


def pass_places(tmp_path: Path, armed: str, *names: str) -> int:
    script = f"from model import failpoint\nfor name in {names!r}: failpoint.hit(name)"
    return subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "REFEED_FAILPOINTS": armed}, check=False
    ).returncode


def test_an_armed_place_kills_once_and_after_the_passes_it_was_told_to_skip(tmp_path):
    armed = f"commit.before=1:{tmp_path / 'marker'}"
    assert pass_places(tmp_path, armed, "commit.before") == 0
    assert pass_places(tmp_path, armed, "commit.before", "commit.before") == -signal.SIGKILL
    assert pass_places(tmp_path, armed, "commit.before", "commit.before") == 0


def test_places_are_armed_in_a_folder_while_processes_run_and_kill_one_of_them_once(tmp_path):
    orders = tmp_path / "orders"
    assert pass_places(tmp_path, str(orders), "commit.before") == 0
    failpoint.arm(orders, "commit.before", skip=1)
    assert pass_places(tmp_path, str(orders), "commit.before", "commit.after") == 0
    assert not failpoint.is_hit(orders, "commit.before")
    assert pass_places(tmp_path, str(orders), "commit.before", "commit.before") == -signal.SIGKILL
    assert failpoint.is_hit(orders, "commit.before")
    assert pass_places(tmp_path, str(orders), "commit.before", "commit.before") == 0


def test_an_order_that_is_taken_back_kills_nobody_and_says_whether_it_has(tmp_path):
    failpoint.arm(tmp_path, "commit.before")
    assert failpoint.disarm(tmp_path, "commit.before") is False
    assert pass_places(tmp_path, str(tmp_path), "commit.before") == 0
    failpoint.arm(tmp_path, "commit.before")
    assert pass_places(tmp_path, str(tmp_path), "commit.before") == -signal.SIGKILL
    assert failpoint.disarm(tmp_path, "commit.before") is True


def test_another_place_does_not_kill(tmp_path):
    assert pass_places(tmp_path, f"commit.before=0:{tmp_path / 'marker'}", "commit.after") == 0


def test_a_name_that_is_no_place_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("REFEED_FAILPOINTS", "no.such=0:x")
    with pytest.raises(ValueError, match=r"no\.such"):
        failpoint.hit("commit.before")
    with pytest.raises(ValueError, match=r"no\.such"):
        failpoint.arm(tmp_path, "no.such")


def test_every_place_on_the_list_is_in_the_code_and_the_other_way_round():
    root = Path(failpoint.__file__).parents[1]
    packages = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    found = {
        name
        for folder in packages["packages"]
        for path in (root / folder).rglob("*.py")
        for name in re.findall(r'failpoint\.hit\("([^"]+)"\)', path.read_text())
    }
    steps = {f"{step}.{place}" for step in failpoint.STEPS for place in ("entered", "done")}
    assert found | steps == set(failpoint.FAILPOINTS)
