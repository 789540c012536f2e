"""The page of settings: what .env.example says of each variable, and what the code takes and has by default."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

from model.settings import Settings
from tests.guards.reference.markdown import ROOT, link, page, prose, sentence, table

SECTION: Final = re.compile(r"^# --- (.+?) -+$")
INTRODUCTION: Final = """\
Refeed reads its settings from the environment variables of each process. Refeed does not read a settings file.
To keep settings in a file, copy [.env.example](../../.env.example) to `.env` and run `set -a; . ./.env; set +a`
before `refeed`.

While `refeed up` runs, a command with the same home uses its registry, lake, tables, job store and folders, unless
the command's own environment sets them. `refeed doctor` shows settings that differ from those of `refeed up`, and
variables that are no settings.

An empty variable means the default, except for `REFEED_MERGE_AT`. If a value is wrong, the command ends with exit
code 2. The error message names every wrong variable."""


@dataclass
class Setting:
    """A variable: what the example says of it, its default in words, and what the code takes."""

    name: str
    text: str
    default: str
    takes: str
    is_secret: bool

    def render(self) -> str:
        """Return the variable's part of the page."""
        takes = prose(self.takes)
        if takes.startswith("one of "):
            *first, last = (f"`{each.strip('`')}`" for each in takes.removeprefix("one of ").split(", "))
            takes = f"{', '.join(first)} or {last}"
        facts = [f"Allowed: {takes}."] if takes else []
        facts += ["The value can be a [reference to a secret](#secrets)."] if self.is_secret else []
        facts += [f"Default: {self.default}."]
        return f"### `{self.name}`\n\n{prose(sentence(self.text))}\n\n{' '.join(facts)}\n"


def render_settings() -> str:
    sections = list(_sections((ROOT / ".env.example").read_text()))
    groups = table(["group", "settings"], [[link(title), str(len(found))] for title, _, found in sections])
    parts = [
        "\n".join([f"## {title}\n", *([f"{prose(text)}\n"] if text else []), *(each.render() for each in found)])
        for title, text, found in sections
    ]
    sources = ".env.example and model/settings.py"
    return page("Settings", sources, INTRODUCTION, groups, *parts)


def _sections(example: str) -> Iterator[tuple[str, str, list[Setting]]]:
    """Yield each section of the example: its title, the text that stands before its variables, and these."""
    declared = dict(_declared(Settings))
    title, introduction, text = "", "", ""
    found: list[Setting] = []
    for line in [*example.splitlines(), "# --- end -"]:
        if section := SECTION.match(line):
            if found:
                yield title, introduction, found
            title, introduction, text, found = section[1], "", "", []
            title, _, where = title.partition(" (docs/")
            title = title[0].upper() + title[1:]
            introduction = f"More is in docs/{where.removesuffix(')')}." if where else ""
        elif variable := re.match(r"# ([A-Z][A-Z0-9_]+)=(.*)$", line):
            if found or text:
                found.append(_setting(variable[1], variable[2], text, declared.get(variable[1])))
            text = ""
        elif line == "#":
            introduction, text = f"{introduction} {text}".strip(), ""
        elif line.startswith("# "):
            text = f"{text} {line[2:]}".strip()
        else:
            text = ""


def _setting(name: str, value: str, text: str, source: Any) -> Setting:
    text, _, words = re.sub(r"\s*Defaults?: ", "\0", text).partition("\0")
    default = f"`{value}`" if value and words.startswith(value) else prose(words) or "none"
    if value and words.startswith(value):
        default += f" {prose(words.removeprefix(value))}".rstrip()
    return Setting(name, text, default.removesuffix("."), _takes(source), bool(source and source.is_secret))


def _takes(source: Any) -> str:
    """Return what the code answers to a wrong value, empty where it takes every text."""
    with suppress(AttributeError):
        try:
            source.parse("\1")
        except ValueError as exc:
            words = str(exc)
            return words.removeprefix("must be ") if words.startswith("must be ") else ""
    return ""


def _declared(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield every variable of the settings and of their parts, with what it is read by."""
    for each in fields(settings):
        if is_dataclass(each.type):
            yield from _declared(each.type)
        elif source := each.metadata.get("source"):
            yield source.names[0], source
