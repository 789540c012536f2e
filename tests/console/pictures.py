"""Takes the README's pictures: ``python -m tests.console.pictures docs/img`` runs the demo and photographs it."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from client.api import RefeedApi
from tests.console.tab import start_chromium

# Both together are in the README; a page on a small screen still shows them sharp.
SIZE = {"width": 1280, "height": 720}
MOST_BYTES = 200_000
_END_SECONDS = 180


@contextmanager
def run_demo(*arguments: str) -> Iterator[str]:
    """Run ``refeed demo --console``, give its console's address once all is there, and end it as Ctrl-C does."""
    command = [sys.executable, "-m", "cli.main", "demo", "--console", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as demo:
        said: list[str] = []
        try:
            for line in demo.stderr:
                said.append(line)
                if line.startswith("console  "):
                    yield line.split()[1]
                    break
            else:
                raise AssertionError("".join(said))
        finally:
            demo.send_signal(signal.SIGINT)
            # What it still says is read, so that it never waits for that.
            rest, _ = "".join(demo.stderr or ()), demo.wait(_END_SECONDS)
        assert demo.returncode == 0, "".join(said) + rest


def take_pictures(console: str, folder: Path) -> list[Path]:
    """Photograph the topics with the hole, and a backfill that landed."""
    with RefeedApi(console.removesuffix("/console")) as api:
        (job,) = api.jobs.list(label=["ticket:shop-17"], page_size=1)["jobs"]
    taken = []
    with start_chromium() as browser:
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        for name, path in (("topics", "/topics"), ("backfill", f"/jobs/{job['id']}")):
            page.goto(console + path)
            page.wait_for_selector("#as-of time")
            picture = folder / f"{name}.png"
            page.screenshot(path=picture)
            assert picture.stat().st_size < MOST_BYTES, picture
            taken.append(picture)
    return taken


if __name__ == "__main__":
    with run_demo() as address:
        for taken_one in take_pictures(address, Path(sys.argv[1])):
            sys.stdout.write(f"{taken_one}\n")
