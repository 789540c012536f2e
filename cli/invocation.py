"""What every command shares: ``--home`` wherever it stands, and the settings read once."""

import errno
import inspect
import os
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from cli.guesses import check_guess, check_update_guess
from cli.running import find_running
from connectors.gcp_kms.decrypt import decrypt
from model.errors import HomeUnwritableError
from model.home import find_home

if TYPE_CHECKING:
    from app.deployment import Deployment
    from model.settings import Settings

# A line of a docstring that the next one continues; a list's items stay lines.
_BROKEN_LINE: Final = re.compile(r"(?<=\S)\n(?!\s|[-*] )")
_UNWRITABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST})
HOME_HELP: Final = (
    "The home: the folder that contains all of Refeed's state. Default: REFEED_HOME, else ~/.refeed."
)


def use_home(home: Path | None) -> None:
    """Make ``home`` the home of this process and of every process it starts.

    Raises:
        SettingsError: it can't be one.
    """
    if home is not None:
        os.environ["REFEED_HOME"] = str(find_home({"REFEED_HOME": str(home)}))


def command_settings() -> "Settings":
    """Return the settings of this process.

    A variable that is not set has the value of the ``refeed up`` that runs on this home, if one does and if it is
    of the same project: a command must read and write where the services do.

    Raises:
        SettingsError: one or more variables are wrong; the message names them all.
    """
    from model.settings import read_settings

    running = find_running(os.environ)
    return read_settings(os.environ if running is None else running.complete(os.environ), decrypt=decrypt)


def open_deployment(settings: "Settings | None" = None) -> "Deployment":
    """Return the deployment of these settings, or of this process's own; what it needs is opened as it is used."""
    from app.deployment import Deployment

    return Deployment(settings or command_settings())


def make_home(home: Path) -> None:
    """Make the home where there is none, for its owner only, and write a file to it that is gone at once.

    Raises:
        OSError: it can't be written; :func:`unwritable_home` has the words for it.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with TemporaryFile(dir=home):
        pass


def unwritable_home(fault: OSError) -> HomeUnwritableError | None:
    """Return the error of a home that can't be written, None where the fault is about something else."""
    home = find_home(os.environ)
    # What mounts folders by itself, such as below /home, says that there is none instead of making one.
    is_about_writing = fault.errno in _UNWRITABLE or (fault.errno == errno.ENOENT and not home.exists())
    if not is_about_writing or not isinstance(fault.filename, str | bytes):
        return None
    place = Path(os.fsdecode(fault.filename)).absolute()
    # What keeps a home from being made may be a file above it.
    if not (place.is_relative_to(home) or home.is_relative_to(place)):
        return None
    return HomeUnwritableError(
        f"Refeed can't write to the home {home} ({fault.strerror}: {place}). Choose another "
        "home with --home or REFEED_HOME.",
        home=str(home),
    )


def _take_home(home: Path | None) -> Path | None:
    use_home(home)
    return home


HomeOption = Annotated[Path | None, typer.Option("--home", help=HOME_HELP, callback=_take_home, is_eager=True)]


@cache
def _home_option() -> Any:
    """Return the option in typer's own form, read from a function that has it."""

    def carrier(home: HomeOption = None) -> None:
        del home

    app = typer.Typer()
    app.command()(carrier)
    option = typer.main.get_command(app).params[0]
    option.expose_value = False
    return option


class HomeGroup(TyperGroup):
    """A group whose commands take ``--home`` too, before or after the command, and wrap their help."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of the first word, and the other words; a known guess is answered with the right one.

        Raises:
            InputError: the words are a guess.
        """
        # A group looks at its own words.
        if not isinstance(self.commands.get(args[0]), TyperGroup):
            group = ctx.command_path.split()[1:]
            check_guess([*group, *args], () if group else self.list_commands(ctx))
        name, command, words = super().resolve_command(ctx, args)
        if command is not None and command.name == "update":
            check_update_guess(words, {flag for each in command.params for flag in each.opts})
        return name, command, words

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command with ``--home`` among its options."""
        command = super().get_command(ctx, cmd_name)
        # A group that does something by itself is a command too.
        does_something = isinstance(command, TyperCommand) or (
            isinstance(command, TyperGroup) and command.invoke_without_command
        )
        if command is not None and does_something and all(each.name != "home" for each in command.params):
            command.params.append(_home_option())
        if command is not None and command.help:
            # The terminal's width breaks the lines, not the source's.
            command.help = _BROKEN_LINE.sub(" ", inspect.cleandoc(command.help))
        return command
