"""The request to launch a stream: every field, declared once for the API and the terminal."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from model.declaration import Declared, FieldSpec

KIND: Final = FieldSpec(description="What the stream does.", example="backup")
RELEASE: Final = FieldSpec(
    description="The version of Refeed that runs the stream. Null means the installed version.",
    shortest=1,
    longest=64,
    metavar="VERSION",
    help="Run this version of Refeed. Default: the installed version.",
)
SNAPSHOT: Final = FieldSpec(
    description="The id of a COMPLETED snapshot of a stream of the same kind and group. The stream starts with "
    "the snapshot's state. If the snapshot includes Pub/Sub snapshots, the stream's subscriptions return "
    "to them too. Null means that the stream continues from its own state.",
    shortest=1,
    longest=64,
    metavar="ID",
    help="Start with the state of this snapshot. The snapshot must be of a stream of the same kind. If the "
    "snapshot includes Pub/Sub snapshots, the stream's subscriptions return to them too.",
)


@dataclass(frozen=True, slots=True)
class StreamLaunch(Declared):
    """A stream to launch, with its options."""

    name: Annotated[
        str,
        FieldSpec(
            description="The name of the stream: up to 63 lower-case letters, digits and -, with a letter first. "
            "Two running streams can't have the same name.",
            shortest=1,
            longest=63,
            example="backup",
            help="The name that monitoring shows.",
        ),
    ]
    kind: Annotated[Literal["backup", "pipeline", "kinesis"], KIND]
    options: Annotated[
        Mapping[str, Any],
        FieldSpec(
            description="Every kind of stream has the options `slots`, `batch_seconds` and `batch_bytes`. A "
            "backup also has `known_ids_seconds`. A pipeline also has `group`, `message_bytes` and "
            "`mapping`. A kinesis stream also has `stream`, `region`, `topic`, `start`, `recreated`, "
            "`source`, `access_key_id` and `secret_access_key`. For a missing or null option, the stream "
            "uses the deployment's default.",
            example={"slots": 4, "batch_seconds": 2},
        ),
    ] = field(default_factory=dict)
    release: Annotated[str | None, RELEASE] = None
    snapshot: Annotated[str | None, SNAPSHOT] = None
