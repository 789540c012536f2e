import json

import pytest
from rich.text import Text

from cli.jobs import print_log
from cli.terminal import (
    ExitCode,
    exit_code_of,
    out,
    print_error,
    print_found,
    print_json,
    print_problem,
    render_table,
)
from model.errors import (
    ApiUnavailableError,
    InputError,
    InvalidNameError,
    LineError,
    PubSubUnavailableError,
    RefeedError,
    RequestInvalidError,
    RequestRefusedError,
    SettingsError,
    WarehouseError,
)
from sql.violation import QueryRefusedError, Violation


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (WarehouseError(), ExitCode.FAILED),
        (SettingsError(), ExitCode.WRONG_USAGE),
        (InputError(), ExitCode.WRONG_USAGE),
        (InvalidNameError(), ExitCode.WRONG_USAGE),
        (RequestInvalidError(), ExitCode.WRONG_USAGE),
        (LineError(), ExitCode.FAILED),
        (ApiUnavailableError(), ExitCode.UNAVAILABLE),
        (PubSubUnavailableError(), ExitCode.UNAVAILABLE),
        (RequestRefusedError(), ExitCode.REFUSED),
        (RequestRefusedError(code="pubsub_unavailable", status=503), ExitCode.UNAVAILABLE),
        (RequestRefusedError(code="warehouse_unavailable", status=503), ExitCode.UNAVAILABLE),
        (RequestRefusedError(code="service_busy", status=429), ExitCode.REFUSED),
        (QueryRefusedError([Violation("x", "y", 1, 1)]), ExitCode.REFUSED),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error, code):
    assert exit_code_of(error) is code


def test_every_violation_is_printed_with_its_place_and_rewrite(capsys):
    print_error(
        QueryRefusedError([Violation("a", "First.", 1, 2, "SELECT [1]"), Violation("b", "Second.", 3, 4, None)])
    )
    assert capsys.readouterr().err.splitlines()[1:] == [
        "  - line 1, column 2: First. (a)",
        "    write: SELECT [1]",
        "  - line 3, column 4: Second. (b)",
    ]


def test_a_problem_s_errors_are_printed_with_their_pointers(capsys):
    errors = [{"code": "missing", "message": "Field required", "pointer": "/topic"}]
    print_error(RequestRefusedError("The request is wrong.", errors=errors))
    assert "  - /topic: Field required (missing)\n" in capsys.readouterr().err


def test_a_fault_that_the_sentence_has_is_printed_once(capsys):
    errors = [
        {"code": "range_invalid", "message": "to is not a time.", "pointer": "/to"},
        {"code": "missing", "message": "Field required", "pointer": "/topic"},
    ]
    print_error(RequestRefusedError("to is not a time. (HTTP 422)", errors=errors))
    said = capsys.readouterr().err
    assert (said.count("to is not a time."), said.count("Field required")) == (1, 1), said


def test_what_the_api_refused_has_the_code_that_the_api_gave(capsys):
    print_error(RequestRefusedError("Plan again. (HTTP 409)", code="plan_expired", status=409))
    print_error(RequestRefusedError("<html>"))
    assert capsys.readouterr().err.splitlines() == [
        "error plan_expired  Plan again. (HTTP 409)",
        "error request_refused  <html>",
    ]


def test_json_is_one_line_that_reads_back(capsys):
    print_json({"a": "ö\n[b]", "n": 1})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"a": "ö\n[b]", "n": 1}


def test_a_table_never_cuts_what_is_there_to_be_copied(capsys):
    rows = [["bf_" + "X" * 300, "[red]"], ["b", "RUNNING"], ["day:DATE:2026", "x"]]
    print_found(rows, lambda found: render_table(["id", "state"], found), as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "ID" + " " * 303 + "STATE",
        "bf_" + "X" * 300 + "  [red]",
        "b" + " " * 304 + "RUNNING",
        # No emoji of a calendar.
        "day:DATE:2026" + " " * 292 + "x",
    ]


def test_a_problem_has_the_api_s_shape_and_what_the_api_said_goes_through(capsys):
    print_problem(QueryRefusedError([Violation("a", "First.", 1, 2, None)]))
    own = json.loads(capsys.readouterr().err)
    assert (own["type"], own["code"]) == ("/problems/query_refused", "query_refused")
    assert (own["errors"][0]["code"], own["errors"][0]["line"]) == ("a", 1)
    told = {"type": "/problems/plan_expired", "status": 409, "code": "plan_expired", "detail": "Plan again."}
    print_problem(RequestRefusedError("Plan again. (HTTP 409)", **told))
    captured = capsys.readouterr()
    assert (json.loads(captured.err), captured.out) == (told, "")


def test_no_text_of_others_steers_the_terminal(capsys):
    steering = "\x1b]52;c;ZXZpbA==\x07 \x9b2J \u202e"
    out.print(steering)
    out.print(Text.assemble(("a", "bold"), steering))
    print_json({"reason": steering})
    print_log([steering, "\n"], as_json=False)
    print_error(RefeedError(steering))
    print_problem(RefeedError(steering))
    captured = capsys.readouterr()
    for said in (captured.out, captured.err):
        assert not set(steering) & set(said) - set("]52;c;ZXZpbA== J")
    assert json.loads(captured.out.splitlines()[2]) == {"reason": steering}
    assert captured.out.splitlines()[0] == "\\u001b]52;c;ZXZpbA== \\u009b2J \\u202e"


@pytest.mark.parametrize(("key", "says"), [("", "which is not set"), ("rf_a_b", "revoked or has expired")])
def test_a_caller_without_a_valid_key_is_told_of_the_variable_and_not_of_a_header(capsys, monkeypatch, key, says):
    monkeypatch.setenv("REFEED_API_KEY", key)
    said = "The call has no valid key or token. Send a key as 'Authorization: Bearer ...'. (HTTP 401)"
    print_error(RequestRefusedError(said, code="unauthenticated"))
    found = " ".join(capsys.readouterr().err.split())
    assert "no valid key" in found
    assert "REFEED_API_KEY" in found
    assert says in found
    assert "Bearer" not in found
