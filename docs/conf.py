"""Builds the documentation site: ``make docs``.

The pages are plain Markdown, so that they read the same on GitHub. The navigation is in
``docs/site/navigation.toml``. It is added to the pages while Sphinx reads them. A page outside it is an error.
"""

import os
import re
import tomllib
from pathlib import Path
from typing import Any, Final

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT: Final = Path(__file__).parents[1]
NAVIGATION: Final = tomllib.loads((ROOT / "docs/site/navigation.toml").read_text())

project = "Refeed"
project_copyright = "Refeed's authors"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser"]
# The source folder is the repository, so that links between docs/ and README.md or CONTRIBUTING.md are checked.
include_patterns = ["*.md", "docs/**.md"]
exclude_patterns = ["dist"]
root_doc = "docs/index"
nitpicky = True
# GitHub's anchors, to every depth that a page has.
myst_heading_anchors = 6
myst_fence_as_directive = ["mermaid"]
suppress_warnings: list[str] = []

html_theme = "furo"
html_title = f"Refeed {version}"
# The second folder holds mermaid, as npm brings it.
html_static_path = ["site/static", "../.venv/docs/node_modules/@mermaid-js/tiny/dist"]
# The first page of all, which leads to the root page.
html_extra_path = ["site/root"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_last_updated_fmt = None
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "monokai"

# A folder, to which GitHub's pages link, and the page that lists it here.
FOLDERS: Final = {"docs/decisions": "docs/decisions", "docs/problems": "docs/reference/error-codes"}
_FOLDER_LINK: Final = re.compile(r"(?<=\]\()([\w./-]+)/(?=[)#])")


class Diagram(SphinxDirective):
    """Keeps a mermaid block as its text, for the script of its page to draw."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the text in the element that ``diagrams.js`` looks for."""
        text = nodes.Text("\n".join(self.content)).astext()
        escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return [nodes.raw("", f'<pre class="mermaid">{escaped}</pre>', format="html", classes=["diagram"])]


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Add the navigation's lists to the end of a page, and lead links to a folder to the folder's page."""

    def lead(found: re.Match[str]) -> str:
        folder = (Path(app.srcdir) / page).parent / found[1]
        target = FOLDERS.get(os.path.normpath(folder.relative_to(app.srcdir)))
        return f"/{target}.md" if target else found[0]

    source[0] = _FOLDER_LINK.sub(lead, source[0])
    for part in NAVIGATION.get(page, []):
        source[0] += "\n\n" + _render_toctree(page, part)


def _render_toctree(page: str, part: dict[str, Any]) -> str:
    caption = f":caption: {part['caption']}\n" if "caption" in part else ""
    hidden = "" if part.get("shown") else ":hidden:\n"
    pages = "\n".join(line for pattern in part["pages"] for line in _render_entries(page, pattern, part))
    return f"```{{toctree}}\n:maxdepth: 1\n{hidden}{caption}\n{pages}\n```\n"


def _render_entries(page: str, pattern: str, part: dict[str, Any]) -> list[str]:
    """Return the list's lines for ``pattern``; those of a glob are the pages that the list does not name."""
    if "*" not in pattern:
        return [pattern]
    named = {entry.rpartition("<")[2].rstrip(">") for entry in part["pages"]}
    folder = ROOT if pattern.startswith("/") else (ROOT / page).parent
    found = [
        f"/{file.relative_to(ROOT).with_suffix('')}" for file in sorted(folder.glob(f"{pattern.lstrip('/')}.md"))
    ]
    return [f"{Path(file).name} <{file}>" if part.get("by_name") else file for file in found if file not in named]


def add_diagrams(
    app: Sphinx, _page: str, _template: str, _context: dict[str, Any], tree: nodes.document | None
) -> None:
    """Load the diagrams' scripts on pages with a diagram only: they are 3 MB."""
    if tree is not None and any("diagram" in raw["classes"] for raw in tree.findall(nodes.raw)):
        app.add_js_file("mermaid.tiny.js")
        app.add_js_file("diagrams.js")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register what this file adds to Sphinx."""
    app.add_directive("mermaid", Diagram)
    app.connect("source-read", add_navigation)
    app.connect("html-page-context", add_diagrams)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
