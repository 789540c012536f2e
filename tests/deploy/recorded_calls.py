"""A project in the stand-ins, and what the calls that are made in it need."""

import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
from google.cloud import bigquery

from connectors.pubsub.client import PubSub
from connectors.pubsub.publish import Message, Publisher
from local.server import PubSubServer
from model.message import replay_token
from model.settings import Settings, read_settings
from tests.deploy.permissions import CALLS, KINDS, Need, needs_of_call, needs_of_job
from tests.standin.fixture import StandIn
from warehouse.open import open_warehouse

ROOT = Path(__file__).resolve().parents[2]


class Recorder(grpc.UnaryUnaryClientInterceptor):
    """Notes every call to Pub/Sub that leaves this process."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        if details.method.startswith("/google.pubsub.v1."):
            self.methods.append(details.method.removeprefix("/google.pubsub.v1."))
        return continuation(details, request)


class World:
    """A project of its own in the stand-ins, and what is called in it."""

    def __init__(
        self, standin: StandIn, server: PubSubServer, folder: Path, project: str, recorder: Recorder
    ) -> None:
        self.standin = standin
        self.folder = folder
        self.project = project
        self.recorder = recorder
        self.environment = {
            **standin.environment,
            "REFEED_HOME": str(folder / "home"),
            "REFEED_PROJECT": project,
            "REFEED_WAREHOUSE": "bigquery",
            "REFEED_SECRET": "s3cret",
            "PUBSUB_EMULATOR_HOST": server.emulator_host,
        }
        self.settings: Settings = read_settings(self.environment)
        self.server = server

    def prepare(self) -> None:
        """Make what Terraform makes, with messages in the archive's topic."""
        client = self.standin.client(self.project)
        for name in KINDS:
            client.create_dataset(bigquery.Dataset(f"{self.project}.{name}"), exists_ok=True)
        with closing(open_warehouse(self.settings).open_archive()) as archive:
            archive.create()
        with PubSub(self.project, self.server.emulator_host) as pubsub:
            pubsub.create_topic("orders")
            pubsub.attach_backup("orders", token=replay_token("s3cret", "orders"), ack_deadline_seconds=60)

    def publish(self, *payloads: bytes) -> None:
        with PubSub(self.project, self.server.emulator_host) as pubsub:
            Publisher(pubsub.channel, pubsub.topic_path("orders")).publish(
                [Message(payload, {}) for payload in payloads]
            )

    def needs(self, act: Callable[[], None]) -> set[Need]:
        """Return what the calls of ``act`` need, by the stand-ins' own records."""
        self.standin.clear_log()
        self.recorder.methods.clear()
        client = self.standin.client(self.project)
        before = {job.job_id for job in client.list_jobs(all_users=True)}
        act()
        calls = [call for call in self.standin.calls() if call["method"] != "jobs.list"]
        methods = {call["method"] for call in calls}
        assert methods <= CALLS.keys(), methods - CALLS.keys()
        # docs/bigquery.md lists every call with its quota.
        assert methods <= documented_calls(), methods - documented_calls()
        needed = set().union(*(needs_of_call(call["method"], call["resource"]) for call in calls))
        needed |= set().union(*(needs_of_call(method, "") for method in self.recorder.methods))
        for job in client.list_jobs(all_users=True):
            if job.job_id not in before:
                needed |= needs_of_job(job)
        return needed


def documented_calls() -> set[str]:
    """The calls of docs/bigquery.md's table of calls and quotas."""
    page = (ROOT / "docs" / "bigquery.md").read_text()
    section = page.split("## Calls and quotas", 1)[1].split("\n## ", 1)[0]
    cells = re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)
    return {
        name for cell in cells for name in re.findall(r"(?:[a-z]+\.)?[A-Za-z]+", re.sub(r"\([^)]*\)", "", cell))
    }
