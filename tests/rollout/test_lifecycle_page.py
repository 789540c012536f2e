"""docs/lifecycle.md and docs/how-to/update.md: the picture has all remedies, and the commands are Refeed's."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from cli.main import app
from rollout.check import Remedy

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "lifecycle.md").read_text()
UPDATE = (DOCS / "how-to" / "update.md").read_text()


def test_the_picture_has_every_way_that_a_check_can_end():
    (picture,) = re.findall(r"^```mermaid$\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    branches = set(re.findall(r'^ *check -->\|"(\w+)"\|', picture, re.MULTILINE))
    assert branches == {"none", *(remedy.value for remedy in Remedy)}
    # Every box that an arrow leads to or from says something.
    named = set(re.findall(r"(\w+)(?:\[|\{|\(\[)", picture))
    used = {word for pair in re.findall(r'(\w+)[^\n]* -->(?:\|"[^"]*"\|)? (\w+)', picture) for word in pair}
    assert used <= named


@pytest.mark.parametrize(("page", "at_least"), [(PAGE, 21), (UPDATE, 15)])
def test_every_command_of_the_page_is_refeeds(page, at_least):
    page = page.replace("\\\n", "")
    group = typer.main.get_command(app)
    commands = re.findall(r"^(?:    |[A-Z]+=\$\()?refeed (?!query)([a-z][^>|)\n]*)", page, re.MULTILINE)
    commands += re.findall(r"`refeed ([a-z][^`]*)`", page)
    assert len(commands) >= at_least
    for text in commands:
        words = shlex.split(text.split(" && ")[0].replace(" &", ""))
        command = group
        while hasattr(command, "commands") and words and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        assert command is not group, text
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, text
