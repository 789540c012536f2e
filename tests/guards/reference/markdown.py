"""What the pages share: text that Markdown reads as it is meant, links to other pages, and tables."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
NOTE: Final = "<!-- Written by 'make reference' from {sources}. Change it there. -->\n"
# A page, a command in quotes, or a name that is code: one of them at each place, the longest first.
_PARTS: Final = re.compile(
    r"(?P<code>``?[^`]+``?)|'(?P<command>(?:(?:refeed|gcloud|make|pip) |--)[^']*)'|(?<!\w)'(?P<word>\w+)'(?!\w)"
    r"|docs/(?P<page>[\w/.-]+\.md)(?P<anchor>#[\w-]+)?"
    r"|(?P<name>\b(?:REFEED|PUBSUB|BIGQUERY|GOOGLE|JAVA)_[A-Z_]+\b(?:=[\w-]+)?|(?<![\w-])--[a-z][a-z_-]+"
    r"|(?:file|env|gcp-kms|https?|gs|sc|spark|sqlite|postgresql[+]psycopg)://?[^\s,]*[^\s,.)]"
    r"|(?:file|env|gcp-kms):[A-Z/][^\s,]*[^\s,.)]"
    r"|(?<![\w./])(?:backfills|messages|streams|schedules|rollouts)\.(?:read|plan|run|approve|admin|operate|apply)\b"
    r"|(?<![\w./])(?:(?:project[.])?dataset[.]table(?:[.]column)?|sources[.]yaml|requirements[.]lock|KEY=VALUE)\b"
    r"|(?<![\w./<=-])_?[A-Za-z][a-z0-9]*(?:_[a-z0-9]+)+(?:=\w+)?\b(?![./<>]\w)|\b_PARTITION(?:TIME|DATE)\b"
    r"|\b(?:PENDING|RUNNING|PAUSED|CANCELL(?:ING|ED)|SUCCEEDED|FAILED|COMPLETED|STABLE|INCONCLUSIVE|WATCHING|WAITING"
    r"|REFUSED|ROLLED_BACK|APPROVED|EXPIRED|DRAINING|NOT_REPORTING|LATEST|TRIM_HORIZON)\b"
    r"|(?:^|(?<=[.] ))[a-z_]+(?=: [a-zA-Z0-9]))|(?P<escape>[<*|\\])"
)


def page(title: str, sources: str, *parts: str) -> str:
    """Return a page: its title, where its text is from, and its parts with a blank line between them."""
    return "\n".join(
        [f"# {title}\n", NOTE.format(sources=sources), *(f"{part.rstrip()}\n" for part in parts if part)]
    )


def prose(text: str) -> str:
    """Return plain text as Markdown: commands and variables as code, pages as links, the rest as it stands.

    Example:
        >>> prose("Less than <home>; 'refeed up' reads REFEED_HOME (docs/deploy.md).")
        'Less than \\\\<home>; `refeed up` reads `REFEED_HOME` ([deploy.md](../deploy.md)).'
    """
    return _PARTS.sub(_markdown, " ".join(text.split()))


def _markdown(found: re.Match[str]) -> str:
    if found["code"]:
        return f"`{found['code'].strip('`')}`"
    if code := found["command"] or found["word"] or found["name"]:
        return f"`{code}`"
    if found["page"]:
        return f"[{found['page']}](../{found['page']}{found['anchor'] or ''})"
    return f"\\{found['escape']}"


def sentence(text: str) -> str:
    """Return the text with a full stop at its end. Its beginning stays: it may be a value."""
    text = text.strip()
    return text if not text or text.endswith((".", ":")) else f"{text}."


def first_sentence(text: str) -> str:
    """Return the first paragraph of a docstring, on one line."""
    return " ".join(text.strip().split("\n\n")[0].split())


def anchor(heading: str) -> str:
    """Return the anchor that GitHub makes of a heading.

    Example:
        >>> anchor("`refeed merge create`")
        'refeed-merge-create'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def link(heading: str) -> str:
    return f"[{heading}](#{anchor(heading)})"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a bar within a cell has a backslash before it already, or gets one."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)[|]", r"\|", text)
