"""What all launchers of tests have in common."""

from jobs.launcher import Launch
from model.errors import LaunchError
from model.process import Driver


class IdleLauncher:
    """Launches nothing, and needs nothing; a test's own launcher has what it does beside that."""

    def prepare(self) -> None: ...

    def close(self) -> None: ...

    def kill(self, driver: Driver) -> None: ...

    def launch(self, launch: Launch) -> Driver:
        raise LaunchError(f"{launch.name} is not launched in this test.")

    def exit_reason(self, driver: Driver) -> str | None:
        return None
