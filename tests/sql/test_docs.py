import ast
import re
from pathlib import Path

from sql.reasons import REASONS

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "sql.md").read_text()
NAMES = {"Fault", "fault", "_fault", "Violation", "refuse"}


def codes_in_code() -> set[str]:
    codes = set()
    for path in (ROOT / "sql").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in NAMES:
                texts = [
                    arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
                ]
                codes |= {text for text in texts if re.fullmatch(r"[a-z]+(_[a-z0-9]+)*", text)}
    return codes


def test_every_code_has_a_meaning_and_every_meaning_a_code() -> None:
    assert codes_in_code() - REASONS.keys() == set()
    assert REASONS.keys() - codes_in_code() <= {"syntax", "column_type"}


def test_every_case_of_refusal_names_codes_that_exist() -> None:
    for path in (ROOT / "tests" / "sql" / "cases").glob("*/reject.sql"):
        for line in re.findall(r"^--: codes (.*)$", path.read_text(), re.MULTILINE):
            assert set(line.split()) <= REASONS.keys(), path


def test_every_warning_of_a_plan_is_listed() -> None:
    section = DOCS[DOCS.index("## What a plan contains") :]
    texts = [
        path.read_text()
        for folder, pattern in (("backfill", "*plan*.py"), ("warehouse", "write_buffer.py"))
        for path in (ROOT / folder).rglob(pattern)
    ]
    given = {code for text in texts for code in re.findall(r'\{"code": "([a-z_]+)"', text)}
    assert len(given) > 8
    assert given - set(re.findall(r"`([a-z_]+)`", section)) == set()
