"""A backfill's request: every field, declared once for the API, the terminal, the stored job and its driver."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, Final, Literal, Self

from model.declaration import Declared, FieldSpec, declared_fields
from model.message import TARGET_ATTRIBUTE
from model.query_parameter import QueryParameter

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
    """A subscription with live traffic. While the subscription lags, the backfill slows down."""

    subscription: Annotated[str, FieldSpec(description="The id of the subscription.", shortest=1, longest=300)]
    max_oldest_unacked_seconds: Annotated[
        float,
        FieldSpec(
            description="While the subscription's oldest unacknowledged message is older than this number of "
            "seconds, the backfill publishes nothing.",
            above=0,
            most=_MAX_AGE_SECONDS,
        ),
    ]


@dataclass(frozen=True, slots=True)
class BackfillRequest(Declared):
    """The messages to replay, the target topic and the options. The request for a plan has the same body."""

    query: Annotated[
        str,
        FieldSpec(
            description="One SELECT over the archive, in GoogleSQL. The query must limit `_PARTITIONTIME` or "
            "`_PARTITIONDATE`, and return the columns `data`, `attributes` and `message_id` (docs/sql.md).",
            shortest=1,
            example=_QUERY,
        ),
    ]
    topic: Annotated[
        str,
        FieldSpec(
            description="The id of the topic to publish to. If the topic does not exist and `create_topic` "
            "is not true, the request is refused.",
            shortest=1,
            longest=300,
            example="orders",
            help="The topic to publish to.",
        ),
    ]
    parameters: Annotated[
        Mapping[str, QueryParameter],
        FieldSpec(
            description="The query's parameters by name. The types are STRING, INT64, FLOAT64, BOOL, BYTES "
            "(base64), DATE, TIMESTAMP, and an ARRAY of one of these.",
            example=_PARAMETERS,
            flag="param",
        ),
    ] = field(default_factory=dict)
    description: Annotated[
        str,
        FieldSpec(
            description="The reason, up to 2,000 characters.",
            example="New Year's orders lost their currency.",
            is_changeable=True,
            help="The reason. The list of backfills shows it.",
        ),
    ] = ""
    labels: Annotated[
        Mapping[str, str],
        FieldSpec(
            description="Labels of the backfill. The list of backfills can be filtered by labels.",
            example={"ticket": "shop-123"},
            is_changeable=True,
            help="A label of the backfill. 'refeed get backfills' can filter by labels. May be repeated.",
            flag="label",
        ),
    ] = field(default_factory=dict)
    plan_id: Annotated[
        str | None,
        FieldSpec(
            description="The id of the plan to run. The request must be the same as the planned request. If "
            "the plan has expired, the request is refused.",
            longest=64,
            help="The id of the plan to run. The query must be the same as the planned query.",
            flag="plan",
            metavar="ID",
        ),
    ] = None
    rate_limit_messages_per_second: Annotated[
        float | None,
        FieldSpec(
            description="The maximum number of messages that all tasks together publish in a second. You can "
            "change this limit while the backfill runs.",
            least=_MIN_RATE,
            most=_MAX_RATE,
            example=500,
            is_changeable=True,
            help="The maximum number of messages to publish in a second.",
            flag="rate_limit",
        ),
    ] = None
    max_rows: Annotated[
        int | None,
        FieldSpec(
            description="The maximum number of rows that the query may select. If the query selects more rows, "
            "the backfill fails before it publishes anything.",
            least=1,
            most=_MAX_COUNT,
            help="Fail if the query selects more than N rows.",
        ),
    ] = None
    max_bytes_billed: Annotated[
        int | None,
        FieldSpec(
            description="The maximum number of bytes that the query may read. A query that would read more is "
            "refused. BigQuery counts at least 10 MB for each table.",
            least=1,
            most=_MAX_COUNT,
            help="Refuse a query that would read more than N bytes.",
        ),
    ] = None
    canary_messages: Annotated[
        int | None,
        FieldSpec(
            description="The number of messages in the canary. The backfill publishes these messages first, "
            "and then pauses until :resume.",
            least=1,
            most=_MAX_COUNT,
            example=10,
            help="Publish N messages, and then pause until somebody resumes the backfill.",
            flag="canary",
        ),
    ] = None
    start_paused: Annotated[
        bool,
        FieldSpec(
            description="Whether the backfill publishes nothing until :resume.",
            help="Start the backfill paused. It publishes nothing until somebody resumes it.",
        ),
    ] = False
    ordering: Annotated[
        Ordering,
        FieldSpec(
            description="`none`: messages have no ordering key. `by_key`: messages keep their ordering keys, "
            "and the messages of each key are published in their original order.",
            help="'none': publish without ordering keys. 'by_key': keep the ordering keys, and publish the "
            "messages of each key in their original order.",
        ),
    ] = "none"
    attributes: Annotated[
        Mapping[str, str],
        FieldSpec(
            description="Attributes that are added to every message. You can't use names that begin with "
            "`goog` or `refeed_`.",
            help="Add this attribute to every message. May be repeated.",
            flag="add_attribute",
        ),
    ] = field(default_factory=dict)
    yield_to: Annotated[
        YieldTo | None,
        FieldSpec(
            description="A subscription with live traffic. This traffic has priority: while the subscription "
            "lags, the backfill publishes more slowly or not at all. If the subscription is missing for two "
            "minutes, the backfill fails.",
            help="Publish nothing while the oldest pending message of this subscription is older than SECONDS.",
        ),
    ] = None
    max_failed: Annotated[
        int,
        FieldSpec(
            description="The maximum number of dead letters. If more messages become dead letters, the "
            "backfill fails.",
            least=0,
            most=_MAX_COUNT,
            help="Fail if more than N messages can't be published.",
        ),
    ] = 0
    allow_overlap: Annotated[
        bool,
        FieldSpec(
            description="Whether to create the backfill even if another backfill publishes some of the same "
            "messages to the topic.",
            help="Create the backfill even if another backfill publishes some of the same messages to the topic.",
        ),
    ] = False
    target_subscription: Annotated[
        str | None,
        FieldSpec(
            description="The only subscription of the topic that receives the messages. Each message gets the "
            "attribute `refeed_target`, and the subscription's filter must select this attribute.",
            longest=300,
            help="Deliver the messages only to this subscription of the topic (docs/api.md).",
            metavar="SUBSCRIPTION",
        ),
    ] = None
    create_topic: Annotated[
        bool,
        FieldSpec(
            description="Whether to create the topic if it does not exist. A plan creates nothing.",
            help="Create the topic if it does not exist.",
        ),
    ] = False
    fail_if_empty: Annotated[
        bool,
        FieldSpec(
            description=(
                "Whether an empty selection is an error. If true, a backfill whose query selects nothing fails "
                "with `nothing_selected`. A request whose plan (`plan_id`) has no rows is refused."
            ),
            help="Fail if the query selects nothing.",
        ),
    ] = False
    allow_empty: Annotated[
        bool,
        FieldSpec(
            description="Whether to create the backfill even if its plan (`plan_id`) selects nothing. By "
            "default, such a request is refused with `nothing_selected`.",
            help="Create the backfill even if the plan selects nothing.",
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
