"""The API over real sockets, as it is served, without Spark."""

import socket
import sys
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import structlog

from api.server import Server, make_config
from api.state import state_of
from app.deployment import Deployment
from app.service import create_app
from connectors.pubsub.client import PubSub
from jobs.keys import Keyring
from jobs.store import JobStore
from local.server import PubSubServer
from model.settings import read_settings
from tests.api.terminal import refeed
from tests.issuer import issuer, keys_by_kind
from tests.waiting import wait_until
from tests.worlds.launchers import IdleLauncher

__all__ = ["issuer", "keys_by_kind", "refeed"]

_SECONDS = 20.0
TOPICS = ("replay", "orders", "other", "examples", "planned", "steered")


class _NoSpark(IdleLauncher):
    """A launcher that launches nothing."""

    def exit_reason(self, driver):
        return "gone"


@dataclass
class Api:
    """An API that is served, its home, its settings, its job store and its Pub/Sub, which has TOPICS."""

    home: Path
    port: int
    environment: dict[str, str]
    store: JobStore
    pubsub: PubSub

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def client(self, token=None, **headers):
        given = {} if token is None else {"Authorization": f"Bearer {token}"}
        # Reading the system's certificates takes longer than most tests, and here is no TLS.
        return httpx.Client(base_url=self.url, headers={**given, **headers}, timeout=_SECONDS, verify=False)

    def make_key(self, *scopes, name="ci", **options):
        return Keyring(self.store).create(name, scopes, **options)[1]

    def audit(self):
        """The audit log, oldest line first."""
        return self.store.list_audit(1000)[::-1]

    def send_raw(self, content, seconds=10.0):
        """What comes back for bytes that no client would send, until the other side closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            connection.sendall(content)
            answer = b""
            while chunk := connection.recv(65536):
                answer += chunk
        return answer


@contextmanager
def serve_api(home, environment, *, port=0, launcher=None):
    """Serve an API with this home, on a free port unless one is given; without ``launcher`` it runs no jobs."""
    with ExitStack() as stack:
        pubsub = stack.enter_context(PubSubServer(home / "pubsub"))
        # With the protocol named, asyncio lets answers go at once instead of 40 ms later.
        listener = stack.enter_context(socket.socket(proto=socket.IPPROTO_TCP))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        # A setting may hold the API's own address.
        environment = {
            name: value.replace("{port}", str(listener.getsockname()[1])) for name, value in environment.items()
        }
        given = {"REFEED_HOME": str(home), "PUBSUB_EMULATOR_HOST": pubsub.emulator_host, "REFEED_MAX_RUNNING": "1"}
        environment = {**given, **environment}
        settings = read_settings(environment)
        administration = stack.enter_context(PubSub(settings.project, pubsub.emulator_host))
        for topic in TOPICS:
            administration.create_topic(topic)
        store = JobStore(settings.job_store)
        stack.callback(store.close)
        app = create_app(settings, deployment=Deployment(settings, launcher=launcher or _NoSpark()))
        server = Server(state_of(app), make_config(app, head_seconds=settings.body_timeout_seconds))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            wait_until(lambda: server.started or not thread.is_alive(), "it listens")
            assert server.started, "the server ended before it listened"
            yield Api(home, listener.getsockname()[1], environment, store, administration)
        finally:
            server.should_exit = True
            thread.join(_SECONDS)
            assert not thread.is_alive()


@pytest.fixture(scope="module", autouse=True)
def plain_log():
    """Tracebacks without the values of all variables, which take seconds to draw; not among a command's output."""
    structlog.configure(
        processors=[structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)],
        logger_factory=structlog.PrintLoggerFactory(sys.__stderr__),
    )
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def start_api(tmp_path_factory):
    """Serve an API with a home of its own and these variables, until the module's tests are over."""
    with ExitStack() as stack:

        def start(**environment):
            return stack.enter_context(serve_api(tmp_path_factory.mktemp("home"), environment))

        yield start


@pytest.fixture(scope="module")
def served(start_api):
    return start_api()


@pytest.fixture(scope="module")
def api(served):
    """Serve an API with the default settings; a module whose tests undo what they do has its own fixture."""
    return served


@pytest.fixture
def client(api):
    with api.client() as client:
        yield client
