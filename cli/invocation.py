"""What every command shares: ``--home`` wherever it stands, and the settings read once."""

import os
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from model.settings import Settings, read_settings

HOME_HELP: Final = "Folder of all state; REFEED_HOME, else ~/.refeed."


def use_home(home: Path | None) -> None:
    """Make ``home`` the home of this process and of every process it starts."""
    if home is not None:
        os.environ["REFEED_HOME"] = str(home.expanduser().absolute())


def command_settings() -> Settings:
    """Return the settings of this process.

    Raises:
        SettingsError: one or more variables are wrong; the message names them all.
    """
    return read_settings(os.environ)


def _home_option() -> Any:
    """Return the option in typer's own form, read from a function that has it."""

    def carrier(
        home: Path | None = typer.Option(  # noqa: B008  typer's way to say it
            None,
            "--home",
            help=HOME_HELP,
            callback=_take_home,
            is_eager=True,
        ),
    ) -> None:
        del home

    app = typer.Typer()
    app.command()(carrier)
    command = typer.main.get_command(app)
    option = next(parameter for parameter in command.params if parameter.name == "home")
    option.expose_value = False
    return option


def _take_home(home: Path | None) -> Path | None:
    use_home(home)
    return home


class HomeGroup(TyperGroup):
    """A group whose commands take ``--home`` too, so that it may stand before or after the command."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command with ``--home`` among its options."""
        command = super().get_command(ctx, cmd_name)
        # A group that does something by itself is a command too.
        does_something = isinstance(command, TyperCommand) or (
            isinstance(command, TyperGroup) and command.invoke_without_command
        )
        if command is not None and does_something and all(each.name != "home" for each in command.params):
            command.params.append(_home_option())
        return command
