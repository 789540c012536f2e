"""The recipes of docs/recipes.md beside the editor: each with its words and its query."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
# A wheel has it beside this module (see pyproject.toml), a clone under docs.
_FILES: Final = (_HERE / "recipes.md", _HERE.parent / "docs" / "recipes.md")
_BLOCK: Final = re.compile(r"```sh\n(.*?)```", re.DOTALL)
_QUERY: Final = re.compile(r'\n +"(SELECT.*?)"\s*$', re.DOTALL)
_PARAMETER: Final = re.compile(r"-p (\w+:\w+:\S+)")
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]*\)")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe: what it is for, and its query with an example of each parameter, NAME:TYPE:VALUE."""

    title: str
    words: str
    query: str
    parameters: tuple[str, ...]


@cache
def read_recipes() -> tuple[Recipe, ...]:
    """Return the recipes that have a query; none where the page was not installed."""
    file = next((each for each in _FILES if each.is_file()), None)
    return () if file is None else parse_recipes(file.read_text())


def parse_recipes(page: str) -> tuple[Recipe, ...]:
    r"""Return the recipes of a page in Markdown.

    Example:
        >>> page = '## One\n\nBy its [id](x.md).\n\n```sh\nplan -p id:STRING:1 \\\n  "SELECT 1\n   FROM t"\n```\n'
        >>> [(each.title, each.words, each.query, each.parameters) for each in parse_recipes(page)]
        [('One', 'By its id.', 'SELECT 1\nFROM t', ('id:STRING:1',))]
    """
    found = []
    for section in page.split("\n## " if not page.startswith("## ") else "## ")[1:]:
        title, _, rest = section.partition("\n")
        block = _BLOCK.search(rest)
        query = None if block is None else _QUERY.search(block[1])
        if block is None or query is None:
            continue
        words = _LINK.sub(r"\1", " ".join(rest[: block.start()].replace("`", "").split()))
        lines = [line.removeprefix("   ") for line in query[1].splitlines()]
        found.append(Recipe(title, words, "\n".join(lines), tuple(_PARAMETER.findall(block[1]))))
    return tuple(found)
