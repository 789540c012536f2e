"""Asks the package index for known vulnerabilities of all that is locked, and says what could not be asked.

Exit code 1 means that there is one. An index that does not answer is said and no failure: a check that fails
without a network would be switched off.
"""

import json
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).parents[1] / "requirements-dev.lock"
SECONDS = 300


def main() -> int:
    """Audit the lock file, and print one line for each vulnerability and one for the whole."""
    command = [
        *(sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--requirement", str(LOCK)),
        *("--format", "json", "--progress-spinner", "off", "--timeout", "15"),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)  # noqa: S603
        found = json.loads(done.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        return _not_audited("the package index did not answer in time")
    except (ValueError, KeyError, TypeError):
        return _not_audited((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
    skipped = [package for package in found if "skip_reason" in package]
    flaws = [(package, flaw) for package in found for flaw in package.get("vulns", [])]
    for package, flaw in flaws:
        fixed = ", ".join(flaw.get("fix_versions", [])) or "no version yet"
        _say(f"{package['name']} {package['version']}: {flaw['id']}, fixed in {fixed}")
    if len(skipped) == len(found):
        return _not_audited("the package index has no list of vulnerabilities")
    if skipped:
        _say(f"NOT AUDITED: {len(skipped)} of {len(found)} packages, which the index does not know")
    _say(f"{len(flaws)} known vulnerabilities in {len(found) - len(skipped)} packages")
    return 1 if flaws else 0


def _not_audited(why: str) -> int:
    _say(f"NOT AUDITED, nothing is known of vulnerabilities: {why}")
    return 0


def _say(text: str) -> None:
    sys.stderr.write(f"pip-audit: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
