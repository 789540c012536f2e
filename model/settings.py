"""What a deployment chooses: read once from the environment at the entry, every fault reported together."""

import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from datetime import time
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from model import variables
from model.disk import sync
from model.errors import SettingsError
from model.home import find_home
from model.label import parse_label
from model.principal import UPLOAD_SCOPES, Grant, parse_grants, parse_scopes
from model.secret import Decrypt, is_reference, is_wrapped, read_secret
from model.stream_options import (
    BATCH_BYTES,
    BATCH_SECONDS,
    KINESIS_STREAM,
    KNOWN_IDS_SECONDS,
    LATEST,
    MESSAGE_BYTES,
    RECREATED,
    REFUSE,
    REGION,
    SLOTS,
    SOURCE,
    START,
    TOPIC,
)
from model.stream_record import APPROVABLE_ACTIONS
from model.table import (
    CLOUD_WAREHOUSES,
    DEFAULT_ARCHIVE_TABLE,
    DEFAULT_DEAD_LETTER_TABLE,
    Partitioning,
    Warehouse,
)

DEFAULT_PROJECT: Final = "refeed-local"
Default = str | Callable[[Mapping[str, str], Path], str]


@dataclass(frozen=True, slots=True)
class _Source:
    """Which variables a setting comes from; its default may depend on the environment and the home."""

    names: tuple[str, ...]
    default: Default
    parse: Callable[[str], Any]
    is_secret: bool = False


def variable(
    name: str, default: Default, parse: Callable[[str], Any] = str, *, value: Any = MISSING, other_name: str = ""
) -> Any:
    """Return a field that is read from the variable ``name``, or from ``default`` where that is not set or empty.

    With ``other_name``, that variable comes between the two. Without an environment the field has ``value``, if
    there is one.
    """
    names = (name, other_name) if other_name else (name,)
    return field(default=value, metadata={"source": _Source(names, default, parse)})


def secret_variable(name: str, parse: Callable[[str], Any] = str) -> Any:
    """Return a field for a secret, None where ``name`` is not set: the variable has it, or a reference to it."""
    source = _Source((name,), "", variables.optional(parse), is_secret=True)
    return field(default=MISSING, repr=False, metadata={"source": source})


def part() -> Any:
    """Return a field whose own fields are read from variables."""
    return field()


@dataclass(frozen=True, slots=True)
class BigQuerySettings:
    """Where and how BigQuery keeps the tables; labels are pairs, so that the object stays hashable.

    ``host`` and ``storage_host`` are a stand-in's REST URL and gRPC ``host:port``; without them Google is meant.
    ``append_bytes`` is the largest append request, ``streams_per_hour`` what a stream may create of the quota,
    ``merge_max_bytes_billed`` what each query of a merge, or of a stream that learns its ids, may cost. Each task
    of a backup appends over ``streams_per_task`` streams at once, as many connections, where it has rows for them.
    """

    location: str = variable("REFEED_BIGQUERY_LOCATION", "US", variables.location)
    host: str | None = variable("BIGQUERY_EMULATOR_HOST", "", variables.optional(variables.emulator_url))
    storage_host: str | None = variable("REFEED_BIGQUERY_STORAGE_HOST", "", variables.optional(str))
    is_regional: bool = variable("REFEED_BIGQUERY_REGIONAL_ENDPOINTS", "false", variables.flag)
    partition_expiration_days: int = variable(
        "REFEED_BIGQUERY_PARTITION_EXPIRATION_DAYS", "0", variables.whole(0, 36500)
    )
    require_partition_filter: bool = variable("REFEED_BIGQUERY_REQUIRE_PARTITION_FILTER", "true", variables.flag)
    kms_key: str | None = variable("REFEED_BIGQUERY_KMS_KEY", "", variables.optional(variables.kms_key))
    labels: tuple[tuple[str, str], ...] = variable("REFEED_BIGQUERY_LABELS", "", variables.labels)
    append_bytes: int = variable("REFEED_BIGQUERY_APPEND_BYTES", "19000000", variables.whole(100_000, 19_500_000))
    streams_per_hour: int = variable("REFEED_BIGQUERY_STREAMS_PER_HOUR", "8000", variables.whole(60, 10_000_000))
    merge_max_bytes_billed: int = variable(
        "REFEED_BIGQUERY_MERGE_MAX_BYTES_BILLED", str(10**12), variables.whole(10 * 2**20, 10**18), value=10**12
    )
    streams_per_task: int = variable("REFEED_BIGQUERY_STREAMS_PER_TASK", "1", variables.whole(1, 16), value=1)

    def check_hosts(self) -> None:
        """Refuse half of a stand-in: the other half would be Google's own.

        Raises:
            SettingsError: one host is given without the other.
        """
        if (self.host is None) != (self.storage_host is None):
            raise SettingsError(
                "BIGQUERY_EMULATOR_HOST and REFEED_BIGQUERY_STORAGE_HOST belong together. Set both "
                "for an emulator, or neither for Google BigQuery."
            )


@dataclass(frozen=True, slots=True)
class DataprocSettings:
    """Where batches of Dataproc Serverless run, and as what; ``host`` is a stand-in's gRPC ``host:port``."""

    region: str | None = variable("REFEED_DATAPROC_REGION", "", variables.optional(variables.region))
    image: str | None = variable("REFEED_DATAPROC_IMAGE", "", variables.optional(str))
    runtime_version: str = variable("REFEED_DATAPROC_RUNTIME", "2.3", variables.runtime)
    service_account: str | None = variable("REFEED_DATAPROC_SERVICE_ACCOUNT", "", variables.optional(str))
    subnetwork: str | None = variable("REFEED_DATAPROC_SUBNET", "", variables.optional(str))
    history_server: str | None = variable("REFEED_DATAPROC_HISTORY_SERVER", "", variables.optional(str))
    ttl_seconds: int = variable("REFEED_DATAPROC_TTL_SECONDS", "86400", variables.whole(600, 14 * 86400))
    labels: tuple[tuple[str, str], ...] = variable("REFEED_DATAPROC_LABELS", "", variables.labels)
    host: str | None = variable("REFEED_DATAPROC_HOST", "", variables.optional(str))


@dataclass(frozen=True, slots=True)
class KinesisSettings:
    """Which Kinesis stream a stream of the kind kinesis reads, how, and where its records go.

    ``batch_seconds`` is how long a shard without new records is left alone; ``batch_bytes`` of messages, or 1,000
    of them, are published before the shard's position is noted.
    """

    stream: str | None = variable("REFEED_KINESIS_STREAM", "", variables.optional(variables.text(KINESIS_STREAM)))
    region: str | None = variable("REFEED_KINESIS_REGION", "", variables.optional(variables.text(REGION)))
    topic: str | None = variable("REFEED_KINESIS_TOPIC", "", variables.optional(variables.text(TOPIC)))
    start: str = variable("REFEED_KINESIS_START", LATEST, variables.text(START))
    recreated: str = variable("REFEED_KINESIS_RECREATED", REFUSE, variables.text(RECREATED))
    source: str = variable("REFEED_KINESIS_SOURCE", "kinesis", variables.text(SOURCE))
    access_key_id: str | None = secret_variable("REFEED_KINESIS_ACCESS_KEY_ID")
    secret_access_key: str | None = secret_variable("REFEED_KINESIS_SECRET_ACCESS_KEY")
    slots: int = variable("REFEED_KINESIS_SLOTS", "4", variables.within(SLOTS))
    batch_seconds: float = variable(
        "REFEED_KINESIS_BATCH_SECONDS", "1.0", variables.within(BATCH_SECONDS, variables.number)
    )
    batch_bytes: int = variable("REFEED_KINESIS_BATCH_BYTES", "8000000", variables.within(BATCH_BYTES))


@dataclass(frozen=True, slots=True)
class SignInSettings:
    """How people sign in to the console with the issuer's provider: the client that is registered there.

    Without ``client_secret`` it is a public client. ``session_token`` is the token that goes along with each call
    of a session, and ``console_url`` the console's address in a browser, from which the callback's follows.
    """

    client_id: str | None = variable("REFEED_OIDC_CLIENT_ID", "", variables.optional(str))
    client_secret: str | None = secret_variable("REFEED_OIDC_CLIENT_SECRET")
    scopes: str = variable("REFEED_OIDC_REQUEST_SCOPES", "openid email", variables.openid_scopes)
    parameters: tuple[tuple[str, str], ...] = variable(
        "REFEED_OIDC_REQUEST_PARAMETERS", "", variables.request_parameters
    )
    session_token: Literal["access_token", "id_token"] = variable(
        "REFEED_OIDC_SESSION_TOKEN", "access_token", variables.one_of("access_token", "id_token")
    )
    console_url: str | None = variable("REFEED_CONSOLE_URL", "", variables.optional(variables.console_address))

    def faults(self, issuer: str | None, audience: Sequence[str]) -> list[str]:
        """Return what is missing for a sign-in, beside the issuer and the audience of tokens."""
        if self.client_id is None:
            wanted = "REFEED_OIDC_CLIENT_ID is missing: REFEED_OIDC_CLIENT_SECRET needs it"
            return [wanted] if self.client_secret else []
        faults = []
        if issuer is None:
            faults.append("REFEED_OIDC_ISSUER is missing: REFEED_OIDC_CLIENT_ID needs it")
        if self.console_url is None:
            faults.append("REFEED_CONSOLE_URL is missing: after a sign-in, the provider sends the browser there")
        if self.session_token == "id_token" and self.client_id not in audience:  # noqa: S105 - a kind of token
            faults.append("REFEED_OIDC_AUDIENCE lacks REFEED_OIDC_CLIENT_ID, which is the audience of ID tokens")
        return faults


@dataclass(frozen=True, slots=True)
class Settings:
    """One process's settings; ``.env.example`` lists the variables, their units and defaults."""

    home: Path
    project: str = variable(
        "REFEED_PROJECT", DEFAULT_PROJECT, variables.project, other_name="GOOGLE_CLOUD_PROJECT"
    )
    pubsub_emulator_host: str | None = variable(
        "PUBSUB_EMULATOR_HOST", "", variables.optional(variables.emulator_host)
    )
    pubsub_endpoint: str | None = variable("REFEED_PUBSUB_ENDPOINT", "", variables.optional(variables.google_host))
    secret: str | None = secret_variable("REFEED_SECRET")
    archive_table: str = variable("REFEED_ARCHIVE_TABLE", DEFAULT_ARCHIVE_TABLE, variables.table)
    archive_partitioning: Partitioning = variable(
        "REFEED_ARCHIVE_PARTITIONING", "day", variables.one_of("day", "hour")
    )
    warehouse: Warehouse = variable("REFEED_WAREHOUSE", "lake", variables.one_of(*get_args(Warehouse)))
    lake: str = variable("REFEED_LAKE", lambda _, home: str(home / "lake"), variables.lake)
    bigquery: BigQuerySettings = part()
    ack_deadline_seconds: int = variable("REFEED_ACK_DEADLINE_SECONDS", "60", variables.whole(10, 600))
    backup_label: tuple[str, str] | None = variable("REFEED_BACKUP_LABEL", "", variables.optional(parse_label))
    backup_slots: int = variable("REFEED_BACKUP_SLOTS", "2", variables.within(SLOTS))
    backup_batch_seconds: float = variable(
        "REFEED_BACKUP_BATCH_SECONDS", "1.0", variables.within(BATCH_SECONDS, variables.number)
    )
    backup_batch_bytes: int = variable(
        "REFEED_BACKUP_BATCH_BYTES", str(256 * 1024 * 1024), variables.within(BATCH_BYTES)
    )
    known_ids_seconds: int = variable("REFEED_KNOWN_IDS_SECONDS", "600", variables.within(KNOWN_IDS_SECONDS))
    registry: str = variable("REFEED_REGISTRY", lambda _, home: str(home / "registry"), variables.bucket_or_path)
    registry_poll_seconds: float = variable("REFEED_REGISTRY_POLL_SECONDS", "5", variables.number(0.1, 3600))
    dead_letter_table: str = variable("REFEED_DEAD_LETTER_TABLE", DEFAULT_DEAD_LETTER_TABLE, variables.table)
    pipeline_slots: int = variable("REFEED_PIPELINE_SLOTS", "2", variables.within(SLOTS))
    pipeline_batch_seconds: float = variable(
        "REFEED_PIPELINE_BATCH_SECONDS", "1.0", variables.within(BATCH_SECONDS, variables.number)
    )
    pipeline_batch_bytes: int = variable(
        "REFEED_PIPELINE_BATCH_BYTES", str(64 * 1024 * 1024), variables.within(BATCH_BYTES)
    )
    pipeline_message_bytes: int = variable(
        "REFEED_PIPELINE_MESSAGE_BYTES", "10000000", variables.within(MESSAGE_BYTES)
    )
    kinesis: KinesisSettings = part()
    spark_master: str = variable("REFEED_SPARK_MASTER", "local[2,4]")
    spark_driver_memory: str = variable("REFEED_SPARK_DRIVER_MEMORY", "1g", variables.memory)
    spark_conf: Mapping[str, str] = variable("REFEED_SPARK_CONF", "{}", variables.texts)
    job_store: str = variable("REFEED_JOB_STORE", lambda _, home: _home_store(home), variables.job_store)
    keep_job_days: int = variable("REFEED_KEEP_JOB_DAYS", "30", variables.whole(3, 36500))
    agent_streams: int = variable("REFEED_AGENT_STREAMS", "16", variables.whole(1, 10_000))
    snapshot_seconds: int = variable("REFEED_SNAPSHOT_SECONDS", "0", variables.whole(0, 7 * 86400))
    keep_snapshots: int = variable("REFEED_KEEP_SNAPSHOTS", "7", variables.whole(1, 1000))
    jobs_folder: str | None = variable("REFEED_JOBS_FOLDER", "", variables.optional(variables.folder))
    merge_at: time | None = variable(
        "REFEED_MERGE_AT",
        lambda env, _: "off" if env.get("REFEED_MERGE_AT") == "" else "00:15",
        variables.time_of_day,
    )
    templates: str = variable("REFEED_TEMPLATES", lambda _, home: str(home / "templates"), variables.folder)
    manifests: str | None = variable("REFEED_MANIFESTS", "", variables.optional(variables.folder))
    manifests_subscription: str | None = variable(
        "REFEED_MANIFESTS_SUBSCRIPTION", "", variables.optional(variables.subscription)
    )
    manifests_scopes: frozenset[str] = variable(
        "REFEED_MANIFESTS_SCOPES", ",".join(sorted(UPLOAD_SCOPES)), parse_scopes
    )
    launcher: str = variable("REFEED_LAUNCHER", "connect", variables.one_of("connect", "spark-submit", "dataproc"))
    connect_url: str | None = variable("REFEED_CONNECT_URL", "", variables.optional(str))
    dataproc: DataprocSettings = part()
    max_running: int = variable("REFEED_MAX_RUNNING", "4", variables.whole(1, 1000))
    pause_idle_seconds: float = variable("REFEED_PAUSE_IDLE_SECONDS", "600", variables.number(0, 86400))
    approval_rows: int = variable("REFEED_APPROVAL_ROWS", "0", variables.whole(0, 10**12))
    approve_streams: tuple[str, ...] = variable(
        "REFEED_APPROVE_STREAMS", "", variables.words_of(*APPROVABLE_ACTIONS)
    )
    selection_max_rows: int = variable("REFEED_SELECTION_MAX_ROWS", str(10**8), variables.whole(1, 10**12))
    selection_max_bytes: int = variable("REFEED_SELECTION_MAX_BYTES", str(10**12), variables.whole(1, 10**15 - 1))
    min_free_disk_bytes: int = variable("REFEED_MIN_FREE_DISK_BYTES", str(10**9), variables.whole(0, 10**15 - 1))
    max_window_days: int = variable("REFEED_MAX_WINDOW_DAYS", "366", variables.whole(1, 36600))
    query_tables: tuple[str, ...] = variable("REFEED_QUERY_TABLES", "", variables.tables)
    plan_seconds: int = variable("REFEED_PLAN_SECONDS", "900", variables.whole(1, 7 * 86400))
    price_usd_per_tib: float | None = variable("REFEED_PRICE_USD_PER_TIB", "unknown", variables.price)
    query_memory: str = variable("REFEED_QUERY_MEMORY", "2GB", variables.memory)
    max_body_bytes: int = variable("REFEED_MAX_BODY_BYTES", str(256 * 1024), variables.whole(1024, 1 << 20))
    body_timeout_seconds: float = variable("REFEED_BODY_TIMEOUT_SECONDS", "10", variables.number(0.1, 600))
    answer_timeout_seconds: float = variable("REFEED_ANSWER_TIMEOUT_SECONDS", "120", variables.number(0.1, 3600))
    rate_limit_per_minute: int = variable("REFEED_RATE_LIMIT_PER_MINUTE", "600", variables.whole(0, 1_000_000))
    oidc_issuer: str | None = variable("REFEED_OIDC_ISSUER", "", variables.optional(variables.web_address))
    oidc_audience: tuple[str, ...] = variable("REFEED_OIDC_AUDIENCE", "", variables.words)
    oidc_jwks_url: str | None = variable("REFEED_OIDC_JWKS_URL", "", variables.optional(variables.web_address))
    oidc_scopes_claim: str = variable("REFEED_OIDC_SCOPES_CLAIM", "scope")
    oidc_grants: tuple[Grant, ...] = variable("REFEED_OIDC_GRANTS", "", parse_grants)
    sign_in: SignInSettings = part()
    notify_url: str | None = variable("REFEED_NOTIFY_URL", "", variables.optional(variables.web_address))
    notify_secret: str | None = secret_variable("REFEED_NOTIFY_SECRET", variables.notify_secret)
    collector_topics: tuple[str, ...] = variable("REFEED_COLLECTOR_TOPICS", "", variables.words)
    collector_settings: Path | None = variable("REFEED_COLLECTOR_SETTINGS", "", variables.optional(Path))
    collector_allow_unread: bool = variable("REFEED_COLLECTOR_ALLOW_UNREAD", "false", variables.flag)
    collector_queue_bytes: int = variable("REFEED_COLLECTOR_QUEUE_BYTES", "0", variables.whole(0, 10**13))

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
        """Return REFEED_SECRET, or the one kept in the home, made at first use and readable by its owner only.

        Raises:
            SettingsError: REFEED_SECRET is a reference that was not resolved, which is never the secret itself;
                or the home's file is empty: replays would pass the filters of the secret that was there.
        """
        if self.secret:
            if is_wrapped(self.secret):
                raise SettingsError(
                    "REFEED_SECRET is encrypted, and Refeed could not decrypt the secret when it read the "
                    "settings."
                )
            return self.secret
        path = self.home / "secret"
        if not path.exists():
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A name of its own for every thread too: a shared one could be linked half written.
            temporary = path.with_suffix(f".{secrets.token_hex(8)}")
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(descriptor, "w") as file:
                    file.write(secrets.token_hex(32))
                    # Subscriptions get its token next: a power cut must not leave a file without it.
                    file.flush()
                    os.fsync(file.fileno())
                # link fails when another process was first: then that one's secret counts.
                with suppress(FileExistsError):
                    os.link(temporary, path)
                sync(self.home)
            finally:
                temporary.unlink()
        secret = path.read_text().strip()
        if not secret:
            raise SettingsError(
                f"The file of the secret, {path}, is empty. Restore the file from a copy, or "
                "set REFEED_SECRET to the old secret. If the secret is lost, delete the file. Then detach and "
                "attach every topic, because the filters of the backup subscriptions contain a token of the "
                "lost secret."
            )
        return secret


def read_settings(env: Mapping[str, str], *, home: Path | None = None, decrypt: Decrypt | None = None) -> Settings:
    """Return the settings that ``env`` describes; ``home`` wins over REFEED_HOME.

    Secrets that are references are read. Without ``decrypt`` those that a key service has to decrypt stay
    references, for a process that does not use them.

    Raises:
        SettingsError: one or more variables are wrong; the message names them all.

    Example:
        >>> read_settings({"REFEED_HOME": "/tmp/h"}).archive_table
        'backup.messages'
    """
    faults: list[str] = []
    settings: Settings = _read(
        Settings, env, (find_home(env) if home is None else home).absolute(), faults, decrypt
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
        faults.append("REFEED_OIDC_AUDIENCE is missing: REFEED_OIDC_ISSUER needs the audience of its tokens")
    faults += settings.sign_in.faults(settings.oidc_issuer, settings.oidc_audience or ())
    if settings.notify_url and not settings.notify_secret:
        faults.append("REFEED_NOTIFY_SECRET is missing: it signs the webhooks to REFEED_NOTIFY_URL")
    if settings.manifests_subscription and not (settings.manifests or "").startswith("gs://"):
        faults.append(
            "REFEED_MANIFESTS is not gs://bucket/prefix: REFEED_MANIFESTS_SUBSCRIPTION works with no other"
        )
    if faults:
        raise SettingsError("Wrong settings: " + "; ".join(faults), faults=faults)
    return settings


def _read(
    declared: type[Any], env: Mapping[str, str], home: Path, faults: list[str], decrypt: Decrypt | None
) -> Any:
    """Return the settings that ``declared`` has variables for, those of its parts too; faults are added."""
    found: dict[str, Any] = {}
    for each in fields(declared):
        if is_dataclass(each.type):
            found[each.name] = _read(cast("type[Any]", each.type), env, home, faults, decrypt)
        elif (source := each.metadata.get("source")) is not None:
            found[each.name] = _parse(source, env, home, faults, decrypt)
        else:
            found[each.name] = home
    return declared(**found)


def _parse(source: _Source, env: Mapping[str, str], home: Path, faults: list[str], decrypt: Decrypt | None) -> Any:
    default = source.default if isinstance(source.default, str) else source.default(env, home)
    name = next((name for name in source.names if env.get(name)), source.names[0])
    text = env.get(name) or default
    try:
        if source.is_secret and is_reference(text):
            if decrypt is None and is_wrapped(text):
                return text
            text = read_secret(text, env, decrypt or _no_key)
        return source.parse(text)
    except ValueError as exc:
        # A url may hold a password.
        shown = "(hidden)" if source.is_secret else repr(re.sub(r"(?<=://)[^@]*@", "***@", text))
        faults.append(f"{name}={shown}: {exc}")
        return None


def _no_key(key: str, _ciphertext: bytes) -> bytes:
    raise AssertionError(f"{key} is asked for without a key service")


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
    return [f"REFEED_BIGQUERY_KMS_KEY is in {found}, but with {place} BigQuery needs a key in {wanted}"]


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
        faults.append("REFEED_JOBS_FOLDER is not gs://bucket/prefix: Dataproc batches use only Cloud Storage")
    if settings.warehouse not in CLOUD_WAREHOUSES:
        wanted = " or ".join(sorted(CLOUD_WAREHOUSES))
        faults.append(f"REFEED_WAREHOUSE is not {wanted}: Dataproc batches can't read this machine's disk")
    # Runtimes with Spark 4 take no persistent history server.
    runtime = settings.dataproc.runtime_version
    if settings.dataproc.history_server and int(runtime.split(".")[0]) >= _SPARK_4_RUNTIME:
        faults.append(
            "REFEED_DATAPROC_HISTORY_SERVER works only with runtime 2.3 or older, but "
            f"REFEED_DATAPROC_RUNTIME is {runtime}"
        )
    return faults


def _home_store(home: Path) -> str:
    return f"sqlite:///{home / 'jobs.db'}"
