"""The JSON shapes of sources and of their schemas' versions, as OpenAPI shows them."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from api.schemas import CodedMessage
from api.schemas_merges import MergeError


class SourceArchived(BaseModel):
    """Messages of the source's topic that were archived within a day."""

    from_: datetime = Field(alias="from")
    to: datetime
    messages: int | None = Field(description="By ingestion; null where an hour has not been counted.")


class SourceFinding(BaseModel):
    """A field or a reason, and how often it was met."""

    what: str = Field(description="Of a field its path in the message, of what was refused the code.")
    count: int


class SourceFindings(BaseModel):
    """Findings of one kind; `largest` has ten of them in the list of sources, and all of them in one source."""

    total: int
    largest: list[SourceFinding]


class SourceStaged(BaseModel):
    """What the pipeline's stream has counted of the source since its process began."""

    since: datetime | None
    at: datetime | None = Field(description="When the stream wrote these counts.")
    rows: int
    unknown_fields: SourceFindings = Field(description="Fields that the schema does not know.")
    missing_fields: SourceFindings = Field(description="Required fields that messages lacked.")
    refused: SourceFindings = Field(description="Messages that became dead letters, by code.")


class SourceMerged(BaseModel):
    """What the newest merge of the source that has ended made of it; dry runs do not count."""

    merge_id: str
    state: Literal["merged", "failed"]
    finished_at: datetime | None
    until: datetime | None = Field(description="Up to when staging is in reporting.")
    changed: int = Field(description="Keys that staging had.")
    newer: int = Field(description="Those of them that changed reporting.")
    without_key: int = Field(description="Keys staged that are null as a whole: each row is kept, by its message.")
    rows_before: int = Field(description="In the partitions that changed.")
    rows_after: int
    error: MergeError | None


class SourceFault(CodedMessage):
    """Why the registry's entry can't be used."""


class SourceOut(BaseModel):
    """A source: its topic, its tables, and how much went from one to the next. Null is not known, never zero."""

    name: str
    group: str | None
    topic: str | None = Field(description="Null of a source that has a fault, as all that its entry says.")
    subscription: str | None
    publish: str | None = Field(description="The topic that its rows are published to.")
    message: str | None = Field(description="The message of its schema; null of an inferred source.")
    schema_version: str | None = Field(description="The hash of the schema that the registry has now.")
    is_inferred: bool | None
    key: list[str] | None
    event_time: str | None
    tables: list[str] | None = Field(description="Staging: of an inferred source one for each type of event.")
    reporting: str | None
    archived: SourceArchived | None
    staged: SourceStaged | None = Field(description="Null where no stream of this home has counted any of it.")
    merged: SourceMerged | None = Field(description="Null where no merge of the last 14 days got to it.")
    fault: SourceFault | None


class SourcesOut(BaseModel):
    """The registry's sources, by name."""

    sources: list[SourceOut]


class SourceVersion(BaseModel):
    """One version of a table whose schema is inferred."""

    event_type: str = Field(description="Empty where the source has one type.")
    number: int
    table: str
    noted_at: datetime = Field(description="When the first message came that made the table this wide.")
    columns: int


class DiffField(BaseModel):
    """A field that one of two versions has."""

    path: str
    type: str


class DiffChange(BaseModel):
    """A field whose type or mode differs."""

    path: str
    before: str
    after: str
    is_wider: bool = Field(description="Whether every cell of before has its value in after.")


class SourceVersionsDiff(BaseModel):
    """What differs between two versions of one type's table."""

    event_type: str
    from_: int = Field(alias="from")
    to: int
    added: list[DiffField]
    removed: list[DiffField]
    changed: list[DiffChange]


class SourceVersionsOut(BaseModel):
    """Versions of an inferred source's tables, by type and number; a source with a message has none here."""

    source: str
    versions: list[SourceVersion]
    diff: SourceVersionsDiff | None = Field(
        description="Of the versions in `from` and `to`, else of the newest two; null while there are no two."
    )
