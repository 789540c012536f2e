from dataclasses import replace

import pytest

from cli.demo.command import _own_environment, _render
from cli.demo.verdict import Verdict
from cli.terminal import out
from model.errors import InputError
from model.settings import read_settings


def test_a_demo_never_fills_google_s_own_bigquery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BIGQUERY_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("REFEED_BIGQUERY_STORAGE_HOST", "127.0.0.1:1")
    with pytest.raises(InputError, match="Set BIGQUERY_EMULATOR_HOST, or run 'make demo-bigquery'"):
        _own_environment("bigquery")


def test_a_demo_on_bigquery_takes_a_dataset_of_its_own_and_nothing_else_of_the_caller_s(monkeypatch):
    monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", "http://127.0.0.1:1")
    monkeypatch.setenv("REFEED_BIGQUERY_STORAGE_HOST", "127.0.0.1:2")
    monkeypatch.setenv("REFEED_ARCHIVE_TABLE", "precious.messages")
    first, second = (read_settings(_own_environment("bigquery")) for _ in range(2))
    assert first.warehouse == "bigquery"
    assert (first.bigquery.host, first.bigquery.storage_host) == ("http://127.0.0.1:1", "127.0.0.1:2")
    assert len({first.archive_table, second.archive_table, "precious.messages"}) == 3


def test_a_verdict_is_printed_in_words_without_markup() -> None:
    clean = Verdict(
        published=3, archived=3, selected=2, republished=2, expected_selected=2, seconds={"total": 1.0}
    )
    for verdict, word in ((clean, "clean"), (replace(clean, lost=1), "not clean")):
        with out.capture() as captured:
            out.print(_render(verdict))
        lines = captured.get().splitlines()
        assert [cell.strip() for cell in lines[-2].split("│")] == ["", "verdict", "", word, ""]
        assert "[" not in captured.get()
