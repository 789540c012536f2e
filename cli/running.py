"""What a running ``refeed up`` says of itself in its home, so that other commands find it."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from model.disk import replace_text
from model.errors import SettingsError
from model.home import find_home
from model.process import Process

if TYPE_CHECKING:
    from model.settings import Settings


@dataclass(frozen=True, slots=True)
class RunningUp:
    """One ``refeed up``: where its services are, its own process, and those of its services by name.

    ``settings`` are those of :func:`shared_settings`.
    """

    api_url: str
    pubsub_emulator_host: str
    project: str
    up: Process
    processes: Mapping[str, Process]
    settings: Mapping[str, str | None] = field(default_factory=dict)

    def write(self, record: Path) -> None:
        """Replace ``record`` with this.

        Raises:
            OSError: the disk did not take it; ``record`` is as it was.
        """
        replace_text(record, json.dumps(asdict(self)))

    @classmethod
    def read(cls, record: Path) -> Self | None:
        """Return what ``record`` says, None when there is none or it has another shape."""
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            found = json.loads(record.read_text())
            processes = {str(name): Process(**fields) for name, fields in found["processes"].items()}
            addresses = str(found["api_url"]), str(found["pubsub_emulator_host"])
            settings = dict(found.get("settings", {}))
            return cls(*addresses, str(found["project"]), Process(**found["up"]), processes, settings)
        return None

    @classmethod
    def of(
        cls, api_url: str, emulator_host: str, settings: "Settings", *, up: Process, pids: Mapping[str, int]
    ) -> Self:
        """Return it with the processes of its services that run."""
        found = {name: Process.of(pid) for name, pid in pids.items()}
        alive = {name: one for name, one in found.items() if one}
        return cls(api_url, emulator_host, settings.project, up, alive, shared_settings(settings))

    def complete(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        """Return ``environment`` with the services' settings that it lacks, if it is of the same project.

        Raises:
            SettingsError: it lacks a secret of the services, which the record does not have.
        """
        missing = {name: value for name, value in self.settings.items() if name not in environment}
        shared = {"PUBSUB_EMULATOR_HOST": self.pubsub_emulator_host, **missing}
        if not {"REFEED_PROJECT", "GOOGLE_CLOUD_PROJECT"} & environment.keys():
            shared["REFEED_PROJECT"] = self.project
        if _project_of({**shared, **environment}) != self.project:
            return environment
        faults = [
            f"{name} is not set, but the running 'refeed up' of this home has it: set it to the same value"
            for name, value in missing.items()
            if value is None
        ]
        if faults:
            raise SettingsError("Wrong settings: " + "; ".join(faults), faults=faults)
        return {name: value for name, value in {**shared, **environment}.items() if value is not None}

    def differences(self, settings: "Settings") -> Iterable[tuple[str, str, str]]:
        """Yield each shared setting that differs: the variable, its value here, and its value in the services."""
        if settings.project != self.project:
            yield "REFEED_PROJECT", settings.project, self.project
            return
        own = shared_settings(settings)
        for name, value in self.settings.items():
            if name in own and own[name] != value:
                here, there = ("a secret" if each is None else each or "not set" for each in (own[name], value))
                yield name, here, there

    def left(self) -> Iterable[tuple[str, Process]]:
        """Return the processes of its services that still run, with their names."""
        return [(name, process) for name, process in self.processes.items() if process.is_alive]


def shared_settings(settings: "Settings") -> dict[str, str | None]:
    """Return the settings that a home's services and commands must have in common, by variable.

    They say where tables, files and jobs are. A value is empty where the variable is not set, and None if it is a
    secret.
    """
    bigquery = settings.bigquery
    store = settings.job_store if settings.has_own_store else ""
    registry = settings.registry
    return {
        "REFEED_REGISTRY": registry if "://" in registry else str(Path(registry).absolute()),
        "REFEED_LAKE": settings.lake,
        "REFEED_WAREHOUSE": settings.warehouse,
        "REFEED_ARCHIVE_TABLE": settings.archive_table,
        "REFEED_ARCHIVE_PARTITIONING": settings.archive_partitioning,
        "REFEED_DEAD_LETTER_TABLE": settings.dead_letter_table,
        "REFEED_QUERY_TABLES": ",".join(settings.query_tables),
        "REFEED_TEMPLATES": settings.templates,
        "REFEED_MANIFESTS": settings.manifests or "",
        "REFEED_JOBS_FOLDER": settings.jobs_folder or "",
        "REFEED_JOB_STORE": None if urlsplit(store).password else store,
        "REFEED_SECRET": None if settings.secret else "",
        "REFEED_PUBSUB_ENDPOINT": settings.pubsub_endpoint or "",
        "REFEED_BACKUP_LABEL": "=".join(settings.backup_label or ()),
        "REFEED_BIGQUERY_LOCATION": bigquery.location,
        "BIGQUERY_EMULATOR_HOST": bigquery.host or "",
        "REFEED_BIGQUERY_STORAGE_HOST": bigquery.storage_host or "",
        "REFEED_BIGQUERY_KMS_KEY": bigquery.kms_key or "",
    }


def _project_of(environment: Mapping[str, str | None]) -> str:
    from model.settings import DEFAULT_PROJECT

    return environment.get("REFEED_PROJECT") or environment.get("GOOGLE_CLOUD_PROJECT") or DEFAULT_PROJECT


def record_of(home: Path) -> Path:
    """Return where an ``up`` on ``home`` writes what it is."""
    return home / "run" / "up.json"


def find_running(environment: Mapping[str, str]) -> RunningUp | None:
    """Return the ``refeed up`` that runs on this environment's home; what a dead one left is not one."""
    found = RunningUp.read(record_of(find_home(environment)))
    return found if found is not None and found.up.is_alive else None
