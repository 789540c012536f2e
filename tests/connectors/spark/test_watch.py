import socket
import subprocess
import sys
import threading
from contextlib import suppress

from connectors.spark.watch import GONE_EXIT_CODE, leaving_without_server

DRIVER = """
import sys, time
from connectors.spark.watch import leaving_without_server
with leaving_without_server(sys.argv[1]):
    print("watching", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def start_driver(remote: str, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", DRIVER, remote, str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_driver_ends_when_nobody_listens_at_its_server_any_more_and_not_while_somebody_does():
    with socket.create_server(("127.0.0.1", 0)) as server:
        remote = f"sc://127.0.0.1:{server.getsockname()[1]}"
        answering = threading.Thread(target=accept_all, args=(server,), daemon=True)
        answering.start()
        # Three looks a second apart see it there.
        with start_driver(remote, 4.0) as lucky:
            assert lucky.wait(60) == 0
        with start_driver(remote, 120.0) as driver:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "watching\n"
            server.shutdown(socket.SHUT_RDWR)
            server.close()
            assert driver.wait(60) == GONE_EXIT_CODE


def accept_all(server: socket.socket) -> None:
    with suppress(OSError):
        while True:
            server.accept()[0].close()


def test_nothing_is_watched_where_spark_is_in_the_driver_itself():
    before = threading.active_count()
    with leaving_without_server(None):
        assert threading.active_count() == before
