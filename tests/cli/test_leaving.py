"""The end of a stream's process: its work is done, and nothing of the interpreter's own end can spoil it."""

import subprocess
import sys

# At the interpreter's end its modules are cleared, and with them what an extension still uses.
PROGRAM = """
import ctypes, logging, sys, threading, time
import typer
from cli.leaving import run_stream

class Broken:
    def __del__(self, read=ctypes.string_at):
        read(0)

broken = Broken()
logging.basicConfig(stream=sys.stderr, format="%(message)s")

def report_late():
    time.sleep(0.2)
    print("reported")

def run():
    threading.Thread(target=report_late).start()
    logging.getLogger().warning("drained")
    {ends}

try:
    run_stream(run)
except typer.Exit as exc:
    sys.exit(exc.exit_code)
"""


def run(ends: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(ends=ends)], check=False, capture_output=True, text=True, timeout=60
    )


def test_a_stream_s_exit_code_and_last_lines_arrive_whatever_the_interpreter_s_end_does() -> None:
    for code in (0, 7):
        ended = run(f"return {code}")
        assert (ended.returncode, ended.stderr, ended.stdout) == (code, "drained\n", "reported\n")


def test_an_error_of_a_stream_goes_the_usual_way() -> None:
    ended = run("raise ValueError('no lease')")
    assert ended.returncode != 0
    assert "ValueError: no lease" in ended.stderr
