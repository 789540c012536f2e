"""A program that is started while gRPC is busy starts."""

import os
import subprocess
import sys

import pytest

FORKS = 400
# What connectors/ sets is read once, when gRPC begins, so a process of its own tries it.
PROGRAM = f"""
import os, subprocess, threading
from concurrent.futures import ThreadPoolExecutor

import connectors
import grpc

class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)

server = grpc.server(ThreadPoolExecutor(8))
server.add_generic_rpc_handlers((Echo(),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()

def call():
    with grpc.insecure_channel(f"127.0.0.1:{{port}}") as channel:
        echo = channel.unary_unary("/test/echo")
        while True:
            echo(b"x")

for _ in range(4):
    threading.Thread(target=call, daemon=True).start()
# With a function to call before the program, as PySpark starts its JVM, subprocess forks.
codes = [subprocess.run(["/bin/true"], preexec_fn=lambda: None).returncode for _ in range({FORKS})]
print(sorted(set(codes)), flush=True)
os._exit(0)
"""


@pytest.mark.timeout(120)
def test_a_program_starts_while_grpc_is_busy() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        timeout=100,
    )
    assert done.stdout == "[0]\n", done.stderr[-2000:]
