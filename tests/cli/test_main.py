import io
import itertools
import json
import os
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer

from cli import attach
from cli.backfill import read_query
from cli.terminal import ExitCode
from model.errors import SettingsError, TopicNotFoundError
from tests.slowness import slowness
from tests.worlds.http import Answer, answering

COMMANDS = (
    "demo", "up", "doctor", "init", "attach", "detach", "publish", "query", "pubsub", "api", "backfill", "get",
    "describe", "watch", "logs", "figures", "status", "inbox", "events", "histogram", "messages", "backup", "key",
    "pause", "resume", "cancel", "retry", "revert", "approve", "reject", "set", "launch", "drain", "update",
    "snapshot", "restore", "run-now", "apply", "delete", "merge", "archive", "pipeline", "source", "spark",
    "check", "redrive", "dead-letters", "compact", "diff",
)  # fmt: skip


def test_help_names_every_command_and_every_exit_code(refeed):
    result = refeed("--help")
    assert result.code == 0
    assert [name for name in COMMANDS if name not in result.out] == []
    said = result.out.partition("Exit codes:")[2]
    assert [code for code in ExitCode if f" {code.value} " not in said] == []


def test_a_service_may_open_as_many_files_as_the_system_allows():
    # A shell's own bound is 1024, which a collector passes with as many connections.
    program = (
        "import resource, sys; from cli import main; "
        "main.app = lambda **_: print(*resource.getrlimit(resource.RLIMIT_NOFILE)); main.main()"
    )
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = ["prlimit", f"--nofile=256:{most}", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == [str(most), str(most)]


@pytest.mark.parametrize("words", [("publish",), ("restore",)])
def test_help_breaks_its_lines_where_the_terminal_does(refeed, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "80")
    said = refeed(*words, "--help").out.partition("Arguments")[0]
    lines = [line.strip() for line in said.splitlines()]
    for line, following in itertools.pairwise(lines):
        if line and following and following[0].isalpha():
            assert len(f" {line} {following.split()[0]} ") > 78, f"{line!r} goes on as {following!r}"


def test_help_is_there_at_once():
    command = [sys.executable, "-X", "importtime", "-m", "cli.main", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    heavy = {
        "pyspark", "pyarrow", "google", "grpc", "httpx", "duckdb", "deltalake", "fastapi", "sqlalchemy",
        "pandas", "numpy", "pydantic", "yaml", "markdown_it", "email", "zipfile", "importlib.metadata",
        "rich.progress", "sql.constants", "model.settings", "warehouse", "streams", "app",
    }  # fmt: skip
    # A module, or a package with what is in it.
    assert {name for name in imported if any(f"{name}.".startswith(f"{each}.") for each in heavy)} == set()
    assert min(_cpu_seconds([sys.executable, "-m", "cli.main", "--help"]) for _ in range(3)) < 0.5 * slowness()


def _cpu_seconds(command: list[str]) -> float:
    """What the command itself takes, however busy the machine is."""
    # As at a user's: compiled once, by the first run.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True, timeout=60, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


def test_version_is_the_package_s(refeed):
    assert refeed("--version").out == f"refeed {version('refeed')}\n"


@pytest.mark.parametrize("place", ["before", "after"])
def test_home_may_stand_before_or_after_the_command(refeed, tmp_path, monkeypatch, place):
    seen = []
    monkeypatch.setattr(
        attach, "attach_topics", lambda settings, topics, **_: seen.append(settings.home) or iter(())
    )
    home = ["--home", str(tmp_path / "elsewhere")]
    arguments = [*home, "attach", "orders"] if place == "before" else ["attach", "orders", *home]
    assert refeed(*arguments).code == 0
    assert seen == [tmp_path / "elsewhere"]


def test_an_error_is_one_line_with_its_code_and_no_traceback(refeed, monkeypatch):
    def fail(settings, topics, **_):
        raise TopicNotFoundError("No topic [orders] here.")

    monkeypatch.setattr(attach, "attach_topics", fail)
    result = refeed("attach", "orders")
    assert result.code == 1
    assert result.err == "error topic_not_found  No topic [orders] here.\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("attach",),
        ("attach", "1orders"),
        ("attach", "--label", "backup"),
        ("backup", "snapshot", "Monday"),
        ("set", "bf_1"),
        ("backfill", "t", "--query", "SELECT 1", "--param", "day"),
        ("backfill", "t", "--query", "@/no/such/file"),
        ("init", "--location", "EU"),
        ("key", "create", "ci", "--scope", "fly"),
        ("merge", "--dry-run", "list"),
        ("merge", "--since", "tomorrow"),
        ("query",),
        ("query", "SELECT 1", "--param", "day:DATE:2026-01-01", "--param", "day:DATE:2026-01-02"),
        ("source", "diff", "orders.txt"),
        ("check", "SELECT 1", "--table-schema", "nothing"),
    ],
)
def test_what_a_command_does_not_take_is_wrong_usage(refeed, arguments):
    result = refeed(*arguments)
    assert result.code == 2, result.err
    assert result.err.startswith("error ")


def test_wrong_settings_are_wrong_usage_and_all_named(refeed, monkeypatch):
    monkeypatch.setenv("REFEED_ACK_DEADLINE_SECONDS", "5")
    monkeypatch.setenv("REFEED_LAUNCHER", "cron")
    result = refeed("compact")
    assert result.code == 2
    assert SettingsError.code in result.err
    assert "REFEED_ACK_DEADLINE_SECONDS" in result.err
    assert "REFEED_LAUNCHER" in result.err


def test_an_interrupt_ends_with_130(refeed, monkeypatch):
    def interrupt(settings, topics, **_):
        raise KeyboardInterrupt

    monkeypatch.setattr(attach, "attach_topics", interrupt)
    assert refeed("attach", "orders").code == 130


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code"),
    [
        (("get", "topics", "--json", "--nonsense"), "input_invalid", 2),
        (("histogram", "--json"), "input_invalid", 2),
        (("messages", "orders", "--limit", "0", "--json"), "input_invalid", 2),
        (("get", "streams", "--json"), "api_unavailable", 3),
    ],
)
def test_with_json_every_error_is_one_problem_on_stderr(refeed, monkeypatch, arguments, code, exit_code):
    monkeypatch.setenv("REFEED_API_URL", "http://127.0.0.1:1")
    result = refeed(*arguments)
    problem = json.loads(result.err)
    assert (problem["code"], problem["type"], result.code) == (code, f"/problems/{code}", exit_code)
    assert problem["detail"]
    assert result.out == ""


def test_with_json_a_question_without_an_answer_is_a_problem_too(refeed, monkeypatch):
    def ask(*_, **__):
        typer.confirm("Go on?", abort=True, err=True)

    monkeypatch.setattr("cli.look.open_api", ask)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    result = refeed("get", "streams", "--json")
    assert (result.code, result.out.strip()) == (1, "")
    assert "--yes" in json.loads(result.err[result.err.index("{") :])["detail"]


def test_a_question_that_nobody_can_answer_names_the_option_that_does(refeed, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    result = refeed("archive", "expire", "--before", "2020-01-01")
    assert (result.code, result.out.strip()) == (1, "")
    assert "Without a terminal, you can't answer this question. To answer yes, use --yes." in result.err


def test_an_answer_that_is_piped_in_counts(refeed, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    result = refeed("archive", "expire", "--before", "2020-01-01")
    assert (result.code, "--yes" in result.err) == (1, False)


@pytest.mark.parametrize("arguments", [["key", "list"], ["key", "list", "--json"]])
def test_a_full_disk_behind_the_output_is_an_error_and_no_traceback(arguments, home):
    with Path("/dev/full").open("w") as full:
        done = _run_alone(*arguments, stdout=full)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "storage_full" in done.stderr


def test_an_output_that_has_not_every_letter_gets_the_rest_as_escapes(home):
    query = ["query", "SELECT 'ä → 😀' AS said"]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = _run_alone(*query, "--json", stdout=subprocess.PIPE, env=environment)
    assert json.loads(done.stdout) == {"said": "ä → 😀"}, done.stderr
    assert _run_alone(*query, stdout=subprocess.PIPE, env=environment).returncode == 0


@pytest.mark.parametrize("command", ["--version", "key list", "check SELECT"])
def test_a_closed_stdout_is_an_error_and_no_traceback(home, command):
    done = _run_alone(*command.split(), redirection=">&-")
    assert done.returncode == 1, done.stderr
    assert "output_unwritable" in done.stderr
    assert "Bad file descriptor" in done.stderr
    assert "Traceback" not in done.stderr


def test_output_that_is_still_buffered_at_the_end_is_not_lost_without_a_word(home, tmp_path):
    queries = tmp_path / "queries.jsonl"
    queries.write_text('{"id": "one", "sql": "SELECT 1"}\n')
    done = _run_alone("check", "--jsonl", str(queries), redirection=">&-")
    assert (done.returncode, "output_unwritable" in done.stderr, "Exception" in done.stderr) == (1, True, False)


def test_a_closed_stderr_leaves_the_result_and_the_exit_code(home):
    found = _run_alone("key", "list", "--json", redirection="2>&-", stdout=subprocess.PIPE)
    assert (found.returncode, found.stdout) == (0, "[]\n")
    refused = _run_alone("archive", "count", "--nonsense", redirection="2>&-", stdout=subprocess.PIPE)
    assert (refused.returncode, refused.stdout) == (2, "")


def test_a_closed_stdin_is_an_empty_one(home):
    done = _run_alone("backfill", "orders", "--query", "-", redirection="<&-")
    assert done.returncode == 3, done.stderr
    assert "api_unavailable" in done.stderr


@pytest.mark.parametrize("name", ["projects/shop/topics/orders", "a/b", ""])
def test_a_topic_s_whole_path_is_no_topic_id(refeed, name):
    result = refeed("histogram", name)
    assert (result.code, f"'{name}' is not a valid topic id" in result.err) == (2, True), result.err


@pytest.mark.parametrize("arguments", ["cancel", "watch", "describe", "pause"])
def test_an_empty_id_is_said_to_be_empty(refeed, arguments):
    # As of a shell's variable that was not set.
    result = refeed(*arguments.split(), "")
    assert (result.code, "The name or id is empty" in result.err) == (2, True), result.err


def test_a_query_may_begin_with_a_byte_order_mark(tmp_path):
    query = tmp_path / "query.sql"
    query.write_bytes(b"\xef\xbb\xbfSELECT 1")
    assert read_query(f"@{query}") == "SELECT 1"


def test_a_query_that_is_no_utf_8_is_wrong_input(home, tmp_path):
    query = tmp_path / "query.sql"
    query.write_bytes("SELECT 1".encode("utf-16"))
    for argument in ("-", f"@{query}"):
        with query.open() as given:
            arguments = ["backfill", "orders", "--query", argument]
            done = _run_alone(*arguments, stdin=given, env={**os.environ, "LC_ALL": "C"})
        assert (done.returncode, "Save the file as UTF-8" in done.stderr) == (2, True), done.stderr


def _run_alone(*arguments: str, redirection: str = "", **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run ``refeed ARGUMENTS`` in a process of its own; ``redirection`` is a shell's, such as ``>&-``."""
    command = ["sh", "-c", f'exec "$0" "$@" {redirection}', sys.executable, "-m", "cli.main", *arguments]
    given = {"stderr": subprocess.PIPE, "text": True, "errors": "replace", "timeout": 60, **options}
    return subprocess.run(command, check=False, **given)


@pytest.mark.parametrize("command", ["up", "init", "key list", "pubsub --port 0", "backup"])
def test_a_home_that_can_not_be_written_is_an_error_with_its_name(refeed, monkeypatch, tmp_path, command):
    (tmp_path / "file").touch()
    home = tmp_path / "file" / "home"
    monkeypatch.setenv("REFEED_HOME", str(home))
    result = refeed(*command.split())
    assert result.code == 2, result.err
    assert result.err.startswith(
        f"error home_unwritable  Refeed can't write to the home {home} (Not a directory: "
    )
    assert json.loads(refeed(*command.split(), "--json").err)["code"] in {"home_unwritable", "input_invalid"}


@pytest.mark.parametrize("command", ["init", "key list"])
def test_a_home_is_made_for_its_owner_only(refeed, monkeypatch, tmp_path, command):
    monkeypatch.setenv("REFEED_HOME", str(tmp_path / "home"))
    refeed(*command.split())
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("command", ["key list", "up"])
def test_a_home_that_can_not_be_made_is_an_error_with_its_name(refeed, monkeypatch, command):
    monkeypatch.delenv("REFEED_HOME")
    monkeypatch.setenv("HOME", "/proc")
    result = refeed(*command.split())
    assert result.code == 2, result.err
    said = "error home_unwritable  Refeed can't write to the home /proc/.refeed (No such file or directory: /proc/"
    assert result.err.startswith(said)


@pytest.mark.parametrize("arguments", ["doctor", "status --home ~no-such-user/x", "--home ~no-such-user/x status"])
def test_a_home_of_a_user_that_there_is_none_of_is_a_wrong_setting(refeed, monkeypatch, arguments):
    monkeypatch.setenv("REFEED_HOME", "~no-such-user/x")
    result = refeed(*arguments.split())
    said = "~no-such-user/x: there is no such user; choose another home with --home or REFEED_HOME."
    assert said in f"{result.out}{result.err}".replace("\n", " ")
    assert "Traceback" not in result.err


@pytest.mark.parametrize("arguments", ["get topics", "describe bf_1", "watch bf_1", "status --json"])
def test_a_server_that_is_no_refeed_api_ends_a_command_as_one_that_does_not_answer(refeed, monkeypatch, arguments):
    content = b"{}" if "--json" in arguments else b'{"status": "healthy"}'
    with answering(lambda _: Answer(200, content)) as url:
        monkeypatch.setenv("REFEED_API_URL", url)
        result = refeed(*arguments.split())
    assert (result.code, result.out) == (3, "")
    assert "api_unknown" in result.err
    assert f" {url}/" in result.err
