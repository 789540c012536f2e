from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest
import typer
from typer.testing import CliRunner

from backfill.plan.create import BackfillCreate
from backfill.plan.request import YieldTo
from cli.flags import flag_of, read_given, takes_fields
from cli.main import app
from model.declaration import Declared, FieldSpec, declared_fields
from model.errors import InputError
from reporting.request import MergeCreate


@dataclass(frozen=True, slots=True)
class Picture(Declared):
    """A request of a test's own, so that a field is enough to get a flag."""

    place: Annotated[str, FieldSpec(description="Where.")]
    count: Annotated[int | None, FieldSpec(description="How many.", flag="number")] = None
    is_sharp: Annotated[bool, FieldSpec(description="Sharp.", help="Without blur.")] = False
    colour: Annotated[Literal["all", "none"], FieldSpec(description="Colours.")] = "all"
    marks: Annotated[Mapping[str, str], FieldSpec(description="Marks.", flag="mark")] = field(default_factory=dict)
    after: Annotated[YieldTo | None, FieldSpec(description="First.")] = None


def run(*arguments, names=("place", "count", "is_sharp", "colour", "marks", "after")):
    seen = []
    program = typer.Typer()

    @program.command()
    @takes_fields(Picture, names, help_texts={"count": "N."})
    def take(camera, *, late=False, **given):
        seen.append((camera, late, read_given(Picture, given)))

    found = CliRunner().invoke(program, arguments)
    return seen[0] if seen else found


def test_what_is_given_comes_by_the_fields_names_and_nothing_else():
    assert run("box", "--place", "sea") == ("box", False, {"place": "sea"})
    assert run(
        *("box", "--late", "--place", "sea", "--number", "0", "--is-sharp", "--colour", "none"),
        *("--mark", "a=1", "--mark", "b=", "--after", "a:b:2.5"),
    ) == (
        "box",
        True,
        {
            "place": "sea",
            "count": 0,
            "is_sharp": True,
            "colour": "none",
            "marks": {"a": "1", "b": ""},
            "after": {"subscription": "a:b", "max_oldest_unacked_seconds": 2.5},
        },
    )


def test_help_has_the_declaration_s_words_in_the_order_that_is_asked_for():
    text = run("--help", names=("place", "late", "colour", "count", "is_sharp")).output
    flags = ("--place", "--late", "--colour", "--number", "--is-sharp")
    assert [flag for _, flag in sorted((text.index(flag), flag) for flag in flags)] == list(flags)
    assert [words for words in ("Where.", "all|none", "N.", "Without blur.") if words not in text] == []
    assert "--no-is-sharp" not in text


def test_a_field_without_a_default_is_asked_for():
    assert "'--place'" in run("box").output


@pytest.mark.parametrize(("name", "value"), [("marks", ["a"]), ("after", "live"), ("after", "live:soon")])
def test_what_is_not_of_its_form_is_named_by_its_flag(name, value):
    with pytest.raises(InputError, match=f"^{flag_of(Picture, name)} "):
        read_given(Picture, {name: value})


@pytest.mark.parametrize(
    ("words", "declaration"), [(("backfill",), BackfillCreate), (("merge", "create"), MergeCreate)]
)
def test_every_field_of_a_request_is_a_flag(words, declaration):
    command = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    flags = {flag for parameter in command.params for flag in parameter.opts}
    names = [field.name for field in declared_fields(declaration) if field.name != "source_topic"]
    assert [name for name in names if flag_of(declaration, name) not in flags] == []
