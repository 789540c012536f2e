"""The sources of the documentation site: its navigation, its scripts, and its pages as GitHub shows them."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.tab import start_chromium

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs" / "site"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BUILT = ROOT / "dist" / "site"
MERMAID = ROOT / ".venv/docs/node_modules/@mermaid-js/tiny/dist/mermaid.tiny.js"
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Directives, roles, targets, fences of colons and comments:
# https://myst-parser.readthedocs.io/en/latest/syntax/typography.html
DIRECTIVE = re.compile(r"^\s*(?:```|~~~)\{.*", re.MULTILINE)
ONLY_SPHINX = re.compile(r"\{[a-z:-]+\}`|^\([\w-]+\)=$|^:::.*|^%\s.*", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")


def read_diagrams() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for found in DIAGRAM.finditer(page.read_text()):
            yield page, found[1]


def test_the_readme_is_read_in_a_few_minutes() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_navigation_leads_to_every_page() -> None:
    # `make docs` says so too; this takes no site to be built.
    listed = {"docs/index"}
    for page, parts in tomllib.loads((SITE / "navigation.toml").read_text()).items():
        for entry in (entry for part in parts for entry in part["pages"]):
            pattern = entry.rpartition("<")[2].rstrip(">")
            folder = ROOT if pattern.startswith("/") else (ROOT / page).parent
            found = {
                str(file.relative_to(ROOT).with_suffix("")) for file in folder.glob(f"{pattern.lstrip('/')}.md")
            }
            assert found or "*" in pattern, pattern
            listed |= found
    assert {str(page.relative_to(ROOT).with_suffix("")) for page in PAGES} - listed == set()


def test_the_pages_hold_nothing_that_only_sphinx_understands() -> None:
    faults = []
    for page in PAGES:
        text = page.read_text()
        prose = CODE.sub("`", FENCE.sub("", text))
        found = [*DIRECTIVE.finditer(text), *ONLY_SPHINX.finditer(prose)]
        faults += [f"{page.relative_to(ROOT)}: {fault[0]}" for fault in found]
    assert faults == []


def test_the_site_s_own_files_name_no_other_host() -> None:
    files = [file for folder in ("static", "root") for file in (SITE / folder).iterdir()]
    assert files
    assert [
        file.name for file in files if "//" in re.sub(r"^\s*//.*$", "", file.read_text(), flags=re.MULTILINE)
    ] == []


@pytest.mark.browser
def test_mermaid_draws_every_diagram_without_a_network() -> None:
    if not MERMAID.is_file():
        pytest.skip("mermaid is not there: make docs")
    faults = []
    with start_chromium() as browser:
        context = browser.new_context(offline=True)
        tab = context.new_page()
        tab.set_content("<main></main>")
        tab.add_script_tag(path=str(MERMAID))
        for number, (page, text) in enumerate(read_diagrams()):
            drawn = tab.evaluate(
                "([id, text]) => mermaid.render(id, text).then(({svg}) => svg.startsWith('<svg'), String)",
                [f"diagram{number}", text],
            )
            if drawn is not True:
                faults.append(f"{page.relative_to(ROOT)}: {drawn}")
        context.close()
    assert faults == []


@pytest.mark.browser
def test_the_built_site_opens_from_disk_and_asks_no_other_host() -> None:
    if not (BUILT / "index.html").is_file():
        pytest.skip("the site is not there: make docs")
    asked: list[str] = []
    with start_chromium() as browser:
        tab = browser.new_context(offline=True).new_page()
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto((BUILT / "index.html").as_uri())
        tab.wait_for_url("**/docs/index.html")
        tab.wait_for_selector("pre.mermaid svg")
        tab.fill("input[name=q]", "acknowledge")
        tab.press("input[name=q]", "Enter")
        tab.wait_for_selector("#search-results li a")
    assert [url for url in asked if not url.startswith("file:")] == []
