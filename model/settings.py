"""What a deployment chooses: read once from the environment at the entry, every fault reported together."""

import os
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from model.errors import SettingsError
from model.table import DEFAULT_ARCHIVE_TABLE, Partitioning

DEFAULT_PROJECT: Final = "refeed-local"


@dataclass(frozen=True, slots=True)
class Settings:
    """One process's settings; ``.env.example`` lists the variables, their units and defaults."""

    home: Path
    project: str
    pubsub_emulator_host: str | None
    secret: str | None
    archive_table: str
    archive_partitioning: Partitioning
    lake: str
    ack_deadline_seconds: int
    backup_slots: int
    backup_batch_seconds: float
    backup_batch_bytes: int
    known_ids_seconds: int
    spark_master: str
    spark_driver_memory: str
    launcher: str
    connect_url: str | None
    max_running: int
    max_window_days: int
    query_memory: str
    max_body_bytes: int

    @property
    def is_embedded(self) -> bool:
        """Whether Pub/Sub is a local server; then missing topics are created on the way."""
        return self.pubsub_emulator_host is not None

    def replay_secret(self) -> str:
        """Return REFEED_SECRET, or the one kept in the home, made at first use and readable by its owner only."""
        if self.secret:
            return self.secret
        path = self.home / "secret"
        if not path.exists():
            self.home.mkdir(parents=True, exist_ok=True)
            # A name of its own for every thread too: a shared one could be linked half written.
            temporary = path.with_suffix(f".{secrets.token_hex(8)}")
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32))
            try:
                # link fails when another process was first: then that one's secret counts.
                os.link(temporary, path)
            except FileExistsError:
                pass
            finally:
                temporary.unlink()
        return path.read_text().strip()


def read_settings(env: Mapping[str, str], *, home: Path | None = None) -> Settings:
    """Return the settings that ``env`` describes; ``home`` wins over REFEED_HOME.

    Raises:
        SettingsError: one or more variables are wrong; the message names them all.

    Example:
        >>> read_settings({"REFEED_HOME": "/tmp/h"}).archive_table
        'backup.messages'
    """
    faults: list[str] = []

    def get(name: str, default: str, parse: Callable[[str], Any]) -> Any:
        text = env.get(name) or default
        try:
            return parse(text)
        except ValueError as exc:
            faults.append(f"{name}={text!r}: {exc}")
            return None

    where = home or Path(env.get("REFEED_HOME") or Path(env.get("HOME", "/")) / ".refeed").expanduser()
    settings = Settings(
        home=where.absolute(),
        project=get("REFEED_PROJECT", env.get("GOOGLE_CLOUD_PROJECT") or DEFAULT_PROJECT, _project),
        pubsub_emulator_host=env.get("PUBSUB_EMULATOR_HOST") or None,
        secret=env.get("REFEED_SECRET") or None,
        archive_table=get("REFEED_ARCHIVE_TABLE", DEFAULT_ARCHIVE_TABLE, _table),
        archive_partitioning=get("REFEED_ARCHIVE_PARTITIONING", "day", _one_of("day", "hour")),
        lake=get("REFEED_LAKE", str(where.absolute() / "lake"), str),
        ack_deadline_seconds=get("REFEED_ACK_DEADLINE_SECONDS", "60", _whole(10, 600)),
        backup_slots=get("REFEED_BACKUP_SLOTS", "2", _whole(1, 1000)),
        backup_batch_seconds=get("REFEED_BACKUP_BATCH_SECONDS", "1.0", _number(0.05, 300)),
        backup_batch_bytes=get("REFEED_BACKUP_BATCH_BYTES", str(256 * 1024 * 1024), _whole(1_000_000, 1 << 40)),
        known_ids_seconds=get("REFEED_KNOWN_IDS_SECONDS", "600", _whole(0, 7 * 86400)),
        spark_master=get("REFEED_SPARK_MASTER", "local[2,4]", str),
        spark_driver_memory=get("REFEED_SPARK_DRIVER_MEMORY", "1g", _memory),
        launcher=get("REFEED_LAUNCHER", "connect", _one_of("connect", "spark-submit")),
        connect_url=env.get("REFEED_CONNECT_URL") or None,
        max_running=get("REFEED_MAX_RUNNING", "4", _whole(1, 1000)),
        max_window_days=get("REFEED_MAX_WINDOW_DAYS", "366", _whole(1, 36600)),
        query_memory=get("REFEED_QUERY_MEMORY", "2GB", _memory),
        max_body_bytes=get("REFEED_MAX_BODY_BYTES", str(256 * 1024), _whole(1024, 1 << 30)),
    )
    if faults:
        raise SettingsError("Wrong settings: " + "; ".join(faults), faults=faults)
    return settings


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,15}", text) or not low <= int(text) <= high:
            raise ValueError(f"takes a whole number from {low} to {high}")
        return int(text)

    return parse


def _number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text) or not low <= float(text) <= high:
            raise ValueError(f"takes a number from {low} to {high}")
        return float(text)

    return parse


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"takes one of {', '.join(choices)}")
        return text

    return parse


def _project(text: str) -> str:
    if not re.fullmatch(r"(?:[a-z][a-z0-9.\-]*:)?[a-z][a-z0-9\-]{2,60}", text):
        raise ValueError("takes a Google Cloud project id")
    return text


def _table(text: str) -> str:
    if not re.fullmatch(r"(?:[a-z][a-z0-9.:\-]*\.)?\w+\.\w+", text):
        raise ValueError("takes dataset.table or project.dataset.table")
    return text


def _memory(text: str) -> str:
    if not re.fullmatch(r"\d{1,6}(?:[kmgKMG][bB]?)", text):
        raise ValueError("takes a size such as 512m or 2GB")
    return text
