"""A release beside the installed one: its own code runs in the driver and in the workers that its JVM starts."""

import json
import subprocess

import pytest

from rollout.child import Child
from rollout.releases import Releases
from tests.acceptance.conftest import Backyard
from tests.rollout.wheels import build_release

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(600)]

# In the workers: what they make of a message. In the driver: what it counts.
ROWS = """\
        return self._write(pa.Table.from_batches(batches, schema=FILE_SCHEMA), now)
"""
OTHER_ROWS = """\
        table = pa.Table.from_batches(batches, schema=FILE_SCHEMA)
        data = pc.binary_join_element_wise(table["data"], b"by the release", b" ")
        place = table.schema.get_field_index("data")
        return self._write(table.set_column(place, FILE_SCHEMA.field("data"), data), now)
"""
COUNT = '        totals["replays"] += sum('
CHANGES = {
    "connectors/lake/files.py": (ROWS, OTHER_ROWS),
    "backup/archiving.py": (COUNT, f'        totals["by_the_release"] += len(outputs)\n{COUNT}'),
}


def test_a_release_with_a_changed_transformation_wins_over_what_is_installed(backyard: Backyard, tmp_path) -> None:
    releases = Releases(backyard.home)
    release = releases.add(build_release(tmp_path / "wheel", "0.1.0+changed", CHANGES), name="changed")
    assert release.version == release.formats.version == "0.1.0+changed"
    # Its lock is this tree's: the packages that are installed here are used, and none was downloaded.
    assert [path.suffix for path in (backyard.home / "environments").iterdir()] == [".lock"]

    started = releases.start("changed", backyard.environment)
    # A checkout where a process is started does not win either.
    ran = subprocess.run(
        started.command("--version"), env=started.variables, check=True, capture_output=True, text=True
    )
    assert ran.stdout == "refeed 0.1.0+changed\n"

    backyard.attach("orders")
    backyard.publish("orders", 50)
    log = backyard.home / "logs" / "release.log"
    backup = Child("release", started.command("backup"), environment=started.variables, log=log).start()
    try:
        backyard.wait_until_archived(backup)
        assert backup.stop() == 0
    finally:
        backup.kill()
    rows = {row["message_id"]: row["data"] for row in backyard.archived()}
    assert rows == {i: message.data + b" by the release" for (_, i), message in backyard.published.items()}
    status = json.loads((backyard.home / "streams" / "backup" / "status.json").read_text())
    assert status["totals"]["by_the_release"] > 0
