"""A task of a backfill is killed at every place where it could matter, and another one goes on."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from backfill.plan.options import RunOptions
from backfill.run.dead_letters import list_dead_letters
from backfill.run.folder import BackfillFolder
from backfill.run.pace import Pace, write_pace
from backfill.run.progress import CheckpointFolder
from backfill.run.publish import publish_piece
from backfill.run.selection import SELECTION_SCHEMA, read_selection, write_selection
from backfill.run.tagging import Target
from backfill.run.work import plan_work
from connectors.pubsub.client import PubSub
from connectors.pubsub.publish import Publisher
from jobs.folder import Control, Order
from local.server import PubSubServer
from model.failpoint import FAILPOINTS
from tests.acceptance.receiving import receive_waiting

pytestmark = pytest.mark.kills

ROWS = 3000
BAD = (0, 1200, 1201, 2999)
BEFORE_IT_SENDS = ("backfill.selection.written", "backfill.piece.begun")
WHILE_IT_SENDS = [name for name in FAILPOINTS if name.startswith("backfill.") and name not in BEFORE_IT_SENDS]
TASK = """
import sys
from pathlib import Path
from backfill.run.publish import publish_piece
from backfill.run.selection import read_selection
from backfill.run.tagging import Target
from backfill.run.work import Piece
from connectors.pubsub.channel import open_channel
from connectors.pubsub.publish import Publisher
from backfill.run.folder import BackfillFolder

folder, host = BackfillFolder(Path(sys.argv[1])), sys.argv[2]
(part,) = read_selection(folder.selection).slices
target = Target("bf_1", "projects/shop/topics/replay", host, "token")
with open_channel(host) as channel:
    publisher = Publisher(channel, target.topic_path)
    publish_piece(publisher, folder, 1, target, Piece(0, part, part.rows), max_failed=100)
"""


@pytest.fixture
def host(tmp_path):
    with PubSubServer(tmp_path / "pubsub") as server:
        yield server.emulator_host


def rows() -> pa.RecordBatch:
    attributes = [[{"key": "n", "value": None if n in BAD else str(n)}] for n in range(ROWS)]
    return pa.record_batch(
        {
            "data": pa.array([b"x"] * ROWS, pa.binary()),
            "attributes": pa.array(attributes, SELECTION_SCHEMA.field("attributes").type),
            "message_id": [str(n) for n in range(ROWS)],
        }
    )


def let_go(folder: BackfillFolder, epoch: int) -> None:
    folder.write_control(Control(epoch, Order.RUN))
    write_pace(folder, epoch, Pace(beat=1, go=True))


@pytest.mark.parametrize("place", ["backfill.piece.begun", *WHILE_IT_SENDS])
def test_a_task_that_is_killed_loses_no_row_repeats_what_it_says_and_names_every_dead_letter_once(
    host, tmp_path, place
):
    folder, marker = BackfillFolder(tmp_path / "bf_1"), tmp_path / "hit"
    folder.write_specification({})
    CheckpointFolder(folder.progress).create()
    selection = write_selection([rows()], folder.selection)
    let_go(folder, 1)
    with PubSub("shop", host) as pubsub:
        pubsub.create_topic("replay")
        pubsub.create_subscription("listener", "replay")
        environment = {**os.environ, "REFEED_FAILPOINTS": f"{place}=0:{marker}"}
        command = [sys.executable, "-c", TASK, str(folder.path), host]
        killed = subprocess.run(command, env=environment, check=False, timeout=120)
        assert (killed.returncode, marker.exists()) == (-signal.SIGKILL, True)

        let_go(folder, 2)
        target = Target("bf_1", "projects/shop/topics/replay", host, "token")
        publisher = Publisher(pubsub.channel, target.topic_path)
        reached = {c.slice: c for c in CheckpointFolder(folder.progress).read_all()}
        pieces = plan_work(folder, selection, RunOptions(max_failed=100), reached, 2)
        ends = [publish_piece(publisher, folder, 2, target, piece, max_failed=100) for piece in pieces]

        received = receive_waiting(pubsub.channel, pubsub.subscription_path("listener"))
    sent = Counter(int(each.attributes["n"]) for each in received)
    assert all(end.done for end in ends)
    assert set(sent) == set(range(ROWS)) - set(BAD)
    assert sent.total() - len(sent) <= sum(end.repeated_at_most for end in ends) <= ROWS
    assert (sum(end.published for end in ends), sum(end.failed for end in ends)) == (ROWS - len(BAD), len(BAD))
    assert [letter.row for letter in list_dead_letters(folder, limit=100).letters] == list(BAD)


def test_a_selection_whose_writer_was_killed_is_made_anew_and_whole(tmp_path):
    script = (
        "import sys; from pathlib import Path; from tests.acceptance.test_backfill_kills import rows; "
        "from backfill.run.selection import write_selection; write_selection([rows()], Path(sys.argv[1]))"
    )
    folder, marker = tmp_path / "selection", tmp_path / "hit"
    environment = {**os.environ, "REFEED_FAILPOINTS": f"backfill.selection.written=0:{marker}"}
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", script, str(folder)]
    killed = subprocess.run(command, env=environment, check=False, timeout=120, cwd=root)

    assert (killed.returncode, marker.exists()) == (-signal.SIGKILL, True)
    assert read_selection(folder) is None
    assert write_selection([rows()], folder).rows == ROWS
    assert read_selection(folder) is not None
