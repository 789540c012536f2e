"""The terminal, run in the tests' process against an API that a test serves."""

import sys

import pytest

from cli.main import main


@pytest.fixture
def refeed(api, monkeypatch, capsys):
    """Runs ``refeed ARGUMENTS`` against the API: exit code, stdout and stderr."""
    monkeypatch.setenv("REFEED_API_URL", api.url)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["refeed", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run
