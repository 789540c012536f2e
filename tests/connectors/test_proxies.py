"""No client of Refeed's asks a proxy for its own machine."""

import os
import subprocess
import sys

import pytest

# A client reads the environment once, so each test starts a process of its own.
PROGRAM = """
import sys
from connectors.pubsub.client import PubSub

with PubSub("shop", sys.argv[1]) as pubsub:
    print(pubsub.list_topics())
"""


@pytest.mark.parametrize("beyond", ["", "example.com"])
def test_the_local_server_is_reached_where_a_proxy_is_set(server, beyond):
    nobody = "http://127.0.0.1:9"
    environment = {
        **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
        **dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"), nobody),
        "NO_PROXY": beyond,
    }
    program = [sys.executable, "-c", PROGRAM, server.emulator_host]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "[]\n", done.stderr[-2000:]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("", "127.0.0.1,localhost,::1"),
        ("example.com", "example.com,127.0.0.1,localhost,::1"),
        ("localhost,127.0.0.1,::1", "localhost,127.0.0.1,::1"),
        ("*", "*"),
    ],
)
def test_what_else_goes_without_a_proxy_stays_and_nothing_is_named_twice(given, kept):
    program = "import connectors, os; print(os.environ['no_proxy'])"
    environment = {**os.environ, "no_proxy": given, "NO_PROXY": given}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == kept
