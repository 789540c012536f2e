"""The JSON shapes of sources and of their schemas' versions, as OpenAPI shows them."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from model.fault import FaultRecord
from reporting.view import MergeResult


class SourceArchived(BaseModel):
    """The number of archived messages of the source's topic in the last day."""

    from_: datetime = Field(alias="from", description="Start, inclusive.")
    to: datetime = Field(description="End, exclusive.")
    messages: int | None = Field(description="Number of messages. Null if the number is unknown.")


class SourceFinding(BaseModel):
    """A field or a code, and how often it occurred."""

    what: str = Field(description="The path of a field, or the code of a refusal.")
    count: int = Field(description="Number of occurrences.")


class SourceFindings(BaseModel):
    """The counts of one kind of finding. The list of sources shows only the ten most frequent findings."""

    total: int = Field(description="Number of all occurrences.")
    largest: list[SourceFinding] = Field(description="The most frequent findings.")


class SourceStaged(BaseModel):
    """The counts of the pipeline stream for the source, since the stream's process began."""

    since: datetime | None = Field(description="When the stream's process began to count.")
    at: datetime | None = Field(description="When the stream wrote these counts.")
    rows: int = Field(
        description="Number of rows that this process has staged. A message that was delivered again, for "
        "example after a restore, does not count again."
    )
    unknown_fields: SourceFindings = Field(
        description="Fields and enum values in messages that are not in the schema."
    )
    missing_fields: SourceFindings = Field(description="Required fields that were missing in messages.")
    refused: SourceFindings = Field(
        description="Messages that became dead letters, by code. A dead letter that was delivered again does not "
        "count again, but a replayed one does."
    )


class SourceMerged(MergeResult):
    """The result of the source's newest ended merge. Dry runs do not count."""

    merge_id: str = Field(description="The merge's id.")
    state: Literal["merged", "failed"] = Field(description="Whether the source was merged.")
    finished_at: datetime | None


class SourceVersion(BaseModel):
    """One version of a table whose schema is inferred."""

    event_type: str = Field(description="The event type. Empty if the source has only one type.")
    number: int = Field(description="The version's number.")
    table: str = Field(description="The staging table.")
    noted_at: datetime = Field(description="When the first message with the new columns arrived.")
    columns: int = Field(description="Number of the table's columns.")


class DiffChange(BaseModel):
    """A field whose type or mode differs."""

    path: str = Field(description="The field's path.")
    before: str = Field(description="The old type and mode.")
    after: str = Field(description="The new type and mode.")
    is_wider: bool = Field(description="Whether every value of the old type is also a value of the new type.")


class SourceTypeChange(SourceVersion):
    """The version in which a column of an inferred table got another type."""

    changed: list[DiffChange] = Field(description="Fields with another type or mode.")


class SourceOut(BaseModel):
    """A source: its topic, its tables and its counts. Null means unknown."""

    name: str = Field(description="The source's name.")
    group: str | None = Field(description="The pipeline's group.")
    topic: str | None = Field(
        description="The topic of the source. If the source's entry in the registry has a fault, this field and "
        "the other fields from the entry are null."
    )
    subscription: str | None = Field(description="The pipeline's subscription.")
    publish: str | None = Field(description="The topic to which the pipeline publishes the source's rows.")
    message: str | None = Field(description="The message type of the schema. Null for an inferred source.")
    schema_version: str | None = Field(description="The hash of the schema in the registry.")
    is_inferred: bool | None = Field(description="Whether the schema is inferred from messages.")
    key: list[str] | None = Field(description="The columns of the key.")
    event_time: str | None = Field(description="The field with the event time.")
    tables: list[str] | None = Field(
        description="Staging tables. An inferred source has one table for each event type."
    )
    reporting: str | None = Field(description="The reporting table. Null if the source has no reporting table.")
    archived: SourceArchived | None = Field(description="Number of archived messages in the source's topic.")
    staged: SourceStaged | None = Field(
        description="Counts of the pipeline stream. Null if no stream on the API's machine has counted "
        "messages of this source."
    )
    merged: SourceMerged | None = Field(
        description="The newest merge. Null if there was no merge in the last 14 days."
    )
    last_type_change: SourceTypeChange | None = Field(
        description="The newest version in which a column of an inferred table got another type. Null if no "
        "column did."
    )
    fault: FaultRecord | None = Field(
        description="The fault in the source's entry in the registry. Null if the entry has no fault."
    )


class SourcesOut(BaseModel):
    """The registry's sources, sorted by name."""

    sources: list[SourceOut]


class DiffField(BaseModel):
    """A field that only one of two versions has."""

    path: str = Field(description="The field's path.")
    type: str = Field(description="The field's type.")


class SourceVersionsDiff(BaseModel):
    """The differences between two versions of a table."""

    event_type: str = Field(description="The event type.")
    from_: int = Field(alias="from", description="The older version.")
    to: int = Field(description="The newer version.")
    added: list[DiffField] = Field(description="New fields.")
    removed: list[DiffField] = Field(description="Removed fields.")
    changed: list[DiffChange] = Field(description="Fields with another type or mode.")


class SourceVersionsOut(BaseModel):
    """Table versions of a source, by type and number. Only inferred sources have versions."""

    source: str = Field(description="The source's name.")
    versions: list[SourceVersion] = Field(description="The versions.")
    diff: SourceVersionsDiff | None = Field(
        description="The difference between the versions `from` and `to`. Null if there is only one version."
    )
