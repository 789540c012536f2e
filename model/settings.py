"""What a deployment chooses: read once from the environment at the entry, every fault reported together."""

import json
import os
import re
import secrets
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import time
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from model.declaration import FieldSpec
from model.errors import SettingsError
from model.label import parse_label
from model.principal import Grant, parse_grants
from model.stream_options import BATCH_BYTES, BATCH_SECONDS, KNOWN_IDS_SECONDS, MESSAGE_BYTES, SLOTS
from model.table import DEFAULT_ARCHIVE_TABLE, DEFAULT_DEAD_LETTER_TABLE, Partitioning, Warehouse

DEFAULT_PROJECT: Final = "refeed-local"


@dataclass(frozen=True, slots=True)
class BigQuerySettings:
    """Where and how BigQuery keeps the tables; labels are pairs, so that the object stays hashable.

    ``host`` and ``storage_host`` are a stand-in's REST URL and gRPC ``host:port``; without them Google is meant.
    ``append_bytes`` is the largest append request, ``streams_per_hour`` what a stream may create of the quota,
    ``merge_max_bytes_billed`` what each query of a merge, or of a stream that learns its ids, may cost. Each task
    of a backup appends over ``streams_per_task`` streams at once, as many connections, where it has rows for them.
    """

    location: str
    host: str | None
    storage_host: str | None
    is_regional: bool
    partition_expiration_days: int
    require_partition_filter: bool
    kms_key: str | None
    labels: tuple[tuple[str, str], ...]
    append_bytes: int
    streams_per_hour: int
    merge_max_bytes_billed: int = 10**12
    streams_per_task: int = 1

    def check_hosts(self) -> None:
        """Say so when half of a stand-in is named: the other half would be Google's own.

        Raises:
            SettingsError: one host is given without the other.
        """
        if (self.host is None) != (self.storage_host is None):
            raise SettingsError(
                "BIGQUERY_EMULATOR_HOST and REFEED_BIGQUERY_STORAGE_HOST belong together: set both for a "
                "stand-in, neither for Google BigQuery."
            )


@dataclass(frozen=True, slots=True)
class DataprocSettings:
    """Where batches of Dataproc Serverless run, and as what; ``host`` is a stand-in's gRPC ``host:port``."""

    region: str | None
    image: str | None
    runtime_version: str
    service_account: str | None
    subnetwork: str | None
    history_server: str | None
    ttl_seconds: int
    labels: tuple[tuple[str, str], ...]
    host: str | None


# What Standard Webhooks asks of a secret.
_MIN_SECRET_BYTES: Final = 24
_MAX_SECRET_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Settings:
    """One process's settings; ``.env.example`` lists the variables, their units and defaults."""

    home: Path
    project: str
    pubsub_emulator_host: str | None
    pubsub_endpoint: str | None
    secret: str | None
    archive_table: str
    archive_partitioning: Partitioning
    warehouse: Warehouse
    lake: str
    bigquery: BigQuerySettings
    ack_deadline_seconds: int
    backup_label: tuple[str, str] | None
    backup_slots: int
    backup_batch_seconds: float
    backup_batch_bytes: int
    known_ids_seconds: int
    registry: str
    registry_poll_seconds: float
    dead_letter_table: str
    pipeline_slots: int
    pipeline_batch_seconds: float
    pipeline_batch_bytes: int
    pipeline_message_bytes: int
    spark_master: str
    spark_driver_memory: str
    spark_conf: Mapping[str, str]
    job_store: str
    keep_job_days: int
    jobs_folder: str | None
    merge_at: time | None
    templates: str
    launcher: str
    connect_url: str | None
    dataproc: DataprocSettings
    max_running: int
    pause_idle_seconds: float
    approval_rows: int
    selection_max_rows: int
    selection_max_bytes: int
    min_free_disk_bytes: int
    max_window_days: int
    query_tables: tuple[str, ...]
    plan_seconds: int
    price_usd_per_tib: float | None
    query_memory: str
    max_body_bytes: int
    body_timeout_seconds: float
    answer_timeout_seconds: float
    rate_limit_per_minute: int
    oidc_issuer: str | None
    oidc_audience: tuple[str, ...]
    oidc_jwks_url: str | None
    oidc_scopes_claim: str
    oidc_grants: tuple[Grant, ...]
    notify_url: str | None
    notify_secret: str | None
    collector_topics: tuple[str, ...]
    collector_settings: Path | None
    collector_queue_bytes: int

    @property
    def is_embedded(self) -> bool:
        """Whether Pub/Sub is a local server; then missing topics are created on the way."""
        return self.pubsub_emulator_host is not None

    @property
    def pubsub_address(self) -> str | None:
        """Where Pub/Sub is, as channels take it: a local server's host:port, an endpoint's URL, or the global one.

        None is Google's global endpoint. A local server wins over an endpoint.
        """
        if self.pubsub_emulator_host is not None or self.pubsub_endpoint is None:
            return self.pubsub_emulator_host
        return f"https://{self.pubsub_endpoint}"

    @property
    def has_own_store(self) -> bool:
        """Whether jobs are kept elsewhere than in the home, so that processes without this home find them."""
        return self.job_store != _home_store(self.home)

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


def find_home(env: Mapping[str, str]) -> Path:
    """Return REFEED_HOME, else ``.refeed`` in the user's home folder.

    Example:
        >>> find_home({"REFEED_HOME": "/tmp/h"}).name, find_home({"HOME": "/home/ann"}).name
        ('h', '.refeed')
    """
    return Path(env.get("REFEED_HOME") or Path(env.get("HOME", "/")) / ".refeed").expanduser().absolute()


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
            # A url may hold a password.
            shown = "(hidden)" if name.endswith("_SECRET") else repr(re.sub(r"(?<=://)[^@]*@", "***@", text))
            faults.append(f"{name}={shown}: {exc}")
            return None

    where = find_home(env) if home is None else home
    settings = Settings(
        home=where.absolute(),
        project=get("REFEED_PROJECT", env.get("GOOGLE_CLOUD_PROJECT") or DEFAULT_PROJECT, _project),
        pubsub_emulator_host=env.get("PUBSUB_EMULATOR_HOST") or None,
        pubsub_endpoint=get("REFEED_PUBSUB_ENDPOINT", "", _optional(_google_host)),
        secret=env.get("REFEED_SECRET") or None,
        archive_table=get("REFEED_ARCHIVE_TABLE", DEFAULT_ARCHIVE_TABLE, _table),
        archive_partitioning=get("REFEED_ARCHIVE_PARTITIONING", "day", _one_of("day", "hour")),
        warehouse=get("REFEED_WAREHOUSE", "lake", _one_of("lake", "bigquery")),
        lake=get("REFEED_LAKE", str(where.absolute() / "lake"), str),
        bigquery=BigQuerySettings(
            location=get("REFEED_BIGQUERY_LOCATION", "US", _location),
            host=get("BIGQUERY_EMULATOR_HOST", "", _url),
            storage_host=env.get("REFEED_BIGQUERY_STORAGE_HOST") or None,
            is_regional=get("REFEED_BIGQUERY_REGIONAL_ENDPOINTS", "false", _flag),
            partition_expiration_days=get("REFEED_BIGQUERY_PARTITION_EXPIRATION_DAYS", "0", _whole(0, 36500)),
            require_partition_filter=get("REFEED_BIGQUERY_REQUIRE_PARTITION_FILTER", "true", _flag),
            kms_key=get("REFEED_BIGQUERY_KMS_KEY", "", _kms_key),
            labels=get("REFEED_BIGQUERY_LABELS", "", _labels),
            append_bytes=get("REFEED_BIGQUERY_APPEND_BYTES", "19000000", _whole(100_000, 19_500_000)),
            streams_per_hour=get("REFEED_BIGQUERY_STREAMS_PER_HOUR", "8000", _whole(60, 10_000_000)),
            streams_per_task=get("REFEED_BIGQUERY_STREAMS_PER_TASK", "1", _whole(1, 16)),
            merge_max_bytes_billed=get(
                "REFEED_BIGQUERY_MERGE_MAX_BYTES_BILLED", str(10**12), _whole(10 * 2**20, 10**18)
            ),
        ),
        ack_deadline_seconds=get("REFEED_ACK_DEADLINE_SECONDS", "60", _whole(10, 600)),
        backup_label=get("REFEED_BACKUP_LABEL", "", _optional(parse_label)),
        backup_slots=get("REFEED_BACKUP_SLOTS", "2", _within(SLOTS)),
        backup_batch_seconds=get("REFEED_BACKUP_BATCH_SECONDS", "1.0", _within(BATCH_SECONDS, _number)),
        backup_batch_bytes=get("REFEED_BACKUP_BATCH_BYTES", str(256 * 1024 * 1024), _within(BATCH_BYTES)),
        known_ids_seconds=get("REFEED_KNOWN_IDS_SECONDS", "600", _within(KNOWN_IDS_SECONDS)),
        registry=get("REFEED_REGISTRY", str(where.absolute() / "registry"), str),
        registry_poll_seconds=get("REFEED_REGISTRY_POLL_SECONDS", "5", _number(0.1, 3600)),
        dead_letter_table=get("REFEED_DEAD_LETTER_TABLE", DEFAULT_DEAD_LETTER_TABLE, _table),
        pipeline_slots=get("REFEED_PIPELINE_SLOTS", "2", _within(SLOTS)),
        pipeline_batch_seconds=get("REFEED_PIPELINE_BATCH_SECONDS", "1.0", _within(BATCH_SECONDS, _number)),
        pipeline_batch_bytes=get("REFEED_PIPELINE_BATCH_BYTES", str(64 * 1024 * 1024), _within(BATCH_BYTES)),
        pipeline_message_bytes=get("REFEED_PIPELINE_MESSAGE_BYTES", "10000000", _within(MESSAGE_BYTES)),
        spark_master=get("REFEED_SPARK_MASTER", "local[2,4]", str),
        spark_driver_memory=get("REFEED_SPARK_DRIVER_MEMORY", "1g", _memory),
        spark_conf=get("REFEED_SPARK_CONF", "{}", _texts),
        job_store=get("REFEED_JOB_STORE", _home_store(where.absolute()), _job_store),
        keep_job_days=get("REFEED_KEEP_JOB_DAYS", "30", _whole(3, 36500)),
        # Set and empty is off, which to every other variable is not set.
        merge_at=get("REFEED_MERGE_AT", "off" if env.get("REFEED_MERGE_AT") == "" else "00:15", _time_of_day),
        jobs_folder=get("REFEED_JOBS_FOLDER", "", _optional(_folder)),
        templates=get("REFEED_TEMPLATES", str(where.absolute() / "templates"), _folder),
        launcher=get("REFEED_LAUNCHER", "connect", _one_of("connect", "spark-submit", "dataproc")),
        connect_url=env.get("REFEED_CONNECT_URL") or None,
        dataproc=DataprocSettings(
            region=get("REFEED_DATAPROC_REGION", "", _optional(_region)),
            image=env.get("REFEED_DATAPROC_IMAGE") or None,
            runtime_version=get("REFEED_DATAPROC_RUNTIME", "2.3", _runtime),
            service_account=env.get("REFEED_DATAPROC_SERVICE_ACCOUNT") or None,
            subnetwork=env.get("REFEED_DATAPROC_SUBNET") or None,
            history_server=env.get("REFEED_DATAPROC_HISTORY_SERVER") or None,
            ttl_seconds=get("REFEED_DATAPROC_TTL_SECONDS", "86400", _whole(600, 14 * 86400)),
            labels=get("REFEED_DATAPROC_LABELS", "", _labels),
            host=env.get("REFEED_DATAPROC_HOST") or None,
        ),
        max_running=get("REFEED_MAX_RUNNING", "4", _whole(1, 1000)),
        approval_rows=get("REFEED_APPROVAL_ROWS", "0", _whole(0, 10**12)),
        selection_max_rows=get("REFEED_SELECTION_MAX_ROWS", str(10**8), _whole(1, 10**12)),
        selection_max_bytes=get("REFEED_SELECTION_MAX_BYTES", str(10**12), _whole(1, 10**15 - 1)),
        min_free_disk_bytes=get("REFEED_MIN_FREE_DISK_BYTES", str(10**9), _whole(0, 10**15 - 1)),
        pause_idle_seconds=get("REFEED_PAUSE_IDLE_SECONDS", "600", _number(0, 86400)),
        max_window_days=get("REFEED_MAX_WINDOW_DAYS", "366", _whole(1, 36600)),
        query_tables=get("REFEED_QUERY_TABLES", "", _tables),
        plan_seconds=get("REFEED_PLAN_SECONDS", "900", _whole(1, 7 * 86400)),
        price_usd_per_tib=get("REFEED_PRICE_USD_PER_TIB", "unknown", _price),
        query_memory=get("REFEED_QUERY_MEMORY", "2GB", _memory),
        max_body_bytes=get("REFEED_MAX_BODY_BYTES", str(256 * 1024), _whole(1024, 1 << 30)),
        body_timeout_seconds=get("REFEED_BODY_TIMEOUT_SECONDS", "10", _number(0.1, 600)),
        answer_timeout_seconds=get("REFEED_ANSWER_TIMEOUT_SECONDS", "120", _number(0.1, 3600)),
        rate_limit_per_minute=get("REFEED_RATE_LIMIT_PER_MINUTE", "600", _whole(0, 1_000_000)),
        oidc_issuer=get("REFEED_OIDC_ISSUER", "", _web_address),
        oidc_audience=get("REFEED_OIDC_AUDIENCE", "", _words),
        oidc_jwks_url=get("REFEED_OIDC_JWKS_URL", "", _web_address),
        oidc_scopes_claim=get("REFEED_OIDC_SCOPES_CLAIM", "scope", str),
        oidc_grants=get("REFEED_OIDC_GRANTS", "", parse_grants),
        notify_url=get("REFEED_NOTIFY_URL", "", _web_address),
        notify_secret=get("REFEED_NOTIFY_SECRET", "", parse_notify_secret),
        collector_topics=get("REFEED_COLLECTOR_TOPICS", "", _words),
        collector_settings=get("REFEED_COLLECTOR_SETTINGS", "", _optional(Path)),
        collector_queue_bytes=get("REFEED_COLLECTOR_QUEUE_BYTES", "0", _whole(0, 10**13)),
    )
    # Dead letters are there to be replayed.
    if not faults:
        tables = dict.fromkeys((*settings.query_tables, settings.dead_letter_table))
        settings = replace(settings, query_tables=tuple(tables))
    if settings.launcher == "dataproc" and not faults:
        faults += _dataproc_faults(settings)
    if not faults:
        faults += _key_faults(settings.bigquery)
    # An audience is what keeps a token that was made for another service out of this one.
    if settings.oidc_issuer and not settings.oidc_audience:
        faults.append("REFEED_OIDC_AUDIENCE is missing: with REFEED_OIDC_ISSUER it says whom tokens are meant for")
    if settings.notify_url and not settings.notify_secret:
        faults.append("REFEED_NOTIFY_SECRET is missing: it signs what is sent to REFEED_NOTIFY_URL")
    if faults:
        raise SettingsError("Wrong settings: " + "; ".join(faults), faults=faults)
    return settings


# "Create the key ring in a location that matches the location of your BigQuery dataset": us for US, europe for EU.
# https://cloud.google.com/bigquery/docs/customer-managed-encryption
_KEY_LOCATIONS: Final[Mapping[str, str]] = {"eu": "europe"}


def _key_faults(settings: BigQuerySettings) -> list[str]:
    """Return what BigQuery would say against the key at the first table."""
    if settings.kms_key is None:
        return []
    found, location = settings.kms_key.split("/")[3], settings.location.lower()
    wanted = _KEY_LOCATIONS.get(location, location)
    if found == wanted:
        return []
    place = f"REFEED_BIGQUERY_LOCATION={settings.location}"
    return [f"REFEED_BIGQUERY_KMS_KEY lies in {found}; with {place} BigQuery needs a key in {wanted}"]


# "Serverless for Apache Spark runtime versions": the first one with Spark 4.
_SPARK_4_RUNTIME: Final = 3


def _dataproc_faults(settings: Settings) -> list[str]:
    """Return what drivers that share nothing with this machine but Google Cloud would miss."""
    missing = {
        "REFEED_DATAPROC_REGION": settings.dataproc.region,
        "REFEED_DATAPROC_IMAGE": settings.dataproc.image,
    }
    faults = [
        f"{name} is missing: REFEED_LAUNCHER=dataproc needs it" for name, value in missing.items() if not value
    ]
    if not (settings.jobs_folder or "").startswith("gs://"):
        faults.append("REFEED_JOBS_FOLDER is no gs://bucket/prefix: batches share no disk with the API")
    if settings.warehouse != "bigquery":
        faults.append("REFEED_WAREHOUSE is not bigquery: a batch sees no lake on this machine's disk")
    # Runtimes with Spark 4 take no persistent history server.
    if (
        settings.dataproc.history_server
        and int(settings.dataproc.runtime_version.split(".")[0]) >= _SPARK_4_RUNTIME
    ):
        faults.append(
            f"REFEED_DATAPROC_HISTORY_SERVER goes with runtime 2.3 and older; REFEED_DATAPROC_RUNTIME is "
            f"{settings.dataproc.runtime_version}"
        )
    return faults


def _optional(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: parse(text) if text else None


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


def _within(
    spec: FieldSpec, parse: Callable[[Any, Any], Callable[[str], float]] = _whole
) -> Callable[[str], float]:
    """Return what reads a setting that is an option of a stream, too."""
    return parse(spec.least, spec.most)


def _runtime(text: str) -> str:
    if not re.fullmatch(r"\d{1,3}\.\d{1,3}", text):
        raise ValueError("takes a version such as 2.3")
    return text


def _time_of_day(text: str) -> time | None:
    if text == "off":
        return None
    if not re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", text):
        raise ValueError("takes a time of day in UTC such as 00:15, or nothing for never")
    return time.fromisoformat(text)


def _texts(text: str) -> Mapping[str, str]:
    found = json.loads(text) if text.startswith("{") else None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError('takes a JSON object of texts, such as {"spark.executor.memory": "2g"}')
    return found


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"takes one of {', '.join(choices)}")
        return text

    return parse


def _home_store(home: Path) -> str:
    return f"sqlite:///{home / 'jobs.db'}"


def _job_store(text: str) -> str:
    if not re.fullmatch(r"sqlite:///.+|postgresql(?:\+psycopg)?://.+", text):
        raise ValueError("takes sqlite:///PATH or postgresql+psycopg://USER:PASSWORD@HOST/DATABASE")
    return text


def _folder(text: str) -> str:
    if not re.fullmatch(r"gs://[a-z0-9][a-z0-9._\-]{1,220}[a-z0-9](?:/[^#?\[\]*\r\n]*)?|/.*", text):
        raise ValueError("takes gs://bucket/prefix, or the path of a folder, which begins with /")
    return text


def _project(text: str) -> str:
    if not re.fullmatch(r"(?:[a-z][a-z0-9.\-]*:)?[a-z][a-z0-9\-]{2,60}", text):
        raise ValueError("takes a Google Cloud project id")
    return text


def _table(text: str) -> str:
    if not re.fullmatch(r"(?:[a-z][a-z0-9.:\-]*\.)?\w+\.\w+", text):
        raise ValueError("takes dataset.table or project.dataset.table")
    return text


def _web_address(text: str) -> str | None:
    """Return the address, without credentials, which would end up in logs; http only on this machine."""
    parts = urlsplit(text)
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback_name(parts.hostname or ""))
    if text and (not is_safe or not parts.hostname or "@" in parts.netloc or re.search(r"[\s\\]", text)):
        raise ValueError("takes an https:// address without a user, or http:// on loopback")
    return text or None


def is_loopback_name(host: str) -> bool:
    """Say whether ``host`` always means this machine.

    Example:
        >>> [is_loopback_name(host) for host in ("localhost", "127.0.0.1", "::1", "localhost.example")]
        [True, True, True, False]
    """
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def parse_notify_secret(text: str) -> str | None:
    """Return a webhook secret as Standard Webhooks writes it: ``whsec_`` and 24 to 64 bytes in base64.

    Raises:
        ValueError: it is not that; the text never holds the secret.
    """
    if not text:
        return None
    try:
        size = len(b64decode(text.removeprefix("whsec_"), validate=True))
    except ValueError:
        size = 0
    if not text.startswith("whsec_") or not _MIN_SECRET_BYTES <= size <= _MAX_SECRET_BYTES:
        raise ValueError(f"takes whsec_ and {_MIN_SECRET_BYTES} to {_MAX_SECRET_BYTES} bytes in base64")
    return text


def _price(text: str) -> float | None:
    return None if text == "unknown" else _number(0, 1_000_000)(text)


def _tables(text: str) -> tuple[str, ...]:
    names = dict.fromkeys(name.strip() for name in text.split(",") if name.strip())
    return tuple(_table(name) for name in names)


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("takes true or false")
    return text == "true"


def _location(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9\-]{1,40}", text):
        raise ValueError("takes a BigQuery location such as EU or europe-west1")
    return text


def _region(text: str) -> str:
    if not re.fullmatch(r"[a-z]+-[a-z]+\d+", text):
        raise ValueError("takes a region such as europe-west1")
    return text


def _url(text: str) -> str | None:
    if not text:
        return None
    if not re.fullmatch(r"(https?://)?[\w.\-]+(:\d{1,5})?/?", text):
        raise ValueError("takes host:port or a URL")
    return (text if "://" in text else f"http://{text}").rstrip("/")


def _google_host(text: str) -> str:
    # Credentials are sent there.
    if not re.fullmatch(r"[a-z0-9.\-]+\.googleapis\.com(:\d{1,5})?", text):
        raise ValueError("takes a host of Google's, such as europe-west1-pubsub.googleapis.com")
    return text if ":" in text else f"{text}:443"


def _kms_key(text: str) -> str | None:
    if text and not re.fullmatch(r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+", text):
        raise ValueError("takes projects/P/locations/L/keyRings/R/cryptoKeys/K")
    return text or None


def _labels(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    for key, equals, value in pairs:
        if (
            not equals
            or not re.fullmatch(r"[a-z][a-z0-9_\-]{0,62}", key)
            or not re.fullmatch(r"[a-z0-9_\-]{0,63}", value)
        ):
            raise ValueError("takes key=value,key=value of lower-case letters, digits, - and _")
    return tuple(sorted((key, value) for key, _, value in pairs))


def _memory(text: str) -> str:
    if not re.fullmatch(r"\d{1,6}(?:[kmgKMG][bB]?)", text):
        raise ValueError("takes a size such as 512m or 2GB")
    return text
