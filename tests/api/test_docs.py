"""The commands of docs/api.md, run as they stand there."""

import os
import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from connectors.lake.archive import LakeArchive
from model.moment import render_moment
from tests.archive import messages, write_commits

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
# Codes of a call that is written wrongly; a backfill in the wrong state is the example's own affair.
WRONG = re.compile(r"request_invalid|query_refused|\"not_found\"|method_not_allowed|http_error|\"internal\"")


def scripts() -> list[str]:
    """The indented blocks of the page that call the API, each a script."""
    text = PAGE.read_text()
    blocks = re.findall(r"(?:^(?:    .*)?\n)+", text, re.MULTILINE)
    found = [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in blocks]
    # Another caller's key is what the approval is about; it has tests of its own.
    return [script for script in found if "curl" in script and "OTHER_KEY" not in script]


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="curl or jq is not installed")
def test_every_command_of_the_page_is_one_that_the_api_takes(start_api, tmp_path):
    api = start_api()
    now = datetime.now(UTC)
    rows = messages(3, publish_time=[now] * 3)
    write_commits(LakeArchive(str(api.home / "lake"), "backup.messages"), {"orders": rows})
    day = f"{now:%F}"
    (api.home / "registry").mkdir()
    (api.home / "registry" / "sources.yaml").write_text(
        "sources: {orders: {topic: orders, schema: inferred, key: number}}"
    )
    assert len(scripts()) >= 5
    with api.client() as client:
        parameters = {"day": {"type": "DATE", "value": "2026-01-01"}}
        query = "SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = @day"
        body = {"query": query, "topic": "examples", "parameters": parameters, "start_paused": True}
        made = client.post("/backfills", json=body)
        assert made.status_code == 202, made.text
    environment = {**os.environ, "API": api.url, "ID": made.json()["id"]}
    # What the page plans has messages.
    moments = {"from": ("2026-01-01T00:00:00Z", now), "to": ("2026-01-02T00:00:00Z", datetime.now(UTC))}
    dated = [each.replace('"DATE", "value": "2026-01-01"', f'"DATE", "value": "{day}"') for each in scripts()]
    for name, (written, moment) in moments.items():
        old, new = (f'"{name}": "{each}"' for each in (written, render_moment(moment)))
        dated = [each.replace(old, new) for each in dated]
    for script in dated:
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert ran.returncode == 0, f"{script}\n{ran.stdout[-2000:]}\n{ran.stderr}"
        assert not WRONG.search(ran.stdout), f"{script}\n{ran.stdout[-2000:]}"
