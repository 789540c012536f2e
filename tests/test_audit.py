"""What lint says of known vulnerabilities, with an index that answers as the test says."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "audit.py"
GOOD: dict[str, Any] = {"name": "good", "version": "1.0", "vulns": []}
BAD: dict[str, Any] = {"name": "bad", "version": "2.0", "vulns": [{"id": "CVE-1", "fix_versions": ["2.1"]}]}
UNKNOWN: dict[str, Any] = {"name": "own", "skip_reason": "not found"}


def audit(folder: Path, answer: str) -> tuple[int, str]:
    (folder / "pip_audit.py").write_text(f"import sys\nsys.stdout.write({answer!r})\nsys.exit(1)\n")
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("packages", "code", "said"),
    [
        ([GOOD], 0, "0 known vulnerabilities in 1 packages"),
        ([GOOD, BAD], 1, "bad 2.0: CVE-1, fixed in 2.1"),
        ([BAD, UNKNOWN], 1, "NOT AUDITED: 1 of 2 packages"),
        ([UNKNOWN], 0, "NOT AUDITED, nothing is known"),
    ],
)
def test_a_known_vulnerability_fails_and_what_was_not_asked_is_said(tmp_path, packages, code, said):
    ended, text = audit(tmp_path, json.dumps({"dependencies": packages}))

    assert ended == code
    assert said in text


@pytest.mark.parametrize("answer", ["", "Traceback", "[]", "{}"])
def test_an_index_that_does_not_answer_is_said_and_no_failure(tmp_path: Path, answer: str) -> None:
    ended, text = audit(tmp_path, answer)

    assert ended == 0
    assert "NOT AUDITED, nothing is known" in text
