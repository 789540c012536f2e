"""One replica of the service without its API: a supervisor whose drivers are shell scripts that take a moment."""

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from backfill.steer.kind import BACKFILL
from jobs.launcher import Launch, _Processes
from jobs.store import open_store
from jobs.supervisor import JobSupervisor
from model.process import Process

# What a real driver does, in short: it obeys the control, publishes, and says how it ended.
DRIVER = """
sleep "$SECONDS_TO_WORK"
if grep -q "\\"epoch\\":$EPOCH,\\"order\\":\\"run\\"" control.json; then
  # The checkpoint of a real one: an attempt before this may have ended while its replica stood still.
  if [ ! -e done ]; then
    echo "$JOB" >> ../../published
    touch done
  fi
  echo "{\\"epoch\\":$EPOCH,\\"state\\":\\"SUCCEEDED\\",\\"error\\":null}" > .outcome
  mv .outcome "outcome-$EPOCH.json"
fi
"""


@dataclass
class ShellLauncher:
    """Starts processes as the real launchers do, and writes each launch down."""

    home: Path
    seconds_to_work: str
    _processes: _Processes = field(default_factory=_Processes)

    def prepare(self) -> None: ...

    def close(self) -> None: ...

    def launch(self, launch: Launch) -> Process:
        epoch = json.loads(launch.argument)["epoch"]
        environment = {"EPOCH": str(epoch), "JOB": launch.name, "SECONDS_TO_WORK": self.seconds_to_work}
        driver = self._processes.start(["/bin/sh", "-c", DRIVER], environment, launch.log)
        with (self.home / "launched").open("ab", buffering=0) as file:
            file.write(f"{launch.name} {epoch} {os.getpid()}\n".encode())
        return driver

    def exit_reason(self, driver: Process) -> str | None:
        return self._processes.exit_reason(driver)

    def kill(self, driver: Process) -> None:
        self._processes.kill(driver)


def main(url: str, home: Path, seconds_to_work: str, lease_seconds: str) -> None:
    supervisor = JobSupervisor(
        BACKFILL,
        open_store(url),
        ShellLauncher(home, seconds_to_work),
        BACKFILL.open_folders(home),
        max_running=8,
        lease_seconds=float(lease_seconds),
    )
    supervisor.start()
    (home / f"ready-{os.getpid()}").touch()
    Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
