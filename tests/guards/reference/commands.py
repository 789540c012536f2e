"""The page of commands: the tree of ``refeed``, as ``--help`` has it."""

from collections.abc import Iterator
from typing import Any, Final

import typer

from cli.invocation import HOME_HELP
from cli.main import app
from tests.guards.reference.markdown import first_sentence, link, page, prose, sentence, table

COMMON: Final = {"home", "help", "install_completion", "show_completion"}
COMMON_OPTIONS: Final = """\
Every command has these options:

- `--home PATH`: {home}
- `--help`: Print the help of the command.

The command `refeed` itself also has `--version`, which prints the version, and `--install-completion`, which
installs completion for the current shell."""
# What an exit code of any command means: the table at the beginning says it too.
USUAL: Final = {"done", "wrong usage", "the API does not answer", "the API refused the call", "interrupted"}
TYPES: Final = {"str": "TEXT", "int": "N", "float": "NUMBER", "Path": "PATH", "datetime": "TIME"}


def render_commands() -> str:
    root: Any = typer.main.get_command(app)
    visible = {name: each for name, each in root.commands.items() if not each.hidden}
    groups = {name: each for name, each in visible.items() if hasattr(each, "commands")}
    single = {name: each for name, each in visible.items() if name not in groups}
    parts = [
        f"{prose(first_sentence(root.help))}\n\n{COMMON_OPTIONS.format(home=prose(HOME_HELP))}",
        _exit_codes(root.epilog),
        "## Groups\n\n" + _overview("group", groups),
        "## Commands without a group\n\n" + _overview("command", single),
        *(_render(("refeed", name), each, "##") for name, each in single.items()),
    ]
    for name, group in groups.items():
        parts += _render_group(("refeed", name), group)
    return page("Commands", "the commands' own help texts in cli/", *parts)


def _render_group(path: tuple[str, ...], group: Any) -> Iterator[str]:
    inner = {name: each for name, each in group.commands.items() if not each.hidden}
    heading = f"## `{' '.join(path)}`\n\n{_help(group)}"
    if group.invoke_without_command:
        yield f"{heading}\n{_details(path, group)}\n{_overview('command', inner, path)}"
    else:
        yield f"{heading}\n{_overview('command', inner, path)}"
    for name, each in inner.items():
        yield _render((*path, name), each, "###")


def _overview(kind: str, commands: dict[str, Any], path: tuple[str, ...] = ("refeed",)) -> str:
    return table(
        [kind, "does"],
        [
            [link(f"`{' '.join((*path, name))}`"), prose(first_sentence(each.help))]
            for name, each in commands.items()
        ],
    )


def _render(path: tuple[str, ...], command: Any, level: str) -> str:
    return f"{level} `{' '.join(path)}`\n\n{_help(command)}\n{_details(path, command)}"


def _help(command: Any) -> str:
    return (
        "".join(f"{prose(paragraph)}\n\n" for paragraph in command.help.strip().split("\n\n")).rstrip("\n") + "\n"
    )


def _details(path: tuple[str, ...], command: Any) -> str:
    """Return the usage, the arguments and options, and the exit codes where they are the command's own."""
    arguments = [each for each in command.params if not each.opts[0].startswith("-")]
    options = [each for each in command.params if each.opts[0].startswith("-") and each.name not in COMMON]
    usage = [*path, *(["[OPTIONS]"] if options else []), *map(_argument, arguments)]
    lines = [f"- `{_argument(each)}`: {_facts(each)}" for each in arguments]
    lines += [f"- `{_option(each)}`: {_facts(each)}" for each in options if not each.hidden]
    listed = "\n".join(lines) + "\n" if lines else ""
    own = [f"Exit code {code}: {meaning}." for code, meaning in _codes(command.epilog) if meaning not in USUAL]
    epilog = f"\n{prose(' '.join(own))}\n" if own else ""
    return f"    {' '.join(usage)}\n\n{listed}{epilog}"


def _argument(parameter: Any) -> str:
    shown = parameter.metavar or parameter.name.upper()
    shown = f"{shown}..." if parameter.nargs == -1 else shown
    return shown if parameter.required else f"[{shown}]"


def _option(parameter: Any) -> str:
    names = ", ".join(sorted(parameter.opts, key=len, reverse=True))
    if parameter.secondary_opts:
        names = f"{names} / {', '.join(parameter.secondary_opts)}"
    return names if parameter.is_flag else f"{names} {_value(parameter)}"


def _value(parameter: Any) -> str:
    kind = parameter.type_descriptor.annotation
    inner = getattr(kind, "__args__", None)
    return parameter.metavar or TYPES.get(getattr(inner[0] if inner else kind, "__name__", ""), "TEXT")


def _facts(parameter: Any) -> str:
    """Return the parameter's help, and what it must or may be."""
    text = prose(sentence(parameter.help or ""))
    # The range comes before "May be repeated". After it, a reader takes the range for a number of repetitions.
    ends = [text.index(mark) for mark in (" May be repeated.", " Default: ") if mark in text]
    text, more = (text[: min(ends)], text[min(ends) :]) if ends else (text, "")
    if parameter.min is not None:
        most = (
            f" to {parameter.max:g}"
            if isinstance(parameter.max, float)
            else f" to {parameter.max}"
            if parameter.max is not None
            else " or more"
        )
        text += f" Allowed: {parameter.min}{most}."
    text += more
    if parameter.required:
        text += " Required."
    if parameter.show_default and parameter.default not in (None, False):
        text += f" Default: `{parameter.default}`."
    if parameter.envvar:
        text += f" Variable: `{parameter.envvar}`."
    return text


def _exit_codes(epilog: str) -> str:
    return table(["exit code", "means"], [[code, prose(meaning)] for code, meaning in _codes(epilog)])


def _codes(epilog: str | None) -> list[tuple[str, str]]:
    listed = (epilog or "").removeprefix("Exit codes: ").removesuffix(".")
    return [(code, meaning) for code, _, meaning in (each.partition(" ") for each in listed.split("; ") if each)]
