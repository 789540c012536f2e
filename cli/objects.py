"""Kinds of objects that commands list, describe and steer, and how a command names one object."""

import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import typer

from cli.api import POLL_SECONDS
from cli.moments import render_minute
from cli.terminal import ExitCode, err, print_found
from model.errors import InputError, RequestRefusedError
from model.naming import did_you_mean

if TYPE_CHECKING:
    from client.api import RefeedApi

# Those of an id, after its prefix. An id begins with its time, whose first character changes in the year 3084.
_ID_CHARACTERS: Final = 26
_FIRST_CHARACTER: Final = "0"
# What people mean by a verb that a kind lacks; any other verb is answered with what describes the object.
_AGAIN: Final = ("retry", "rerun")
_INSTEAD: Final[Mapping[tuple[str, str], str]] = {
    ("pause", "stream"): "Use: refeed drain {name}",
    ("resume", "stream"): "Use: refeed launch {name}",
    **dict.fromkeys(((verb, "stream") for verb in _AGAIN), "To start it again: refeed launch {name}"),
    **dict.fromkeys(((verb, "schedule") for verb in _AGAIN), "To run it now: refeed run-now {name}"),
    **dict.fromkeys(
        ((verb, "update") for verb in _AGAIN),
        "To try it again, make a new update with 'refeed update STREAM'. To see its stream and options: refeed "
        "describe {name}",
    ),
    **dict.fromkeys(
        ((verb, "restore") for verb in _AGAIN),
        "To try it again, use 'refeed restore STREAM SNAPSHOT'. To see both: refeed describe {name}",
    ),
    **dict.fromkeys(
        ((verb, "snapshot") for verb in _AGAIN),
        "To make a new one, use 'refeed snapshot STREAM'. To see its stream: refeed describe {name}",
    ),
    **dict.fromkeys(
        ((verb, "change") for verb in _AGAIN),
        "To ask for the action again, run its command. To see the action: refeed describe {name}",
    ),
    **dict.fromkeys(((verb, "source") for verb in _AGAIN), "Use: refeed redrive --source {name} --dry-run"),
    **dict.fromkeys(
        ((verb, kind) for verb in _AGAIN for kind in ("manifest", "template")), "Use: refeed launch {name}"
    ),
    **dict.fromkeys(((verb, "topic") for verb in _AGAIN), "Use: refeed backfill {name} --from 1h --dry-run"),
    ("cancel", "schedule"): "Use: refeed pause schedule/{name}",
    ("cancel", "snapshot"): "Use: refeed delete {name}",
    ("cancel", "topic"): "Use: refeed detach {name}",
    ("pause", "topic"): "Use: refeed detach {name}",
    ("resume", "topic"): "Use: refeed attach {name}",
    **dict.fromkeys((("pause", kind) for kind in ("merge", "compaction", "update")), "Use: refeed cancel {name}"),
    **dict.fromkeys((("resume", kind) for kind in ("merge", "compaction")), "Use: refeed retry {name}"),
    ("reject", "backfill"): "Use: refeed cancel {name}",
    ("revert", "merge"): (
        "A replay of the right messages repairs its rows. To read them again: refeed merge create --help"
    ),
    ("missing", "topic"): "Use: refeed histogram {name}",
    ("missing", "source"): "Use: refeed dead-letters",
    ("dead-letters", "source"): "Use: refeed dead-letters",
    ("dead-letters", "stream"): "Use: refeed dead-letters",
}
# The ids of updates that a manifest asked for, and of changes that an earlier release called approvals.
_SAME_KIND: Final = {"ro": "up", "ap": "ch"}

Read = Callable[["RefeedApi", str], dict[str, Any]]
# With the id and the body of the call.
Act = Callable[["RefeedApi", str, Mapping[str, Any] | None], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectKind:
    """A kind of object: how commands list it, show it and act on it.

    An object is named as ``name``/NAME or, where its ids have a ``prefix``, by its id. ``fetch`` returns a page of
    objects, and takes those options of ``refeed get`` that ``filters`` names; ``table`` returns the lines of a
    page, ``lines`` those of one object, and ``whole_lines`` those of ``refeed describe`` if it shows more. Below
    ``lines`` it shows who made the object and when, and of ``next`` the command to run next.
    ``acts`` are what verbs do, and ``verbs`` those whose command does more than one call. ``follow`` shows an
    object until it has ended and returns it; then ``succeeded`` says whether it ended well.
    """

    name: str
    plural: str
    fetch: Callable[["RefeedApi", Mapping[str, Any]], Mapping[str, Any]]
    table: Callable[[Mapping[str, Any]], Iterable[str]]
    read: Read | None = None
    lines: Callable[[Mapping[str, Any]], Iterable[str]] | None = None
    whole_lines: Callable[[Mapping[str, Any]], Iterable[str]] | None = None
    next: Callable[[Mapping[str, Any]], str] | None = None
    prefix: str | None = None
    filters: Sequence[str] = ()
    acts: Mapping[str, Act] = field(default_factory=dict)
    verbs: Sequence[str] = ()
    follow: "Callable[[RefeedApi, dict[str, Any]], dict[str, Any]] | None" = None
    succeeded: Callable[[Mapping[str, Any]], bool] = lambda found: found["state"] == "SUCCEEDED"

    def show(self, found: Mapping[str, Any], *, as_json: bool, whole: bool = False) -> None:
        """Print one object."""
        whole_lines = self.whole_lines or self._lines_with_next
        print_found(found, whole_lines if whole else self.lines or self.table, as_json=as_json)

    def has(self, verb: str) -> bool:
        """Whether ``refeed VERB`` works on objects of the kind."""
        match verb:
            case "describe":
                return self.read is not None
            case "watch":
                return self.follow is not None
        return verb in self.acts or verb in self.verbs

    def name_of(self, found: Mapping[str, Any]) -> str:
        """Return how commands name an object that was found."""
        kind = found["kind"] if self.name == "job" else self.name
        return f"{kind}/{found.get('id') or found.get('name') or found['topic']}"

    def finish(self, api: "RefeedApi", found: dict[str, Any], *, watch: bool, as_json: bool) -> None:
        """Print an object; with ``watch`` once it has ended, with the command to run next.

        Raises:
            typer.Exit: it was watched, and did not end well.
        """
        if watch and self.follow is not None:
            found = self.follow(api, found)
        self.show(found, as_json=as_json, whole=watch and self.next is not None)
        if watch and not self.succeeded(found):
            raise typer.Exit(ExitCode.FAILED)

    def _lines_with_next(self, found: Mapping[str, Any]) -> Iterator[str]:
        assert self.lines is not None
        yield from self.lines(found)
        if found.get("created_by"):
            yield f"  created     {render_minute(found['created_at'])} UTC by {found['created_by']}"
        if self.next is not None:
            yield f"  next        {self.next(found)}"


@dataclass(frozen=True, slots=True)
class ObjectKinds:
    """All kinds of objects, in the order of the help."""

    kinds: Sequence[ObjectKind]

    def find_list(self, plural: str) -> ObjectKind:
        """Return the kind whose objects ``refeed get`` lists under this name.

        Raises:
            InputError: there is none.
        """
        for kind in self.kinds:
            if plural in {kind.plural, kind.name}:
                return kind
        names = [kind.plural for kind in self.kinds]
        raise InputError(
            f"There is no list of {plural!r}.{did_you_mean(plural, names)} 'refeed get' lists {_enumerate(names)}."
        )

    def find(self, api: "RefeedApi", text: str, verb: str) -> tuple[ObjectKind, str]:
        """Return the kind and the id of the object that ``text`` names, if the kind has the verb.

        A job is also named by the beginning of its id, if no other id begins so, or as ``latest``: the caller's
        newest job, or the newest one of the only kind that has the verb. Both may stand after the kind. A bare
        name is enough if one object has it.

        Raises:
            InputError: it names nothing, or several jobs, or the kind has no such verb.
        """
        if not text.strip("/"):
            raise InputError("The name or id is empty.")
        fitting = [kind for kind in self.kinds if kind.has(verb)]
        name, _, rest = text.partition("/")
        if rest and name in {"job", "jobs"}:
            # Its id says of which kind it is.
            text, rest = rest, ""
        if rest and name in {"rollout", "rollouts"}:
            way = f"refeed get updates --label manifest={rest}"
            raise InputError(f"The rollouts of a manifest are updates, which have ids. Use: {way}")
        if rest:
            named = next((kind for kind in self.kinds if name in {kind.name, kind.plural}), None)
            of_kind = _with_verb(named, verb, fitting, text)
            if rest == "latest" and "created_by" in of_kind.filters:
                return self._find_latest(api, verb, [of_kind])
            return of_kind, rest if of_kind.prefix is None else complete_id(api, of_kind, rest)
        if text == "latest":
            return self._find_latest(api, verb, fitting)
        prefix, _, rest = text.partition("_")
        prefix = _SAME_KIND.get(prefix, prefix)
        kind = next((k for k in self.kinds if k.prefix == prefix), None) if rest else None
        if kind is None and "/" not in text and not text.endswith("_"):
            fitting = _having(api, text, fitting) or fitting
            if len(fitting) == 1:
                return fitting[0], text
        kind = _with_verb(kind, verb, fitting, text)
        return kind, complete_id(api, kind, text)

    def _find_latest(self, api: "RefeedApi", verb: str, fitting: Sequence[ObjectKind]) -> tuple[ObjectKind, str]:
        listed = fitting[0] if len(fitting) == 1 else next(kind for kind in self.kinds if kind.name == "job")
        caller = str(api.read_session()["name"])
        newest = listed.fetch(api, {"created_by": caller, "page_size": 1})[listed.plural]
        if not newest:
            raise InputError(f"{caller} has no such job. 'refeed get jobs' lists the jobs of all.")
        job_id = str(newest[0]["id"])
        kind = next((kind for kind in self.kinds if kind.name == newest[0]["kind"]), None)
        return _with_verb(kind, verb, fitting, f"Your newest job {job_id}"), job_id


def stream_name(text: str) -> str:
    """Return the name of a stream that is written as NAME or stream/NAME."""
    return text.removeprefix("stream/")


def follow_states(
    found: dict[str, Any], look: Callable[[], dict[str, Any]], ended: Container[str]
) -> dict[str, Any]:
    """Return what ``look`` returns once its state is one of ``ended``, and print each new state on stderr."""
    state = ""
    while True:
        if found["state"] != state:
            state = found["state"]
            err.print(f"{found.get('id') or found['name']}  {state}")
        if state in ended:
            return found
        time.sleep(POLL_SECONDS)
        found = look()


def _having(api: "RefeedApi", name: str, kinds: Sequence[ObjectKind]) -> list[ObjectKind]:
    """Return the kinds without ids of which there is an object of this name."""
    found = []
    for kind in kinds:
        if kind.prefix is None and kind.read is not None:
            with suppress(RequestRefusedError, InputError):
                kind.read(api, name)
                found.append(kind)
    # Schedules and templates are manifests too.
    return [kind for kind in found if kind.name != "manifest"] or found


def _with_verb(kind: ObjectKind | None, verb: str, fitting: Sequence[ObjectKind], text: str) -> ObjectKind:
    if kind is None and text.endswith("_"):
        raise InputError(f"The id {text!r} has only its prefix. Give at least the beginning of the rest.")
    if kind is None:
        # After a mistyped kind, as in strem/backup, comes a name that may be right.
        name = text.rpartition("/")[2]
        ways = [f"{k.name}/{name}" for k in fitting if k.prefix is None]
        with_kind = f" To name an object by its kind, write {_enumerate(ways, 'or')}." if ways else ""
        raise InputError(f"{text!r} is not the id of an object.{with_kind}")
    if kind not in fitting:
        able = _enumerate((k.plural for k in fitting), "and")
        usual = (
            "To see its messages: refeed histogram {name}"
            if kind.read is None
            else f"To see it: refeed describe {text}"
        )
        instead = _INSTEAD.get((verb, kind.name), usual).format(name=text.rpartition("/")[2])
        raise InputError(f"'refeed {verb}' works on {able}. {text} is {_with_article(kind.name)}. {instead}")
    return kind


def complete_id(api: "RefeedApi", kind: ObjectKind, text: str) -> str:
    """Return the id that begins with ``text``; a whole id is returned as it is.

    Raises:
        InputError: several ids begin so, or none.
    """
    rest = text.partition("_")[2]
    is_beginning = rest.startswith(_FIRST_CHARACTER) and len(rest) < _ID_CHARACTERS
    if not is_beginning or "id_prefix" not in kind.filters:
        return text
    found = kind.fetch(api, {"id_prefix": text, "page_size": 3})[kind.plural]
    if len(found) > 1:
        raise InputError(f"Several ids begin with {text}, such as {found[0]['id']} and {found[1]['id']}.")
    if not found:
        raise InputError(f"No {kind.name} has an id that begins with {text}.")
    return str(found[0]["id"])


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _enumerate(words: Iterable[str], last: str = "and") -> str:
    *first, end = words
    return f"{', '.join(first)} {last} {end}" if first else end
