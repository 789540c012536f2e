"""What a shell completes: kinds, names and ids of objects, asked of the API."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Thread
from typing import Any, Final

import typer

from cli.api import open_api
from cli.invocation import use_home

# Who presses TAB waits for it, and reads what comes.
_SECONDS: Final = 1.0
_MOST: Final = 50


def complete_object(context: typer.Context, incomplete: str) -> list[str]:
    """Return KIND/NAME and ids that begin so, of kinds that have the command's verb."""
    return _within_a_second(context, lambda: _objects(str(context.info_name), incomplete))


def name_argument(kind_name: str, said: str | None = None, metavar: str = "NAME") -> Any:
    """Return the argument of a command that names an object of one kind only, without the kind."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        return _within_a_second(context, lambda: _names(kind_name, incomplete))

    said = said or f"The {kind_name}'s name."
    return typer.Argument(metavar=metavar, help=said, show_default=False, autocompletion=complete)


def complete_lists(incomplete: str) -> list[str]:
    """Return the kinds that ``refeed get`` lists."""
    from cli.kinds import KINDS

    return [kind.plural for kind in KINDS.kinds if kind.plural.startswith(incomplete)]


def _within_a_second(context: typer.Context, find: Callable[[], Iterator[str]]) -> list[str]:
    """Return what is found within a second; nobody wants to read an error in the middle of a command."""
    # Nothing runs while words are completed, so nothing has taken the --home before the command.
    use_home(context.find_root().params.get("home"))
    found: list[str] = []

    def look() -> None:
        with suppress(Exception):
            found.extend(each for each, _ in zip(find(), range(_MOST), strict=False))

    thread = Thread(target=look, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    return list(found)


def _objects(verb: str, incomplete: str) -> Iterator[str]:
    from cli.kinds import KINDS

    able = [kind for kind in KINDS.kinds if kind.has(verb)]
    by_name = [kind for kind in able if f"{kind.name}/".startswith(incomplete)]
    named, slash, begun = incomplete.partition("/")
    meant = by_name if len(by_name) == 1 else [kind for kind in able if slash and kind.name == named]
    for kind in meant:
        for name in _names(kind.name, begun if slash else ""):
            yield f"{kind.name}/{name}"
    if not meant:
        yield from (f"{kind.name}/" for kind in by_name)
    for kind in able:
        if kind.prefix == incomplete.partition("_")[0]:
            yield from _names(kind.name, incomplete)


def _names(kind_name: str, begun: str) -> Iterator[str]:
    from cli.kinds import KINDS

    kind = KINDS.find_list(kind_name)
    wanted = {"page_size": _MOST, "id_prefix": begun}
    with open_api() as api:
        page = kind.fetch(api, {name: value for name, value in wanted.items() if name in kind.filters and value})
    names = (kind.name_of(each).partition("/")[2] for each in page[kind.plural])
    yield from (name for name in names if name.startswith(begun))
