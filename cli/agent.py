"""``refeed agent``: the process that starts, steers and restarts the streams of a deployment."""

import os
import signal
import threading
from typing import Final

from cli.invocation import make_home, open_deployment
from cli.services import service_settings
from model.errors import StoreUnavailableError

_LOOK_SECONDS: Final = 0.5


def agent() -> None:
    """Run launched streams. Ctrl-C or SIGTERM drains the streams. They run again when the agent starts again.

    An agent runs at most REFEED_AGENT_STREAMS streams. Several agents with the same job store share the streams.
    If an agent does not report for twenty seconds, another agent takes over its streams. Spark runs on the
    agent's machine, or on the cluster that REFEED_SPARK_MASTER names.
    """
    import structlog

    from rollout.agent import Agent
    from rollout.probe import beat

    say = structlog.get_logger(__name__)
    settings = service_settings()
    make_home(settings.home)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    environment = {**os.environ, "REFEED_HOME": str(settings.home.absolute()), "PYTHONSAFEPATH": "1"}
    with open_deployment(settings) as deployment:
        keeper = Agent(
            deployment.store,
            environment=environment,
            places=settings.agent_streams,
            say=say.info,
            snapshots=deployment.snapshot_work,
            updates=deployment.update_work,
            reports=deployment.stream_reports,
        )
        say.info("agent_started", owner=keeper.owner, places=settings.agent_streams)
        try:
            while not stopping.wait(_LOOK_SECONDS):
                beat(settings.home)
                try:
                    keeper.look()
                except StoreUnavailableError as exc:
                    say.error("store_unavailable", error=exc.message)
        finally:
            keeper.stop()
    say.info("agent_stopped")
