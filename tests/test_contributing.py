"""What a contributor finds: the tour's files and names, the workflow of a public CI, templates and hooks."""

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
STEP = re.compile(r"^\| [^|]+ \| `([a-z_/]+\.py)` \| ([^|]+) \|$", re.MULTILINE)


def read_yaml(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def test_the_tour_names_files_with_the_functions_and_classes_to_read() -> None:
    steps = STEP.findall(PAGE)
    missing = []
    for file, names in steps:
        defined = {node.name for node in ast.parse((ROOT / file).read_text()).body if hasattr(node, "name")}
        missing += [f"{file}: {name}" for name in re.findall(r"`(\w+)`", names) if name not in defined]
    assert missing == []
    assert len(steps) > 20


def test_the_tour_s_layers_are_those_that_lint_checks() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    drawn = re.search(r"Imports go down only:\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    assert [line.split("  ")[0].strip() for line in drawn[1].splitlines()] == contracts[0]["layers"]


def test_every_target_of_the_page_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", PAGE)) <= targets


def test_a_public_ci_runs_what_every_ci_runs_and_can_write_nothing() -> None:
    workflow = read_yaml(".github/workflows/ci.yml")
    (job,) = workflow["jobs"].values()
    assert job["steps"][-1] == {"run": ".ci/run"}
    assert job["timeout-minutes"] == 90
    assert workflow["permissions"] == {"contents": "read"}
    assert "secrets." not in (ROOT / ".github/workflows/ci.yml").read_text()


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_a_form_for_issues_has_fields_that_are_named_once(name: str) -> None:
    form = read_yaml(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert {"name", "description", "body"} <= form.keys()
    fields = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert len(set(fields)) == len(fields) > 0


def test_hooks_run_the_tools_of_lint_from_the_environment() -> None:
    (repository,) = read_yaml(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    lint = (ROOT / "Makefile").read_text()
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        assert f"$(BIN)/{hook['entry'].split()[0].removeprefix('.venv/bin/')}" in lint
