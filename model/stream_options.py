"""The options of a stream: every field of each kind, declared once for settings, API, terminal and process."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final

from model.declaration import Declared, DeclaredField, FieldSpec, declared_fields
from model.errors import RequestInvalidError
from model.naming import did_you_mean

_WEEK_SECONDS: Final = 7 * 86400
_GROUP: Final = re.compile(r"[a-z][a-z0-9\-]{0,40}")

SLOTS: Final = FieldSpec(
    description="How many tasks pull at the same time; null is the deployment's setting.",
    least=1,
    most=1000,
    help="Tasks that pull at the same time.",
)
BATCH_SECONDS: Final = FieldSpec(
    description="How long a batch is gathered before it is committed; null is the deployment's setting.",
    least=0.05,
    most=300,
    is_changeable=True,
    help="Seconds that a batch is gathered for.",
)
BATCH_BYTES: Final = FieldSpec(
    description="A batch with this many bytes is committed earlier; null is the deployment's setting.",
    least=1_000_000,
    most=1 << 40,
    is_changeable=True,
    help="Commit a batch earlier when it has this many bytes.",
)
KNOWN_IDS_SECONDS: Final = FieldSpec(
    description="How long the ids of archived messages stay known; null is the deployment's setting.",
    least=0,
    most=_WEEK_SECONDS,
    help="Seconds that archived ids stay known.",
)
MESSAGE_BYTES: Final = FieldSpec(
    description="A larger message becomes a dead letter; null is the deployment's setting.",
    least=1_000,
    most=100_000_000,
    help="Bytes of the largest message.",
)
GROUP: Final = FieldSpec(
    description="The group of sources, as the registry's sources.yaml names it.",
    example="default",
    help="The group of sources.",
)
MAPPING: Final = FieldSpec(
    description="Sources of the group that have another name in the registry than they had: old name to new name. "
    "What is known of the old one goes on under the new one. It may stay for good.",
    example={"orders": "sales"},
    help="A source's old and new name; may be repeated.",
    flag="--mapping",
    metavar="OLD=NEW",
)


class StreamKind(StrEnum):
    """What a stream does with its messages."""

    BACKUP = "backup"
    PIPELINE = "pipeline"


@dataclass(frozen=True, slots=True)
class StreamOptions(Declared):
    """What one stream does otherwise than the deployment's settings say; null leaves a setting as it is."""

    # field -> the variable that it stands for in the stream's process
    VARIABLES: ClassVar[Mapping[str, str]] = {}

    slots: Annotated[int | None, SLOTS] = None
    batch_seconds: Annotated[float | None, BATCH_SECONDS] = None
    batch_bytes: Annotated[int | None, BATCH_BYTES] = None

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
        # A setting has nine digits behind the point at most.
        return {self.VARIABLES[name]: str(round(value, 9)) for name, value in given}


@dataclass(frozen=True, slots=True)
class BackupStreamOptions(StreamOptions):
    """The options of a backup stream."""

    VARIABLES: ClassVar[Mapping[str, str]] = {
        "slots": "REFEED_BACKUP_SLOTS",
        "batch_seconds": "REFEED_BACKUP_BATCH_SECONDS",
        "batch_bytes": "REFEED_BACKUP_BATCH_BYTES",
        "known_ids_seconds": "REFEED_KNOWN_IDS_SECONDS",
    }

    known_ids_seconds: Annotated[int | None, KNOWN_IDS_SECONDS] = None


@dataclass(frozen=True, slots=True)
class PipelineStreamOptions(StreamOptions):
    """The options of a pipeline's stream, of one group of sources."""

    VARIABLES: ClassVar[Mapping[str, str]] = {
        "slots": "REFEED_PIPELINE_SLOTS",
        "batch_seconds": "REFEED_PIPELINE_BATCH_SECONDS",
        "batch_bytes": "REFEED_PIPELINE_BATCH_BYTES",
        "message_bytes": "REFEED_PIPELINE_MESSAGE_BYTES",
    }

    group: Annotated[str, GROUP] = "default"
    message_bytes: Annotated[int | None, MESSAGE_BYTES] = None
    mapping: Annotated[Mapping[str, str] | None, MAPPING] = None


OPTIONS: Final[Mapping[StreamKind, type[StreamOptions]]] = {
    StreamKind.BACKUP: BackupStreamOptions,
    StreamKind.PIPELINE: PipelineStreamOptions,
}


def stream_lease(options: StreamOptions, project: str) -> str:
    """Return the name of the lease that a stream with ``options`` holds while it runs.

    A project has one backup, because its backup subscriptions are the project's, and one pipeline a group.

    Example:
        >>> stream_lease(BackupStreamOptions(), "shop"), stream_lease(PipelineStreamOptions(group="eu"), "shop")
        ('backup-shop', 'pipeline-shop-eu')
    """
    if isinstance(options, PipelineStreamOptions):
        return f"pipeline-{project}-{options.group}"
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
        'slots takes a whole number from 1 to 1000.'
    """
    known = {each.name: each for each in declared_fields(OPTIONS[kind])}
    found = []
    for name, value in document.items():
        pointer = "/options/" + name.replace("~", "~0").replace("/", "~1")
        if name not in known:
            message = f"A {kind} stream has no option {name}.{did_you_mean(name, known)}"
            found.append({"code": "field_unknown", "message": message, "pointer": pointer})
        elif fault := _fault(known[name], value):
            found.append({"code": "option_invalid", "message": f"{name} {fault}.", "pointer": pointer})
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
        raise RequestInvalidError(" ".join(error["message"] for error in errors), errors=errors)
    return OPTIONS[kind](**{name: value for name, value in document.items() if value is not None})


def _fault(field: DeclaredField, value: Any) -> str | None:
    """Return what the option takes where the value is not that; None where it is."""
    if value is None:
        return None
    if field.kind is str:
        return None if isinstance(value, str) and is_group(value) else "takes small letters, digits and -"
    if field.kind == Mapping[str, str]:
        is_mapping = isinstance(value, Mapping) and all(isinstance(new, str) and new for new in value.values())
        return None if is_mapping else "takes an object of texts"
    kinds = int if field.kind is int else int | float
    if isinstance(value, kinds) and not isinstance(value, bool) and field.spec.allows(value):
        return None
    number = "a whole number" if field.kind is int else "a number"
    return f"takes {number} from {field.spec.least:.15g} to {field.spec.most:.15g}"
