"""The processes of one home, as a supervisor, a client and a reader of its files see them.

Only the command line, HTTP, Pub/Sub, failpoints and files are used, so that this works with the program of any
checkout.
"""

import base64
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import grpc
import httpx
from deltalake import DeltaTable
from google.api_core.exceptions import DeadlineExceeded
from google.cloud.pubsub_v1 import PublisherClient, SubscriberClient
from google.cloud.pubsub_v1.types import BatchSettings

PROJECT: Final = "refeed-local"
AUDIENCE: Final = "audience"
TABLES: Final = {
    "orders": "staging/orders",
    "members": "staging/members",
    "events": "staging/events",
    "dead letters": "backup/dead_letters",
}
# What it must not be: a number that a broken home shows by accident.
NOT_JSON: Final = b"this is no JSON"

_SECONDS: Final = 180.0


def wait_for(is_true: Callable[[], Any], why: Callable[[], str] | str, seconds: float = _SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        text = why if isinstance(why, str) else why() if time.monotonic() >= deadline else ""
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {text}"
        time.sleep(0.1)


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@dataclass
class Record:
    """What was published to a home and asked of it, beside the home itself."""

    home: str
    host: str
    notify_url: str
    key: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)
    # Ids of jobs, and of the ended ones what the API said of them.
    paused_backfill: str = ""
    half_merge: str = ""
    ended: dict[str, dict[str, Any]] = field(default_factory=dict)

    def ids(self, topic: str, *, phase: str | None = None) -> set[str]:
        return {
            m["id"] for m in self.messages if m["topic"] == topic and phase in {None, m["attributes"]["phase"]}
        }

    def newest(self, topic: str) -> dict[int, int]:
        """Return the highest version of each entity of a topic."""
        found: dict[int, int] = {}
        for message in self.messages:
            body = base64.b64decode(message["data"])
            if message["topic"] == topic and body != NOT_JSON:
                entity = json.loads(body)
                found[entity["id"]] = max(found.get(entity["id"], 0), entity["version"])
        return found


class System:
    """The processes of one home: started, killed at failpoints, asked over HTTP, and read from its files."""

    def __init__(self, home: Path, program: Path, **environment: str) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        self.host, self.api_port = f"127.0.0.1:{free_port()}", free_port()
        self.program = program
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("REFEED_", "PUBSUB_"))},
            "REFEED_HOME": str(home),
            "PUBSUB_EMULATOR_HOST": self.host,
            "REFEED_ACK_DEADLINE_SECONDS": "10",
            "REFEED_BACKUP_BATCH_SECONDS": "0.3",
            "REFEED_PIPELINE_BATCH_SECONDS": "0.3",
            # Ended jobs stay, however old the archive of this home is.
            "REFEED_KEEP_JOB_DAYS": "36500",
            "REFEED_MERGE_AT": "off",
            **environment,
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, tuple[str, ...]] = {}
        os.environ["PUBSUB_EMULATOR_HOST"] = self.host
        # An older program has written down its own paths.
        url = f"http://127.0.0.1:{self.api_port}"
        self.client = httpx.Client(base_url=url, timeout=30, follow_redirects=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.kill_all()

    # -- processes

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(self.program), *arguments],
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, name: str, *arguments: str, **environment: str) -> None:
        """Start a long-running command; its failpoints are armed in a folder of its name."""
        self._commands[name] = arguments
        log = self.home / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        variable, _, folder = self._armed(name).partition("=")
        with log.open("ab") as output:
            self._running[name] = subprocess.Popen(
                [str(self.program), *arguments],
                # Python, and Spark's workers too, would import what lies in the folder that they start in.
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**self.environment, variable: folder, **environment},
                start_new_session=True,
            )

    def start_pubsub(self) -> None:
        self.start("pubsub", "pubsub", "--port", self.host.partition(":")[2])

        def listens() -> bool:
            with closing(socket.socket()) as tried:
                return tried.connect_ex(("127.0.0.1", int(self.host.partition(":")[2]))) == 0

        wait_for(listens, lambda: f"Pub/Sub listens: {self.log('pubsub')}")

    def start_api(self, key: str) -> None:
        """Start the API and wait until Spark is ready too."""
        self.client.headers["Authorization"] = f"Bearer {key}"
        self.start("api", "api", "--port", str(self.api_port))

        def is_ready() -> bool:
            with suppress(httpx.TransportError):
                return self.client.get("/readyz").status_code == httpx.codes.OK
            return False

        wait_for(is_ready, lambda: f"the API is ready: {self.log('api')}")

    def keep_running(self, *names: str) -> None:
        """Start again what has ended by itself, as a supervisor does: a busy machine makes Spark give up."""
        for name in names:
            if self._running[name].poll() is not None:
                self.kill(name)
                self.start(name, *self._commands[name])

    def start_streams(self) -> None:
        self.start("backup", "backup")
        self.start("pipeline", "pipeline", "run")

    def log(self, name: str) -> str:
        """Return the end of a process's output."""
        with suppress(OSError):
            return (self.home / "logs" / f"{name}.log").read_text(errors="replace")[-3000:]
        return "no log"

    def kill(self, *names: str) -> None:
        """End processes and all that they started with SIGKILL: Spark and the jobs' drivers outlive the API."""
        for name in names:
            process = self._running.pop(name)
            process.kill()
            process.wait()
            _kill_pids(_pids_with(self._armed(name)))

    def drain(self, name: str) -> int:
        """Ask a process to end and return its exit code."""
        process = self._running.pop(name)
        process.terminate()
        try:
            return process.wait(60)
        finally:
            _kill_pids(_pids_with(self._armed(name)))

    def kill_all(self) -> None:
        """End everything of this home with SIGKILL."""
        self.kill(*self._running)
        variable = f"REFEED_HOME={self.home}"
        _kill_pids(_pids_with(variable))
        wait_for(lambda: not _pids_with(variable), "every process of the home is gone", 30)

    # -- failpoints

    def _armed(self, name: str) -> str:
        """Return the variable that a process and all that it starts have."""
        return f"REFEED_FAILPOINTS={self.home / 'failpoints' / name}"

    def arm(self, name: str, failpoint: str, *, skip: int = 0) -> None:
        """Let the process kill itself where it passes ``failpoint``."""
        folder = self.home / "failpoints" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{failpoint}.hit").unlink(missing_ok=True)
        (folder / failpoint).write_text(str(skip))

    def is_hit(self, name: str, failpoint: str) -> bool:
        return (self.home / "failpoints" / name / f"{failpoint}.hit").exists()

    def kill_at(self, points: Mapping[str, str]) -> None:
        for name, failpoint in points.items():

            def is_hit(name: str = name, failpoint: str = failpoint) -> bool:
                if self.is_hit(name, failpoint):
                    return True
                self.keep_running(name)
                return False

            wait_for(is_hit, lambda n=name, f=failpoint: f"{n} passes {f}: {self.log(n)}")
            self.kill(name)

    # -- HTTP and files

    def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        answer = self.client.request(method, path, json=body)
        assert answer.is_success, f"{method} {path}: {answer.text}"
        return dict(answer.json())

    def wait_job(self, path: str, is_there: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        shown: dict[str, Any] = {}

        def look() -> bool:
            shown.update(self.ask("GET", path))
            return is_there(shown)

        wait_for(look, lambda: f"{path}: {shown}; {self.log('api')}")
        return shown

    def rows(self, folder: str, *columns: str) -> list[dict[str, Any]]:
        """Return rows of a table of the lake; one that is not there yet has none."""
        uri = str(self.home / "lake" / folder)
        if not DeltaTable.is_deltatable(uri):
            return []
        return DeltaTable(uri).to_pyarrow_table(columns=list(columns) or None).to_pylist()

    def archived(self) -> Counter[tuple[str, str]]:
        rows = self.rows("backup/messages", "topic", "message_id")
        return Counter((row["topic"], row["message_id"]) for row in rows)

    def staged(self) -> Counter[tuple[str, str]]:
        """Return how often each message is a row or a dead letter, replays apart, by topic and id."""
        found: Counter[tuple[str, str]] = Counter()
        for name, folder in TABLES.items():
            mark = "" if name == "dead letters" else "_"
            columns = [f"{mark}topic", f"{mark}message_id", *([f"{mark}backfill_id"] if mark else [])]
            found.update(
                (row[f"{mark}topic"], row[f"{mark}message_id"])
                for row in self.rows(folder, *columns)
                if not row.get("_backfill_id")
            )
        return found

    def backlog(self) -> int:
        """Return how many messages the streams have not acknowledged."""
        with grpc.insecure_channel(self.host) as channel:
            stats = json.loads(channel.unary_unary("/refeed.local.Stats/Get")(b"", timeout=10))
        return sum(
            each["undelivered_messages"] + each["leased_messages"]
            for name, each in stats.items()
            if f"/subscriptions/{AUDIENCE}" not in name
        )

    def journal(self) -> Counter[str]:
        """Return how many attempts the streams have journaled, by their state."""
        return Counter(path.name.split(".")[1] for path in (self.home / "streams").rglob("*.arrow"))

    # -- Pub/Sub

    def publish(self, record: Record, phase: str, **counts: int) -> None:
        """Publish new versions of entities to topics; every tenth message is no JSON."""
        publisher = PublisherClient(BatchSettings(max_messages=1000, max_latency=0.01))
        sent = []
        for topic, count in counts.items():
            version = 1 + len({m["attributes"]["phase"] for m in record.messages})
            for number in range(count):
                body = _body(topic, number, version)
                # Events are of any shape, and replays are whole.
                data = NOT_JSON if number % 10 == 9 and topic == "members" else json.dumps(body).encode()
                attributes = {"phase": phase, "n": str(number), "ключ": "värde🙂"}
                future = publisher.publish(publisher.topic_path(PROJECT, topic), data, **attributes)
                sent.append((topic, data, attributes, future))
        for topic, data, attributes, future in sent:
            record.messages.append(
                {
                    "topic": topic,
                    "id": future.result(60),
                    "data": base64.b64encode(data).decode(),
                    "attributes": attributes,
                }
            )
        publisher.stop()

    def void_acks(self) -> None:
        """Make the ids void by which the streams would acknowledge what they hold: all of it is delivered again.

        That is a seek: before the first message, of those that are not acknowledged.
        """
        with SubscriberClient() as subscriber:
            for found in subscriber.list_subscriptions(project=f"projects/{PROJECT}"):
                if not found.name.endswith(f"/{AUDIENCE}"):
                    subscriber.seek({"subscription": found.name, "time": datetime(2020, 1, 1, tzinfo=UTC)})

    def redelivered(self) -> dict[str, float]:
        """Return how many messages came to each stream again and were not written again, as the API has it."""
        found = re.findall(
            r'^refeed_stream_redelivered_total\{.*?stream="([^"]+)".*?\} (\S+)$',
            self.client.get("/metrics").text,
            re.MULTILINE,
        )
        return {stream: float(count) for stream, count in found}

    def listen(self) -> list[Any]:
        """Take everything that the audience has."""
        heard: list[Any] = []
        with SubscriberClient() as subscriber:
            path = subscriber.subscription_path(PROJECT, AUDIENCE)
            while True:
                try:
                    found = subscriber.pull(subscription=path, max_messages=1000, timeout=3).received_messages
                except DeadlineExceeded:
                    return heard
                if not found:
                    return heard
                subscriber.acknowledge(subscription=path, ack_ids=[each.ack_id for each in found])
                heard += [each.message for each in found]


def wait_until_all_is_in(system: System, record: Record) -> None:
    """Wait until everything published is archived and staged, and nothing is on its way any more."""
    wanted = {(message["topic"], message["id"]) for message in record.messages}

    def is_in() -> bool:
        system.keep_running("backup", "pipeline")
        return set(system.archived()) == wanted == set(system.staged()) and system.backlog() == 0

    wait_for(is_in, lambda: f"all is archived and staged: {system.log('backup')}{system.log('pipeline')}")


def _body(topic: str, number: int, version: int) -> dict[str, Any]:
    match topic:
        case "orders":
            return {"id": number, "version": version, "customer": f"c{number}"}
        case "members":
            return {"id": number, "version": version, "tags": ["a"] * (number % 3)}
    shapes: Iterable[dict[str, Any]] = ({"n": number}, {"n": number, "who": {"name": "Ann"}}, {"tags": ["x", "y"]})
    return [*shapes][number % 3]


def _pids_with(variable: str) -> list[int]:
    """Return the processes, but for this one, whose environment has ``variable``, as in ``NAME=value``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def _kill_pids(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
