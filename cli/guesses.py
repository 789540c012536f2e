"""Commands that people guess, or know from earlier releases, and the right command for each."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from model.declaration import declared_fields
from model.errors import InputError
from model.stream_options import OPTIONS

# Groups of an earlier release, and how their objects are named now.
_FORMER: Final = {
    **dict.fromkeys(("backfill", "merge", "compaction", "approval", "rollout", "snapshot"), "ID"),
    **{kind: f"{kind}/NAME" for kind in ("stream", "schedule", "template")},
}
_VERBS: Final = {
    "list": "get {kind}s",
    "show": "describe {object}",
    "change": "set {object}",
    "rates": "figures {object}",
    "history": "figures {object}",
    "reverse": "revert {object}",
    **{
        verb: f"{verb} {{object}}"
        for verb in "watch pause resume cancel retry revert approve reject logs launch delete".split()  # noqa: SIM905
    },
}
# By its first words. A word in capitals, also after a slash, is any name. A name that follows is not part of it.
GUESSES: Final[Mapping[str, str]] = {
    f"{kind} {verb}": f"refeed {way.format(kind=kind, object=name)}"
    for kind, name in _FORMER.items()
    for verb, way in _VERBS.items()
} | {
    "stream": "refeed get streams, or refeed describe stream/NAME",
    "stream launch": "refeed launch NAME",
    "stream drain": "refeed drain NAME",
    "stream check": "refeed update NAME --dry-run",
    "stream snapshot": "refeed snapshot NAME",
    "stream rollback": "refeed restore NAME SNAPSHOT",
    "stream update": "refeed update NAME",
    "stream updates": "refeed get updates --stream NAME",
    "schedule": "refeed get schedules, or refeed describe schedule/NAME",
    "schedule run": "refeed run-now NAME",
    **dict.fromkeys(
        ("approval", "approvals", "approval list", "get approvals", "get approval"), "refeed get changes"
    ),
    "rollout": "refeed get updates, or refeed describe ID",
    "rollouts": "refeed get updates",
    "get rollouts": "refeed get updates",
    "get rollout": "refeed get updates",
    "rollout list": "refeed get updates",
    "template": "refeed get templates, or refeed launch template/NAME",
    "compaction": "refeed get compactions, or refeed describe ID",
    "manifest": "refeed diff -f FILE, or refeed get manifests",
    "manifest list": "refeed get manifests",
    "manifest check": "refeed check -f FILE",
    "manifest schema": "refeed check --manifest-schema",
    **{
        kinds: f"refeed get {kinds}"
        for kinds in (
            *("jobs", "streams", "topics", "sources", "updates", "schedules"),
            *("snapshots", "backfills", "merges", "templates"),
        )
    },
    "dead-letters redrive": "refeed redrive",
    "dead-letters plan": "refeed redrive --dry-run",
    "backfill create": "refeed backfill TOPIC --query SQL",
    "backfill plan": "refeed backfill TOPIC --query SQL --dry-run",
    "backfill dead-letters": "refeed dead-letters ID",
    "backfill missing": "refeed missing ID",
    "sql": "refeed check, or refeed query",
    "sql check": "refeed check",
    "lake": "refeed compact, or refeed archive vacuum",
    "lake compact": "refeed compact",
    **{f"lake {verb}": f"refeed archive {verb}" for verb in ("vacuum", "expire", "count")},
    "archive compact": "refeed compact",
    "registry": "refeed source check, or refeed get sources",
    **{f"registry {verb}": f"refeed source {verb}" for verb in ("check", "diff", "publish")},
    "source list": "refeed get sources",
    "source show": "refeed describe source/NAME",
    "keys": "refeed key list",
    **{f"keys {verb}": f"refeed key {verb}" for verb in ("create", "list", "revoke")},
    "topic": "refeed histogram TOPIC",
    **dict.fromkeys(("topic create", "topics create"), "refeed attach TOPIC"),
    "lag": "refeed status",
    "dlq": "refeed dead-letters",
    "get dead-letters": "refeed dead-letters",
    "backlog": "refeed status",
    **dict.fromkeys(
        ("audit", "get audit", "get audits", "audit list"),
        "refeed events, or GET /audit of the API for every call",
    ),
    **dict.fromkeys(("get keys", "get key", "key show", "key get"), "refeed key list"),
    **dict.fromkeys(("releases", "get releases", "get release"), "refeed release list"),
    **{f"key {verb}": "refeed key revoke KEY" for verb in ("delete", "remove", "rm")},
    **dict.fromkeys(
        ("webhook", "webhooks", "get webhooks", "get webhook", "notify", "notifications", "alerts", "get alerts"),
        "the settings REFEED_NOTIFY_URL and REFEED_NOTIFY_SECRET of 'refeed api' (docs/reference/events.md)",
    ),
    **dict.fromkeys(
        ("settings", "setting", "config", "env", "get settings", "get config"),
        "refeed doctor, which checks the settings. docs/reference/settings.md lists all",
    ),
    **dict.fromkeys(("login", "get scopes", "get users"), "refeed key create, and set REFEED_API_KEY to the key"),
    **{f"get {what}": f"refeed {what}" for what in ("events", "inbox", "status", "volumes")},
    **dict.fromkeys(("get messages", "get message"), "refeed messages TOPIC"),
    **dict.fromkeys(("get logs", "get log"), "refeed logs OBJECT"),
    **dict.fromkeys(("get tables", "get schemas", "get registry"), "refeed get sources"),
    **dict.fromkeys(("subscriptions", "get subscriptions"), "refeed get topics, or refeed get streams"),
    **dict.fromkeys(("get runs", "runs", "get replays"), "refeed get jobs"),
    **dict.fromkeys(("agents", "get agents"), "refeed status, or refeed release list"),
    **{kinds: f"refeed get {kinds}" for kinds in ("manifests", "compactions", "restores")},
    "version": "the option --version",
    "help": "the option --help",
    "start": "refeed launch STREAM, or refeed resume OBJECT",
    "rerun schedule/NAME": "refeed run-now NAME",
    "failed": "refeed get jobs --state FAILED, or refeed inbox",
    "merge rerun": "refeed rerun ID",
    "status NAME": "refeed describe OBJECT",
    "backfill TOPIC --last": "refeed backfill TOPIC --from 10m",
    **dict.fromkeys(("get pipeline", "get pipelines"), "refeed get streams"),
    "replay": "refeed backfill TOPIC --from 02:00 --to 03:00",
    "ls": "refeed get KIND",
    "list": "refeed get KIND",
    "show": "refeed describe OBJECT",
    "top": "refeed status",
    "ps": "refeed status",
    "tail": "refeed logs OBJECT",
    "history": "refeed events OBJECT",
    "who": "refeed events OBJECT",
    "changes": "refeed events",
    "stop": "refeed cancel OBJECT, or refeed drain STREAM",
    "kill": "refeed cancel OBJECT",
    "restart": "refeed update STREAM --strategy restart",
    "undo": "refeed revert OBJECT",
    "rollback": "refeed restore STREAM SNAPSHOT, or refeed revert stream/NAME",
    "trigger": "refeed run-now SCHEDULE",
    "run": "refeed run-now SCHEDULE",
    "change": "refeed set OBJECT",
    "plan": "refeed diff -f FILE, or refeed backfill TOPIC --dry-run",
}


def check_guess(words: Sequence[str], commands: Collection[str]) -> None:
    """Raise if the first words are a known guess, and no command of ``commands``.

    Raises:
        InputError: they are; the message has the right command.
    """
    # With a range or a query, even a topic called "list" is a topic.
    is_topic = not {"--from", "--query"}.isdisjoint(word.partition("=")[0] for word in words)
    for guess in sorted(GUESSES, key=lambda each: -each.count(" ")):
        if is_topic and guess.startswith("backfill "):
            continue
        if guess not in commands and _begins(words, guess.split()):
            raise InputError(f"Refeed has no command '{guess}'. Use: {GUESSES[guess]}")


def _begins(words: Sequence[str], guess: Sequence[str]) -> bool:
    if len(words) < len(guess):
        return False
    return all(_fits(word, wanted) for word, wanted in zip(words, guess, strict=False))


def _fits(word: str, wanted: str) -> bool:
    if wanted.isupper():
        return not word.startswith("-")
    if wanted.endswith("/NAME"):
        return word.startswith(wanted.removesuffix("NAME"))
    return word.partition("=")[0] == wanted


def check_update_guess(words: Sequence[str], flags: Collection[str]) -> None:
    """Raise if a word of ``refeed update`` is an option of streams that the command takes only as a --set.

    Raises:
        InputError: one is; the message has the right words.
    """
    names = {
        "--" + text.replace("_", "-"): each.name
        for options in OPTIONS.values()
        for each in declared_fields(options)
        for text in (each.name, each.spec.flag or each.name)
    }
    for word, following in zip(words, [*words[1:], "VALUE"], strict=True):
        flag, sign, value = word.partition("=")
        name = names.get(flag.replace("_", "-"))
        if name is not None and flag not in flags:
            way = f"--set {name}={value if sign else following}"
            raise InputError(f"'refeed update' has no option {flag}. Use: {way}")
