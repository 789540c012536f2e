"""Copies of the tree that tests run in, and the record of which test covers which line."""

import contextlib
import difflib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.guards import selected
from tests.guards.mutations import Mutant, MutantError

TEST_SECONDS: Final = 600.0
RECORD_SECONDS: Final = 7200.0
OUTPUT: Final = 1500
_MARKERS: Final = "not kills and not cloud and not browser"


@dataclass(frozen=True)
class Verdict:
    """How one test ended: ``state`` is passed, failed, error, or skipped; ``message`` is its first error's."""

    state: str
    message: str
    seconds: float


class Copy:
    """The tree in a folder of its own, which a test's process imports instead of the tree."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            check=True,
        )
        for name in listed.stdout.decode().split("\0"):
            if name and (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)
        # The plugin also runs in a tree that has none.
        shutil.copy(selected.__file__, folder / "mutants_selected.py")
        # Tests look there for the programs that are installed beside Python.
        if (root / ".venv").exists():
            (folder / ".venv").symlink_to(root / ".venv")
        # The virtual environment's editable install comes after this on the path of imports.
        self.environment = {**os.environ, "PYTHONPATH": str(folder)}
        # It names the context of what a process covers, and is of a run around this one.
        self.environment.pop("PYTEST_CURRENT_TEST", None)

    def check(self, package: str) -> None:
        """See that a test would import the copy's package.

        Raises:
            MutantError: it would import another one.
        """
        script = f"import {package}; print({package}.__file__ or list({package}.__path__)[0])"
        done = subprocess.run(
            [sys.executable, "-c", script],
            # Tests start processes in other folders.
            cwd="/",
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if not Path(done.stdout.strip() or "/").is_relative_to(self.folder):
            raise MutantError(f"{package} is imported from {done.stdout.strip()}{done.stderr}, not {self.folder}")

    @contextlib.contextmanager
    def broken(self, mutant: Mutant) -> Iterator[None]:
        """Have the mutant's fault in the copy for as long as the block runs.

        Raises:
            MutantError: the file or its old text is not there.
        """
        path, kept = self.folder / mutant.file, self.folder / f"{mutant.file}.kept"
        if not path.exists():
            raise MutantError(f"there is no {mutant.file}")
        text = mutant.render(path.read_text())
        path.rename(kept)
        try:
            path.write_text(text)
            yield
        finally:
            path.unlink()
            kept.rename(path)

    def run(
        self,
        tests: Sequence[str],
        *options: str,
        only: Sequence[str] | None = None,
        environment: dict[str, str] | None = None,
        seconds: float = TEST_SECONDS,
    ) -> dict[str, Verdict]:
        """Run tests, or ``only`` some of theirs in that order, and return how each ended.

        Raises:
            MutantError: no test ended.
        """
        with tempfile.TemporaryDirectory(prefix="refeed-mutant-report-") as folder:
            report, wanted = Path(folder, "report.jsonl"), Path(folder, "wanted.json")
            wanted.write_text(json.dumps(only))
            command = [
                *(sys.executable, "-m", "pytest", "--quiet", "--tb=short", "-p", "no:cacheprovider"),
                *("-p", "mutants_selected", f"--basetemp={folder}/tmp", *options, *tests),
            ]
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={
                    **self.environment,
                    **(environment or {}),
                    "REFEED_MUTANTS_REPORT": str(report),
                    "REFEED_MUTANTS_ONLY": str(wanted),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            try:
                said, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                said = f"it takes more than {seconds:.0f} s"
                process.communicate()
            lines = report.read_text().splitlines() if report.exists() else []
            if not lines and only is None:
                raise MutantError(f"no test ran: {said[-OUTPUT:]}")
            return _fold([json.loads(line) for line in lines])


class Record:
    """Which tests passed, in how many seconds, and which lines each of them ran, in one run of the rooms' suites.

    The lines of a file that changed since are looked up where they were.
    """

    def __init__(self, folder: Path) -> None:
        from coverage import CoverageData

        kept = json.loads((folder / "tests.json").read_text())
        self.seconds: dict[str, float] = kept["seconds"]
        self._texts: dict[str, str] = kept["texts"]
        self._data = CoverageData(str(folder / "coverage"))
        self._data.read()

    @staticmethod
    def make(root: Path, code: Sequence[str], suites: Sequence[str], folder: Path, jobs: int) -> None:
        """Run all suites once and keep what they covered."""
        import coverage

        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with tempfile.TemporaryDirectory(prefix="refeed-mutants-") as place:
            copy = Copy(root, Path(place))
            settings = Path(place, "coverage.ini")
            settings.write_text(
                f"[run]\nparallel = true\ndata_file = {folder}/coverage\n"
                # Of a process that a test starts; pytest's own processes switch at each test.
                "context = ${PYTEST_CURRENT_TEST-}\n"
                f"include =\n{''.join(f'    {place}/{glob}{chr(10)}' for glob in code)}"
            )
            names = [str(path.relative_to(root)) for path in sorted(root.glob("tests/**/test_*.py"))]
            names = [name for name in names if name.startswith(tuple(suites))]

            def run(number: int) -> dict[str, Verdict]:
                return copy.run(
                    names[number::jobs],
                    *("-m", _MARKERS),
                    environment={"COVERAGE_PROCESS_START": str(settings)},
                    seconds=RECORD_SECONDS,
                )

            with ThreadPoolExecutor(jobs) as pool:
                verdicts = {test: v for part in pool.map(run, range(jobs)) for test, v in part.items()}
            combined = coverage.Coverage(data_file=str(folder / "coverage"), config_file=False)
            combined.combine([str(folder)])
            combined.save()
            kept = {
                "seconds": {test: v.seconds for test, v in verdicts.items() if v.state == "passed"},
                "texts": {
                    str(Path(file).relative_to(place)): Path(file).read_text()
                    for file in combined.get_data().measured_files()
                },
                "place": place,
            }
            (folder / "tests.json").write_text(json.dumps(kept))
        sys.stdout.write(f"{len(kept['seconds'])} of {len(verdicts)} tests recorded\n")

    def tests(self, mutant: Mutant, text: str) -> list[str]:
        """Return the tests that cover a mutant, the fastest first."""
        file = next((f for f in self._data.measured_files() if f.endswith(f"/{mutant.file}")), None)
        if file is None:
            return []
        before = self._texts[mutant.file].splitlines()
        blocks = difflib.SequenceMatcher(None, text.splitlines(), before, autojunk=False).get_matching_blocks()
        moved = {a + i + 1: b + i + 1 for a, b, size in blocks for i in range(size)}
        contexts = self._data.contexts_by_lineno(file)
        lines = {moved[line] for line in mutant.lines if line in moved} or contexts.keys()
        found = {each.partition(" (")[0] for line in lines for each in contexts.get(line, ())}
        return sorted(found & self.seconds.keys(), key=lambda test: (self.seconds[test], test))


def _fold(lines: Sequence[dict[str, Any]]) -> dict[str, Verdict]:
    """Make one verdict of the phases of each test: the first that did not pass says how it ended."""
    verdicts: dict[str, Verdict] = {}
    for line in lines:
        before = verdicts.get(line["test"], Verdict("passed", "", 0.0))
        state = "error" if line["outcome"] == "failed" and line["when"] != "call" else line["outcome"]
        state, message = (state, line["message"]) if before.state == "passed" else (before.state, before.message)
        verdicts[line["test"]] = Verdict(state, message, before.seconds + line["seconds"])
    return verdicts
