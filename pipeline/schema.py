"""The schema of the table that a message's rows go to."""

import re
from collections.abc import Sequence
from typing import Final, Literal

from google.protobuf.descriptor import Descriptor

from model.errors import DescriptorError
from model.schema import Field, FieldMode, RowSchema
from pipeline.convert import visible
from pipeline.mapping import ATTRIBUTES_FIELD, FieldPlan, map_message
from pipeline.options import read_message_options

Variant = Literal["plain", "change_data"]

ANY_TAG: Final = re.compile("")

_PAIR: Final = (Field("key", "STRING"), Field("value", "STRING"))
ATTRIBUTES_COLUMN: Final = Field(
    ATTRIBUTES_FIELD, "RECORD", "REPEATED", "The message's attributes, without the tags of a replay.", fields=_PAIR
)
INGEST_TIME: Final = "ingest_time"

# What every row says of its message; all of it is the original message's when the row comes of a replay.
META_COLUMNS: Final = (
    Field("_topic", "STRING", description="The topic to which the message was first published."),
    Field("_message_id", "STRING", description="The message's id in Pub/Sub. It is unique only within the topic."),
    Field("_publish_time", "TIMESTAMP", description="When Pub/Sub first received the message."),
    Field("_backfill_id", "STRING", description="The backfill that replayed the message. Null without a replay."),
    Field("_backfill_row", "INT64", description="The number of the message's row in the backfill's selection."),
    Field("_schema_version", "STRING", description="The hash of the schema that the row follows."),
    Field(
        "_unknown",
        "JSON",
        description="The message's fields that are not in the schema, by path. Null if there are none.",
    ),
    Field(INGEST_TIME, "TIMESTAMP", description="When the row was written. Rows of a file share this time."),
)
CHANGE_COLUMNS: Final = (
    Field("_operation", "STRING", description="INSERT, MODIFY or REMOVE."),
    Field("_stream_time", "TIMESTAMP", description="When the source's stream published the change."),
    Field("_stream_event_id", "STRING", description="The id of the change in the source's stream."),
)
# Columns that a warehouse adds: partitions.
_RESERVED: Final = {"ingest_date", "ingest_hour"}


def message_schema(
    message: Descriptor, *, variant: Variant = "plain", policy_tag_pattern: re.Pattern[str] = ANY_TAG
) -> RowSchema:
    """Return the schema of the staging table of ``message``.

    Raises:
        DescriptorError: the message can't be a table; the error names every fault with its place.
    """
    plans = map_message(message)
    return plan_schema(
        plans,
        variant=variant,
        policy_tag_pattern=policy_tag_pattern,
        description=read_message_options(message).table_description,
    )


def plan_schema(
    plans: Sequence[FieldPlan],
    *,
    variant: Variant = "plain",
    policy_tag_pattern: re.Pattern[str] = ANY_TAG,
    description: str = "",
) -> RowSchema:
    """Return the schema of a table with a column for each visible plan, and those that every row has.

    Raises:
        DescriptorError: a field's column has the name of one that every row has.
    """
    own = [_field(plan, policy_tag_pattern) for plan in visible(plans)]
    added = row_columns(plans, variant)
    reserved = {field.name.lower() for field in added} | _RESERVED
    faults = [
        f"{plan.path}: {plan.column} is a column that every row has: rename the field"
        for plan in visible(plans)
        if plan.column.lower() in reserved
    ]
    if faults:
        raise DescriptorError("; ".join(faults), faults=faults)
    return RowSchema((*own, *added), description)


def row_columns(plans: Sequence[FieldPlan], variant: Variant) -> tuple[Field, ...]:
    """Return the columns that rows have beside those of ``plans``, in order."""
    attributes = () if any(plan.kind == "attributes" for plan in plans) else (ATTRIBUTES_COLUMN,)
    changes = CHANGE_COLUMNS if variant == "change_data" else ()
    return (*attributes, *changes, *META_COLUMNS)


def _field(plan: FieldPlan, policy_tag_pattern: re.Pattern[str]) -> Field:
    mode: FieldMode = "REPEATED" if plan.is_repeated or _is_map(plan) else "NULLABLE"
    children: tuple[Field, ...] = ()
    if plan.kind == "attributes":
        children = _PAIR
    elif plan.type == "RECORD":
        children = tuple(_field(child, policy_tag_pattern) for child in visible(plan.fields))
    tags = () if plan.type == "RECORD" else plan.options.tags(policy_tag_pattern)
    return Field(plan.column, plan.type, mode, plan.options.description, tags, children)


def _is_map(plan: FieldPlan) -> bool:
    return plan.kind in ("map", "attributes") and plan.type == "RECORD"
