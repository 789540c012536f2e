"""The demo as a person runs it: a process, a kill -9, a verdict."""

import json
import os
import subprocess
import sys

import pytest

from tests.standin.fixture import run_standin

pytestmark = [pytest.mark.kills, pytest.mark.java, pytest.mark.timeout(420)]

KEYS = [
    "published", "archived", "lost", "duplicates", "payload_mismatches", "selected", "republished",
    "rearchived", "seconds", "ok",
]  # fmt: skip


def run_demo(tmp_path, *arguments, **environment):
    """Run it with a temporary folder of its own and return its exit code, verdict and what it told meanwhile."""
    own = {"TMPDIR": str(tmp_path), "REFEED_HOME": str(tmp_path / "untouched")}
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "demo", "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, **own, **environment},
        cwd=tmp_path,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_a_made_up_shop_survives_a_kill_and_is_replayed_whole(tmp_path):
    code, verdict, told = run_demo(tmp_path, "--messages", "1500", "--seed", "5")
    assert list(verdict) == KEYS, told
    assert verdict["ok"] is True, (verdict, told)
    assert code == 0
    assert (verdict["published"], verdict["archived"]) == (1500, 1500)
    assert verdict["selected"] == verdict["republished"] > 500
    assert list(verdict["seconds"]) == ["start", "publish", "archive", "replay", "verify", "total"]
    assert list(tmp_path.iterdir()) == [], "its home is gone, and REFEED_HOME was not touched"


def test_the_same_with_the_archive_in_bigquery(tmp_path, tmp_path_factory):
    with run_standin(tmp_path_factory.mktemp("bigquery")) as standin:
        code, verdict, told = run_demo(
            tmp_path, "--messages", "1500", "--warehouse", "bigquery", **standin.environment
        )
    assert verdict["ok"] is True, (verdict, told)
    assert code == 0
    assert (verdict["published"], verdict["archived"]) == (1500, 1500)
    assert verdict["selected"] == verdict["republished"] > 500
    assert list(tmp_path.iterdir()) == []
