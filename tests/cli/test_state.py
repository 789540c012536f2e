"""Where commands keep what they keep."""

import tempfile

import pytest


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.usefixtures("pubsub_server")
def test_nothing_is_written_outside_of_the_home(named, refeed, home, monkeypatch, tmp_path):
    user, here, temporary = tmp_path / "user", tmp_path / "here", tmp_path / "temporary"
    for folder in (user, here, temporary):
        folder.mkdir()
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(here)
    if not named:
        monkeypatch.delenv("REFEED_HOME")
    for arguments in (
        ["init"],
        ["attach", "orders"],
        ["key", "create", "till", "--scope", "read"],
        ["query", "SELECT COUNT(*) AS n FROM backup.messages"],
    ):
        result = refeed(*arguments)
        assert result.code == 0, result.err
    kept = home if named else user / ".refeed"
    assert (kept / "jobs.db").is_file()
    written = [path for folder in (user, here, temporary) for path in folder.iterdir()]
    assert written == ([] if named else [kept])
