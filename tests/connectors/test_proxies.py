"""No client of Refeed's asks a proxy for its own machine."""

import os
import subprocess
import sys

import pytest

# What connectors/ sets is read once, so a process of its own tries it.
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
