"""Two watchers of one folder or bucket, by a clock that the test moves."""

from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from jobs.files import Files
from jobs.store import JobStore
from model.principal import SCOPES, UPLOAD_SCOPES, Principal
from rollout.manifests.service import ManifestService
from rollout.manifests.upload_status import UploadStatus
from rollout.manifests.uploads import LOOK_SECONDS, SETTLE_SECONDS, UploadWatcher

ANN: Final = Principal("ann", frozenset(SCOPES))
SNAPSHOT: Final = (
    "kind: Schedule\nname: {}\ncron: {} * * * *\njob: {{kind: snapshot, request: {{stream: backup}}}}\n"
)


@cache
def _empty_store() -> bytes:
    """Return the file of a store in which nothing is: to make it takes longer than most tests."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.db"
        JobStore(path).close()
        return path.read_bytes()


class Yard:
    """A store whose clock the test moves, and the watchers of two replicas; ``hints`` are those of each."""

    def __init__(self, tmp_path: Path, files: Files, hints: tuple[Any, Any] = (None, None)) -> None:
        self.files = files
        self.seconds = 0.0
        self.start = datetime(2026, 3, 2, tzinfo=UTC)
        path = tmp_path / "jobs.db"
        path.write_bytes(_empty_store())
        self.store = JobStore(path)
        self.store._database.now = lambda _: self.start + timedelta(seconds=self.seconds)  # type: ignore[method-assign]
        self.service = ManifestService(self.store)
        self.principal = Principal(f"upload:{files}", UPLOAD_SCOPES)
        self.status = UploadStatus(self.store, self.principal.name)
        self.watchers = [self.open(hints=each) for each in hints]

    def open(self, principal: Principal | None = None, hints: Any = None) -> UploadWatcher:
        return UploadWatcher(
            self.store,
            self.service,
            self.files,
            principal or self.principal,
            hints=hints,
            tick_seconds=0.05,
            steady=lambda: self.seconds,
        )

    def go(self, seconds: float = LOOK_SECONDS + SETTLE_SECONDS + 2) -> None:
        """Let time pass with both replicas looking, each second and not as often in long times."""
        until, step = self.seconds + seconds, max(1.0, seconds // 15)
        while self.seconds < until:
            for watcher in self.watchers:
                watcher.tick()
            self.seconds += step

    def names(self) -> list[str]:
        return [record.name for record in self.store.list_manifests()]

    def fault(self, file: str) -> str | None:
        return next(each.fault for each in self.status.list_uploads(principal=ANN) if each.file == file)

    def gone(self) -> set[str]:
        """The files that are told to have gone."""
        return {each.file for each in self.status.list_uploads(principal=ANN) if each.gone_at is not None}

    def problem(self) -> str | None:
        found = self.status.find_problem(principal=ANN)
        return None if found is None else found.fault

    def audit(self) -> list[tuple[str, str, str]]:
        """What was done and refused, oldest first."""
        lines = self.store.list_audit(100)[::-1]
        assert {line.actor for line in lines} <= {self.principal.name}
        return [(line.action, line.target, line.outcome) for line in lines]
