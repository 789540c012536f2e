"""The request to launch a stream: every field, declared once for the API and the terminal."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from model.declaration import Declared, FieldSpec

KIND: Final = FieldSpec(description="What the stream does.", example="backup")
RELEASE: Final = FieldSpec(
    description="The version of Refeed that runs the stream; null is the installed version.",
    shortest=1,
    longest=64,
    metavar="VERSION",
    help="Run this version of Refeed. Default: the installed version.",
)
SNAPSHOT: Final = FieldSpec(
    description="A COMPLETED snapshot of a stream of the same kind and group. The stream starts with the "
    "snapshot's state and, if the snapshot includes it, its source. Null is the stream's own state.",
    shortest=1,
    longest=64,
    metavar="ID",
    help="Start with the state of this snapshot, of a stream of the same kind. If the snapshot includes its "
    "source, the subscriptions go back to it too.",
)


@dataclass(frozen=True, slots=True)
class StreamLaunch(Declared):
    """A stream to launch: its name, what it does, and how."""

    name: Annotated[
        str,
        FieldSpec(
            description="The name that monitoring shows, unique among living streams: up to 63 lower-case "
            "letters, digits and -. The first is a letter.",
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
            description="All kinds have slots, batch_seconds and batch_bytes. A backup has known_ids_seconds. "
            "A pipeline has group, message_bytes and mapping. kinesis has stream, region, topic, start, "
            "recreated, source, access_key_id and secret_access_key. An option that is absent or null has the "
            "deployment's setting.",
            example={"slots": 4, "batch_seconds": 2},
        ),
    ] = field(default_factory=dict)
    release: Annotated[str | None, RELEASE] = None
    snapshot: Annotated[str | None, SNAPSHOT] = None
