"""A backfill's request: every field, declared once for the API, the terminal, the stored job and its driver."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, Final, Literal, Self

from model.declaration import Declared, FieldSpec, declared_fields
from model.message import TARGET_ATTRIBUTE
from sql.parameters import QueryParameter

# No deployment publishes faster than this or counts further than that. Slower than one message an hour is a
# backfill that wants to be paused.
_MAX_RATE: Final = 10_000_000.0
_MIN_RATE: Final = 1 / 3600
_MAX_COUNT: Final = 2**53
_MAX_AGE_SECONDS: Final = 7 * 86400.0
_QUERY: Final = """\
SELECT data, attributes, message_id
FROM backup.messages
WHERE _PARTITIONDATE = @day AND topic = 'orders'"""
_PARAMETERS: Final = {"day": {"type": "DATE", "value": "2026-01-01"}}

Ordering = Literal["none", "by_key"]


@dataclass(frozen=True, slots=True)
class YieldTo(Declared):
    """Live traffic that comes first: the backfill holds back while this subscription lags."""

    subscription: Annotated[
        str, FieldSpec(description="Id of any subscription of the project.", shortest=1, longest=300)
    ]
    max_oldest_unacked_seconds: Annotated[
        float,
        FieldSpec(
            description="Nothing goes out while its oldest message is older.", above=0, most=_MAX_AGE_SECONDS
        ),
    ]


@dataclass(frozen=True, slots=True)
class BackfillRequest(Declared):
    """What to replay, where to and how; a plan takes the same body as a create."""

    query: Annotated[
        str,
        FieldSpec(
            description="One SELECT over the archive, in GoogleSQL, with a window on _PARTITIONTIME or "
            "_PARTITIONDATE and the columns data, attributes and message_id (docs/sql.md).",
            shortest=1,
            example=_QUERY,
        ),
    ]
    topic: Annotated[
        str,
        FieldSpec(
            description="Id of the topic that the messages go to. One that does not exist is refused, by a "
            "plan too.",
            shortest=1,
            longest=300,
            example="orders",
            help="The topic to publish to.",
        ),
    ]
    parameters: Annotated[
        Mapping[str, QueryParameter],
        FieldSpec(
            description="The query's parameters, by their names; types are STRING, INT64, FLOAT64, BOOL, "
            "BYTES (base64), DATE, TIMESTAMP and ARRAY<...> of them.",
            example=_PARAMETERS,
            flag="param",
        ),
    ] = field(default_factory=dict)
    description: Annotated[
        str,
        FieldSpec(
            description="Why; up to 2,000 characters.",
            example="New Year's orders lost their currency.",
            is_changeable=True,
            help="The reason, for people who read the list later.",
        ),
    ] = ""
    labels: Annotated[
        Mapping[str, str],
        FieldSpec(
            description="Lists of backfills can be filtered by them.",
            example={"ticket": "shop-123"},
            is_changeable=True,
            help="A label; may be repeated.",
            flag="label",
        ),
    ] = field(default_factory=dict)
    plan_id: Annotated[
        str | None,
        FieldSpec(
            description="The plan that was looked at; refused with 409 once it has expired or is of another "
            "query.",
            longest=64,
            help="The id of the plan that it runs.",
            flag="plan",
            metavar="ID",
        ),
    ] = None
    rate_limit_messages_per_second: Annotated[
        float | None,
        FieldSpec(
            description="Over all tasks together; may change while it runs.",
            least=_MIN_RATE,
            most=_MAX_RATE,
            example=500,
            is_changeable=True,
            help="Messages a second, at most.",
            flag="rate_limit",
        ),
    ] = None
    max_rows: Annotated[
        int | None,
        FieldSpec(
            description="More selected rows than this fail the backfill before anything goes out.",
            least=1,
            most=_MAX_COUNT,
            help="Fail when the query selects more.",
        ),
    ] = None
    max_bytes_billed: Annotated[
        int | None,
        FieldSpec(
            description="The query is refused when it would read more bytes than this. On BigQuery it is "
            "the query's maximum_bytes_billed too, of which the least is 10 MB a table.",
            least=1,
            most=_MAX_COUNT,
            help="Refuse when the query reads more.",
        ),
    ] = None
    canary_messages: Annotated[
        int | None,
        FieldSpec(
            description="Publish N messages, pause, and wait for :resume.",
            least=1,
            most=_MAX_COUNT,
            example=10,
            help="Publish N messages, pause, and wait for a resume.",
            flag="canary",
        ),
    ] = None
    start_paused: Annotated[
        bool,
        FieldSpec(description="Wait for :resume before anything starts.", help="Start paused, until a resume."),
    ] = False
    ordering: Annotated[
        Ordering,
        FieldSpec(
            description="by_key sets the original ordering keys again, and each key's messages go out in "
            "their order.",
            help="by_key: restore keys.",
        ),
    ] = "none"
    attributes: Annotated[
        Mapping[str, str],
        FieldSpec(
            description="Added to every message; goog... and refeed_... are reserved.",
            help="Add this attribute to every message; may be repeated.",
            flag="attribute",
        ),
    ] = field(default_factory=dict)
    yield_to: Annotated[
        YieldTo | None,
        FieldSpec(
            description="Live traffic that comes first: slow down and stop while the subscription's oldest "
            "message is older. A subscription that is gone for two minutes fails the backfill.",
            help="Pause while the subscription's oldest message is older.",
        ),
    ] = None
    max_failed: Annotated[
        int,
        FieldSpec(
            description="More messages than this that can't be published stop it.",
            least=0,
            most=_MAX_COUNT,
            help="Fail after more than N dead letters.",
        ),
    ] = 0
    allow_overlap: Annotated[
        bool,
        FieldSpec(
            description="Run although another backfill replays some of the same messages there.",
            help="Run although another backfill overlaps.",
        ),
    ] = False
    target_subscription: Annotated[
        str | None,
        FieldSpec(
            description="Only this subscription of the topic is meant: adds refeed_target, which its filter "
            "selects.",
            longest=300,
            help="Deliver to this subscription only; see docs/api.md.",
            metavar="SUBSCRIPTION",
        ),
    ] = None
    create_topic: Annotated[
        bool,
        FieldSpec(
            description="Create the topic if it does not exist; without this a missing topic is refused. A "
            "plan creates nothing.",
            help="Create the topic if it does not exist.",
        ),
    ] = False
    fail_if_empty: Annotated[
        bool,
        FieldSpec(
            description="A query that selects nothing fails the backfill with nothing_selected; a plan "
            "without rows is refused.",
            help="End as FAILED when the query selects nothing.",
        ),
    ] = False
    allow_empty: Annotated[
        bool,
        FieldSpec(
            description="Run although the plan in plan_id selects nothing; without this it is refused with "
            "nothing_selected. Without a plan, or where the plan has no count, nothing is asked.",
            help="Run although its plan selects nothing.",
        ),
    ] = False

    def to_json(self) -> dict[str, Any]:
        """Return the request as the API takes it."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return the request of a document that :meth:`to_json` or an older Refeed wrote.

        A field that is null or absent has its default, and what is not a field is left out.
        """
        names = (each.name for each in fields(cls) if each.init)
        given = {name: document[name] for name in names if document.get(name) is not None}
        if "yield_to" in given:
            given["yield_to"] = YieldTo(**given["yield_to"])
        return cls(**given)

    def fingerprint(self) -> str:
        """Return a digest that is the same for the same request."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def added_attributes(self) -> dict[str, str]:
        """Return what every message gets beside its own attributes and the tags."""
        if self.target_subscription is None:
            return dict(self.attributes)
        return {**self.attributes, TARGET_ATTRIBUTE: self.target_subscription}


# Kept among a job's options and read there alone: a change, or the end of a canary, takes them away.
LIVE: Final = ("rate_limit_messages_per_second", "canary_messages")
CHANGEABLE: Final = tuple(each.name for each in declared_fields(BackfillRequest) if each.spec.is_changeable)
