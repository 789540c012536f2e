"""Where a deployment keeps its state; every command looks there, also one that reads no settings."""

from collections.abc import Mapping
from pathlib import Path

from model import variables
from model.errors import SettingsError


def find_home(env: Mapping[str, str]) -> Path:
    """Return REFEED_HOME, else ``.refeed`` in the user's home folder.

    Raises:
        SettingsError: it begins with the home of a user that there is none of, or its lake or its database would
            lie elsewhere because of a character in it.

    Example:
        >>> find_home({"REFEED_HOME": "/tmp/h"}).name, find_home({"HOME": "/home/ann"}).name
        ('h', '.refeed')
    """
    found = Path(env.get("REFEED_HOME") or Path(env.get("HOME", "/")) / ".refeed")
    choose = "choose another home with --home or REFEED_HOME."
    try:
        home = found.expanduser().absolute()
    except RuntimeError as exc:
        message = f"{found}: there is no such user; {choose}"
        raise SettingsError(message, faults=[message]) from exc
    # What comes after a question mark is not the file's name in the URL of the database.
    misread = variables.misread_part(str(home)) or ("?" if "?" in str(home) else None)
    if misread is not None:
        message = f"{home}: its lake or its database would be in another place because of {misread!r}; {choose}"
        raise SettingsError(message, faults=[message])
    return home
