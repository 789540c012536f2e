"""The recipes of docs/recipes.md, read out of the page."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.parameters import parse_parameters

PAGE = Path(__file__).parents[1] / "docs" / "recipes.md"
# Tables that a recipe reads beside the archive, as ``refeed check --table-schema`` takes them.
TABLES = (
    """backup.dead_letters(data BYTES, attributes ARRAY<STRUCT<key STRING, value STRING>>, message_id STRING,
    publish_time TIMESTAMP, topic STRING, source STRING, error_code STRING, ingest_time TIMESTAMP,
    _PARTITIONTIME TIMESTAMP)""",
    "staging.orders(id INT64, _topic STRING, _message_id STRING, ingest_time TIMESTAMP, _PARTITIONTIME TIMESTAMP)",
)


@dataclass(frozen=True)
class Recipe:
    """One section of the page; ``words`` are its command's, as a shell reads them."""

    title: str
    words: tuple[str, ...]

    @property
    def sql(self) -> str | None:
        return self.words[-1] if "SELECT" in self.words[-1] else None

    @property
    def parameters(self) -> dict[str, Any]:
        given = [value for flag, value in zip(self.words, self.words[1:], strict=False) if flag == "-p"]
        return parse_parameters(given)


def read_recipes() -> list[Recipe]:
    found = []
    for section in PAGE.read_text().split("\n## ")[1:]:
        (command,) = re.findall(r"^```sh\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
        found.append(Recipe(section.partition("\n")[0], words_of(command)))
    return found


def words_of(command: str) -> tuple[str, ...]:
    """Return the words of a command as bash passes them on."""
    script = f"refeed() {{ printf '%s\\0' refeed \"$@\"; }}\n{command}"
    printed = subprocess.run(
        ["bash", "-euc", script], capture_output=True, text=True, check=True, timeout=20
    ).stdout
    return tuple(printed.removesuffix("\0").split("\0"))
