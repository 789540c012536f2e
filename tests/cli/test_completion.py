"""Shell completion: the words that each shell is given, and bash's own use of them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_and_the_commands_that_begin_so(refeed, monkeypatch, shell):
    monkeypatch.setenv("_REFEED_COMPLETE", f"source_{shell}")
    assert "_REFEED_COMPLETE" in refeed().out
    monkeypatch.setenv("_REFEED_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", "refeed re")
    monkeypatch.setenv("COMP_CWORD", "1")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "refeed re")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    out = refeed().out
    assert [verb for verb in ("resume", "retry", "revert") if verb not in out] == []
    assert "slices" not in out


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_a_command_by_the_script(tmp_path):
    own = tmp_path / "refeed"
    own.write_text(f'#!/bin/sh\nexec {sys.executable} -m cli.main "$@"\n')
    own.chmod(0o755)
    script = (
        'eval "$(_REFEED_COMPLETE=source_bash refeed)"; COMP_WORDS=(refeed inb) COMP_CWORD=1; '
        "_refeed_completion refeed inb refeed; echo ${COMPREPLY[@]}"
    )
    paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": paths}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["inbox"]


@pytest.mark.parametrize("words", ["refeed --home {} describe stre", "refeed describe --home {} stre"])
def test_objects_are_completed_of_the_home_that_the_command_names(refeed, monkeypatch, tmp_path, words):
    asked = []

    def note(_):
        asked.append(os.environ.get("REFEED_HOME"))
        raise OSError

    monkeypatch.setattr("cli.completion._objects", lambda verb, incomplete: note(verb))
    wanted = words.format(tmp_path)
    monkeypatch.setenv("_REFEED_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", wanted)
    monkeypatch.setenv("COMP_CWORD", str(len(wanted.split()) - 1))
    refeed()
    assert asked == [str(tmp_path)]
