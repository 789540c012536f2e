"""The options of a stream: every field of each kind, declared once for settings, API, terminal and process."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final

from model.declaration import Declared, DeclaredField, FieldSpec, declared_fields
from model.errors import InvalidNameError, RequestInvalidError, fault_at
from model.message import parse_resource_id
from model.naming import did_you_mean
from model.secret import parse_reference
from model.variables import matching, one_of

_WEEK_SECONDS: Final = 7 * 86400
_GROUP: Final = re.compile(r"[a-z][a-z0-9\-]{0,40}")

# Where reading a Kinesis stream begins, in the words of its API; the third way is a moment.
LATEST: Final = "LATEST"
TRIM_HORIZON: Final = "TRIM_HORIZON"
# What a stream does about a Kinesis stream that was deleted and created again under its name.
REFUSE: Final = "refuse"
BEGIN: Final = "begin"


def parse_start(text: str) -> datetime | None:
    """Return the moment that ``text`` is, None for the oldest record; LATEST is the moment of the first start.

    Example:
        >>> parse_start("2026-01-03T10:00:00Z"), parse_start("TRIM_HORIZON")
        (datetime.datetime(2026, 1, 3, 10, 0, tzinfo=datetime.timezone.utc), None)
    """
    if text in {LATEST, TRIM_HORIZON}:
        return None
    try:
        moment = datetime.fromisoformat(text)
        in_utc = moment.astimezone(UTC)
    # Before the year 1 in UTC, or after 9999.
    except (ValueError, OverflowError) as exc:
        raise ValueError("must be LATEST, TRIM_HORIZON or a time such as 2026-01-03T10:00:00Z") from exc
    if moment.tzinfo is None:
        raise ValueError("must be a time with an offset, such as 2026-01-03T10:00:00Z")
    return in_utc


def _check_start(text: str) -> str:
    parse_start(text)
    return text


def _parse_group(text: str) -> str:
    if not is_group(text):
        raise ValueError("must have only lower-case letters, digits and -")
    return text


def _parse_topic(text: str) -> str:
    try:
        return parse_resource_id(text)
    except InvalidNameError as exc:
        raise ValueError("must be the name of a topic") from exc


SLOTS: Final = FieldSpec(
    description="The number of tasks that read at the same time. Null means the deployment's default.",
    least=1,
    most=1000,
    help="The number of tasks that read at the same time.",
)
BATCH_SECONDS: Final = FieldSpec(
    description="How long a batch collects messages before its commit, in seconds. For kinesis: how long the "
    "stream waits before it reads a shard without new records again. Null means the deployment's default.",
    least=0.05,
    most=300,
    is_changeable=True,
    help="Collect messages for this many seconds before each commit.",
)
BATCH_BYTES: Final = FieldSpec(
    description="A batch that reaches this many bytes is committed at once. For kinesis: the stream saves its "
    "position in a shard after this many bytes, or after 1,000 messages. Null means the deployment's "
    "default.",
    least=1_000_000,
    most=1 << 40,
    is_changeable=True,
    help="Commit a batch at once if it reaches this many bytes.",
)
KNOWN_IDS_SECONDS: Final = FieldSpec(
    description="How long the stream remembers message ids, in seconds. If Pub/Sub delivers a message again in "
    "this time, the stream drops the message. Null means the deployment's default.",
    least=0,
    most=_WEEK_SECONDS,
    help="Only for a backup: drop a message if Pub/Sub delivers it again within N seconds.",
)
MESSAGE_BYTES: Final = FieldSpec(
    description="A message with more bytes than this becomes a dead letter. Null means the deployment's default.",
    least=1_000,
    most=100_000_000,
    help="Only for a pipeline: turn messages with more than N bytes into dead letters.",
)
GROUP: Final = FieldSpec(
    description="A group of sources in the registry's sources.yaml. The stream reads the sources of this group.",
    example="default",
    help="Only for a pipeline: the group of sources that the stream reads.",
    parse=_parse_group,
)
# https://docs.aws.amazon.com/kinesis/latest/APIReference/API_CreateStream.html
KINESIS_STREAM: Final = FieldSpec(
    description="The name of the Kinesis stream.",
    example="orders",
    parse=matching(r"[a-zA-Z0-9_.-]{1,128}", "the name of a Kinesis stream"),
)
REGION: Final = FieldSpec(
    description="The AWS region of the Kinesis stream.",
    example="eu-west-1",
    parse=matching(r"[a-z]{2}(-[a-z0-9]+)+", "an AWS region such as eu-west-1"),
)
TOPIC: Final = FieldSpec(description="The topic to which the Kinesis records are published.", parse=_parse_topic)
START: Final = FieldSpec(
    description="Where the stream begins to read at its first start. The value is LATEST (only new records), "
    "TRIM_HORIZON (the oldest record), or a time such as 2026-01-03T10:00:00Z.",
    parse=_check_start,
    metavar="LATEST|TRIM_HORIZON|MOMENT",
)
RECREATED: Final = FieldSpec(
    description="What Refeed's stream does if the Kinesis stream was deleted and created again. 'refuse': "
    "Refeed's stream fails. 'begin': Refeed's stream reads the new Kinesis stream from the oldest record.",
    parse=one_of(REFUSE, BEGIN),
    metavar="refuse|begin",
)
SOURCE: Final = FieldSpec(
    description="The value of the attribute 'source' of each published message.",
    parse=matching(r"[\x20-\x7e]{1,256}", "1 to 256 printable characters"),
)
ACCESS_KEY_ID: Final = FieldSpec(
    description="A reference to the id of an AWS access key, such as file:/run/secrets/aws-id. By default, the "
    "stream uses its process's AWS credentials.",
    parse=parse_reference,
    metavar="REFERENCE",
)
SECRET_ACCESS_KEY: Final = FieldSpec(
    description="A reference to the secret of the AWS access key, such as file:/run/secrets/aws-secret. Never "
    "write the secret itself.",
    parse=parse_reference,
    metavar="REFERENCE",
)
MAPPING: Final = FieldSpec(
    description="The sources that were renamed in the registry. Each key is a source's old name, and its value "
    "is the new name. The stream continues each renamed source from the state under the old name.",
    example={"orders": "sales"},
    help="Only for a pipeline: the old and the new name of a source that was renamed in the registry. May be "
    "repeated.",
    metavar="OLD=NEW",
)


class StreamKind(StrEnum):
    """What a stream does with its messages."""

    BACKUP = "backup"
    PIPELINE = "pipeline"
    KINESIS = "kinesis"

    @property
    def has_standby(self) -> bool:
        """Whether a second process of the stream can wait, ready, and take over between two commits."""
        return self is not StreamKind.KINESIS


# The options of every kind.
_BATCHES: Final = ("slots", "batch_seconds", "batch_bytes")


def _variables(kind: str, *names: str) -> dict[str, str]:
    """Return the variables that options of a kind of stream stand for, by the options' names."""
    return {name: f"REFEED_{kind}_{name.upper()}" for name in names}


@dataclass(frozen=True, slots=True)
class StreamOptions(Declared):
    """What one stream does otherwise than the deployment's settings say; null leaves a setting as it is."""

    # field -> the variable that it stands for in the stream's process
    VARIABLES: ClassVar[Mapping[str, str]] = {}

    slots: Annotated[int | None, SLOTS] = None
    batch_seconds: Annotated[float | None, BATCH_SECONDS] = None
    batch_bytes: Annotated[int | None, BATCH_BYTES] = None

    def work(self) -> str:
        """Return what two living streams of a kind may not both do: a lease would let one of them work."""
        return ""

    def to_json(self) -> dict[str, Any]:
        """Return the options as the API takes them, without those that are null."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def environment(self) -> dict[str, str]:
        """Return the variables that the stream's process has instead of the deployment's.

        Example:
            >>> PipelineStreamOptions(group="orders", slots=4).environment()
            {'REFEED_PIPELINE_SLOTS': '4'}
        """
        given = ((name, value) for name, value in self.to_json().items() if name in self.VARIABLES)
        # A setting has nine digits after the point at most.
        return {
            self.VARIABLES[name]: value if isinstance(value, str) else str(round(value, 9))
            for name, value in given
        }


@dataclass(frozen=True, slots=True)
class BackupStreamOptions(StreamOptions):
    """The options of a backup stream."""

    VARIABLES: ClassVar[Mapping[str, str]] = {
        **_variables("BACKUP", *_BATCHES),
        "known_ids_seconds": "REFEED_KNOWN_IDS_SECONDS",
    }

    known_ids_seconds: Annotated[int | None, KNOWN_IDS_SECONDS] = None


@dataclass(frozen=True, slots=True)
class PipelineStreamOptions(StreamOptions):
    """The options of a pipeline stream."""

    VARIABLES: ClassVar[Mapping[str, str]] = _variables("PIPELINE", *_BATCHES, "message_bytes")

    group: Annotated[str, GROUP] = "default"
    message_bytes: Annotated[int | None, MESSAGE_BYTES] = None
    mapping: Annotated[Mapping[str, str] | None, MAPPING] = None

    def work(self) -> str:
        """Return its group, in words."""
        return f"the group {self.group}"


@dataclass(frozen=True, slots=True)
class KinesisStreamOptions(StreamOptions):
    """The options of a stream that publishes the records of one Kinesis stream.

    Its tasks are threads, ``batch_seconds`` is how long a shard without new records is left alone, and a batch is
    what is published before a position is noted: 1,000 messages, or ``batch_bytes``.
    """

    VARIABLES: ClassVar[Mapping[str, str]] = _variables(
        "KINESIS",
        *(*_BATCHES, "stream", "region", "topic", "start", "recreated", "source"),
        *("access_key_id", "secret_access_key"),
    )

    stream: Annotated[str | None, KINESIS_STREAM] = None
    region: Annotated[str | None, REGION] = None
    topic: Annotated[str | None, TOPIC] = None
    start: Annotated[str | None, START] = None
    recreated: Annotated[str | None, RECREATED] = None
    source: Annotated[str | None, SOURCE] = None
    access_key_id: Annotated[str | None, ACCESS_KEY_ID] = None
    secret_access_key: Annotated[str | None, SECRET_ACCESS_KEY] = None

    def work(self) -> str:
        """Return the Kinesis stream and the topic, in words; those of the settings have no name here."""
        names = (self.stream or "the stream", self.region or "its region", self.topic or "its topic")
        return "{} in {} for {}".format(*names)


OPTIONS: Final[Mapping[StreamKind, type[StreamOptions]]] = {
    StreamKind.BACKUP: BackupStreamOptions,
    StreamKind.PIPELINE: PipelineStreamOptions,
    StreamKind.KINESIS: KinesisStreamOptions,
}


def stream_lease(options: StreamOptions, project: str) -> str:
    """Return the name of the lease that a stream with ``options`` holds while it runs.

    A project has one backup, because its backup subscriptions are the project's, and one pipeline a group. A
    Kinesis stream is read once for each topic; its options have to name both.

    Example:
        >>> stream_lease(BackupStreamOptions(), "shop"), stream_lease(PipelineStreamOptions(group="eu"), "shop")
        ('backup-shop', 'pipeline-shop-eu')
    """
    if isinstance(options, PipelineStreamOptions):
        return f"pipeline-{project}-{options.group}"
    if isinstance(options, KinesisStreamOptions):
        return f"kinesis-{project}-{options.region}-{options.stream}-{options.topic}"
    return f"backup-{project}"


def extend_mapping(before: Mapping[str, str] | None, mapping: Mapping[str, str | None]) -> dict[str, str]:
    """Return the ``mapping`` option of a stream that has ``before`` and whose sources are renamed once more.

    A source that ends, whose new name is None, is in none. What was renamed twice leads to its newest name.

    Example:
        >>> extend_mapping({"orders": "sales"}, {"sales": "revenue", "clicks": None})
        {'orders': 'revenue', 'sales': 'revenue'}
    """
    carried = {old: mapping.get(new, new) for old, new in (before or {}).items()}
    return {old: new for old, new in {**carried, **mapping}.items() if new is not None and new != old}


def overridable() -> frozenset[str]:
    """Return the variables of a stream's process that stand for an option of some kind: no other may be set.

    Example:
        >>> "REFEED_BACKUP_SLOTS" in overridable(), "PATH" in overridable()
        (True, False)
    """
    return frozenset(name for options in OPTIONS.values() for name in options.VARIABLES.values())


def read_variables(kind: StreamKind, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that variables of a stream's process stand for; a text that is no number stays one.

    Raises:
        RequestInvalidError: a stream of this kind has no such variable; all are named, each with its pointer.

    Example:
        >>> read_variables(StreamKind.BACKUP, {"REFEED_BACKUP_BATCH_SECONDS": "2.5"})
        {'batch_seconds': 2.5}
    """
    options = OPTIONS[kind]
    fields = {
        options.VARIABLES[each.name]: each for each in declared_fields(options) if each.name in options.VARIABLES
    }
    if unknown := [name for name in variables if name not in fields]:
        errors = []
        for name in unknown:
            message = f"{name} is not a setting of a {kind} stream.{did_you_mean(name, fields)}"
            errors.append(fault_at(f"/environment/{name}", "variable_unknown", message))
        raise RequestInvalidError.of_all(errors)
    return {fields[name].name: _number_of(fields[name].kind, text) for name, text in variables.items()}


def _number_of(kind: Any, text: str) -> Any:
    if kind is str:
        return text
    try:
        return int(text) if kind is int else float(text)
    except ValueError:
        return text


def is_group(text: str) -> bool:
    """Whether a group of sources can have this name.

    Example:
        >>> is_group("orders-2"), is_group("Orders")
        (True, False)
    """
    return _GROUP.fullmatch(text) is not None


def option_errors(kind: StreamKind, document: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return everything that is wrong with the options of a stream of this kind, each with its pointer.

    Example:
        >>> option_errors(StreamKind.BACKUP, {"slots": 0})[0]["message"]
        'slots must be a whole number from 1 to 1000.'
    """
    known = {each.name: each for each in declared_fields(OPTIONS[kind])}
    found = []
    for name, value in document.items():
        pointer = "/options/" + name.replace("~", "~0").replace("/", "~1")
        if name not in known:
            way = did_you_mean(name, known) or f" Its options are {', '.join(known)}."
            message = f"A {kind} stream has no option {name}.{way}"
            found.append(fault_at(pointer, "field_unknown", message))
        elif fault := _fault(known[name], value):
            found.append(fault_at(pointer, "option_invalid", f"{name} {fault}."))
    return found


def parse_options(kind: StreamKind, document: Mapping[str, Any]) -> StreamOptions:
    """Return the options that a JSON object gives; a field that is null or absent has its default.

    Raises:
        RequestInvalidError: ``details["errors"]`` has everything that is wrong, each with its pointer.

    Example:
        >>> parse_options(StreamKind.BACKUP, {"batch_seconds": 2}).to_json()
        {'batch_seconds': 2}
    """
    if errors := option_errors(kind, document):
        raise RequestInvalidError.of_all(errors)
    return OPTIONS[kind](**{name: value for name, value in document.items() if value is not None})


def _fault(field: DeclaredField, value: Any) -> str | None:
    """Return what the option takes where the value is not that; None where it is."""
    if value is None:
        return None
    if field.kind is str:
        assert field.spec.parse is not None, "a text is checked"
        try:
            field.spec.parse(value if isinstance(value, str) else "")
        except ValueError as exc:
            return str(exc)
        return None
    if field.kind == Mapping[str, str]:
        is_mapping = isinstance(value, Mapping) and all(isinstance(new, str) and new for new in value.values())
        return None if is_mapping else "must be an object with strings as values"
    kinds = int if field.kind is int else int | float
    if isinstance(value, kinds) and not isinstance(value, bool) and field.spec.allows(value):
        return None
    number = "a whole number" if field.kind is int else "a number"
    return f"must be {number} from {field.spec.least:.15g} to {field.spec.most:.15g}"
