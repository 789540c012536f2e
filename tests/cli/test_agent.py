"""The command ``refeed agent`` as a process, with a stream that fails before it needs anything."""

import os
import sys
from contextlib import closing

from inventory.streams import read_streams
from jobs.store import open_store
from model.stream_options import StreamKind
from rollout.child import Child
from tests.waiting import wait_until


def test_an_agent_s_stream_is_seen_by_an_api_of_another_home_also_why_it_failed(tmp_path):
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    environment = {
        **os.environ,
        "REFEED_HOME": str(tmp_path / "home"),
        "REFEED_JOB_STORE": url,
        # It needs the secret of the key too.
        "REFEED_KINESIS_ACCESS_KEY_ID": "AKIA",
    }
    command = [sys.executable, "-m", "cli.main", "agent"]
    agent = Child("agent", command, environment=environment, log=tmp_path / "agent.log")
    with closing(open_store(url)) as store:
        options = {"stream": "clicks", "region": "eu-west-1", "topic": "orders"}
        store.launch_stream("kinesis-clicks", StreamKind.KINESIS, actor="ann", options=options)
        agent.start()
        try:
            wait_until(store.list_stream_reports, seconds=60, why=f"it is reported: {agent.log_tail(20)}")
            # One for each try.
            stored = store.list_stream_reports()[0]
            assert (stored.report.name, stored.report.state) == ("kinesis-clicks", "failed")
            (shown,) = read_streams(tmp_path / "another", None, store.list_stream_reports())
            assert "REFEED_KINESIS_SECRET_ACCESS_KEY" in shown.error.message
            assert agent.stop(seconds=30) == 0
        finally:
            agent.kill()
