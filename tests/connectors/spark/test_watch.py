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


def start_driver(server: socket.socket, seconds: float) -> subprocess.Popen[str]:
    remote = f"sc://127.0.0.1:{server.getsockname()[1]}"
    command = [sys.executable, "-c", DRIVER, remote, str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_driver_ends_when_nobody_listens_at_its_server_any_more_and_not_while_somebody_does():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as gone:
        for each in (server, gone):
            threading.Thread(target=accept_all, args=(each,), daemon=True).start()
        # Three looks a second apart see it there.
        with start_driver(server, 4.0) as lucky, start_driver(gone, 120.0) as driver:
            assert driver.stdout.readline() == "watching\n"
            gone.shutdown(socket.SHUT_RDWR)
            gone.close()
            assert driver.wait(60) == GONE_EXIT_CODE
            assert lucky.wait(60) == 0


def accept_all(server: socket.socket) -> None:
    with suppress(OSError):
        while True:
            server.accept()[0].close()


def test_nothing_is_watched_where_spark_is_in_the_driver_itself():
    before = threading.active_count()
    with leaving_without_server(None):
        assert threading.active_count() == before
