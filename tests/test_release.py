"""The rules of make release-check: which files and which metadata the archives of a release have."""

import runpy
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[1] / ".ci" / "release.py"))
PROJECT: dict[str, Any] = {
    "project": {
        "name": "refeed",
        "version": "0.1.0",
        "requires-python": ">=3.11",
        "license": "Apache-2.0",
        "description": "Backs up.",
    },
    "tool": {
        "hatch": {
            "build": {
                "targets": {
                    "wheel": {
                        "packages": ["api"],
                        "force-include": {"docs/problems": "api/problems", "docs/r.md": "api/r.md"},
                    },
                    "sdist": {"include": ["/api", "/docs", "/requirements.lock", "/tests"]},
                }
            }
        }
    },
}
TRACKED = [
    *(
        "api/__init__.py",
        "api/py.typed",
        "api/queries/day.sql",
        "docs/problems/full.md",
        "docs/r.md",
        "docs/other.md",
    ),
    *("tests/test_api.py", "apis/__init__.py", "requirements.lock", "Makefile"),
]


def test_a_wheel_has_the_packages_the_served_pages_and_its_lock() -> None:
    assert SCRIPT["expected_in_wheel"](TRACKED, PROJECT) == {
        *("api/__init__.py", "api/py.typed", "api/queries/day.sql", "api/problems/full.md", "api/r.md"),
        *("refeed-0.1.0.dist-info/METADATA", "refeed-0.1.0.dist-info/RECORD", "refeed-0.1.0.dist-info/WHEEL"),
        *("refeed-0.1.0.dist-info/entry_points.txt", "refeed-0.1.0.dist-info/licenses/LICENSE"),
        "refeed-0.1.0.dist-info/extra_metadata/requirements.lock",
    }


def test_an_sdist_has_what_builds_and_tests_the_wheel() -> None:
    files = SCRIPT["expected_in_sdist"](TRACKED, PROJECT)
    assert {"refeed-0.1.0/tests/test_api.py", "refeed-0.1.0/docs/other.md", "refeed-0.1.0/LICENSE"} <= files
    assert {"refeed-0.1.0/PKG-INFO", "refeed-0.1.0/pyproject.toml", "refeed-0.1.0/requirements.lock"} <= files
    assert {"refeed-0.1.0/Makefile", "refeed-0.1.0/apis/__init__.py"}.isdisjoint(files)


def test_a_missing_file_and_one_too_many_are_both_faults() -> None:
    assert SCRIPT["compare_names"]("wheel", ["a.py", "tests/test_a.py"], {"a.py", "a.sql"}) == [
        "wheel: a.sql is missing",
        "wheel: tests/test_a.py should not be there",
    ]
    assert SCRIPT["compare_names"]("wheel", ["a.py"], {"a.py"}) == []


def metadata(**changes: str) -> Message:
    fields = {
        "Name": "refeed",
        "Version": "0.1.0",
        "Requires-Python": ">=3.11",
        "License-Expression": "Apache-2.0",
        "Summary": "Backs up.",
        "Description-Content-Type": "text/markdown",
    }
    made = Message()
    for field, value in (fields | changes).items():
        made[field] = value
    made.set_payload("# Refeed\n")
    return made


@pytest.mark.parametrize(
    ("changed", "readme", "fault"),
    [
        ({}, "# Refeed", None),
        ({"Version": "0.2.0"}, "# Refeed", "METADATA: Version is '0.2.0', not '0.1.0'"),
        (
            {"Description-Content-Type": "text/plain"},
            "# Refeed",
            "METADATA: Description-Content-Type is 'text/plain', not 'text/markdown'",
        ),
        ({}, "# Another", "METADATA: the description is not README.md"),
    ],
)
def test_metadata_is_that_of_the_project(changed: dict[str, str], readme: str, fault: str | None) -> None:
    assert SCRIPT["compare_metadata"](metadata(**changed), readme, PROJECT) == ([fault] if fault else [])
