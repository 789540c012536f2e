import os
import sys

import pytest

from cli.processes import free_port, is_listening
from cli.stack import Stack
from rollout.child import Child, Children
from streams.status import StatusFile


@pytest.fixture
def stack(tmp_path):
    environment = {**os.environ, "PUBSUB_EMULATOR_HOST": "elsewhere:1", "REFEED_ACK_DEADLINE_SECONDS": "11"}
    stack = Stack(tmp_path / "home", pubsub_port=free_port(), api_port=free_port(), environment=environment)
    yield stack
    for child in (stack.pubsub, stack.backup, stack.api):
        child.kill()


def test_all_of_them_share_one_home_and_one_pubsub_server(stack, tmp_path):
    assert stack.settings.home == tmp_path / "home"
    assert stack.settings.pubsub_emulator_host == stack.emulator_host
    assert stack.settings.ack_deadline_seconds == 11
    assert stack.environment["PUBSUB_EMULATOR_HOST"] == stack.emulator_host
    assert stack.environment["REFEED_HOME"] == str(tmp_path / "home")


def test_a_folder_named_like_ours_does_not_hide_ours(stack, tmp_path, monkeypatch):
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "main.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    with Children() as children:
        children.start(stack.pubsub)
        stack.wait_for_pubsub()
        assert is_listening(stack.emulator_host)


def test_the_backup_counts_as_running_only_by_its_own_word(stack, tmp_path):
    folder = tmp_path / "home" / "streams" / "backup"
    folder.mkdir(parents=True)
    stack.backup = Child(
        "backup",
        [sys.executable, "-c", "import time; time.sleep(60)"],
        environment=os.environ,
        log=tmp_path / "backup.log",
    ).start()
    assert not stack._is_backing_up()
    # What a stream before it left behind says nothing of this one.
    StatusFile(folder / "status.json").write(state="running")
    assert not stack._is_backing_up()
    text = (folder / "status.json").read_text().replace(str(os.getpid()), str(stack.backup.pid))
    (folder / "status.json").write_text(text)
    assert stack._is_backing_up()
