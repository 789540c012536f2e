"""Queries before they are a backfill's: checked as they are written, and run by nobody."""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from api.answers import INVALID, Caller, QuickCalls, Service, problems
from backfill.plan.create import BackfillCreate
from backfill.plan.plan import PlanWarning, TimeWindow
from model.query_parameter import QueryParameter

router: Final = APIRouter(tags=["queries"])
# Above the gate's own bound, whose finding is clearer.
_MAX_QUERY_CHARACTERS: Final = 1_000_000
_EXAMPLE: Final = "SELECT data, attributes, message_id FROM backup.messages WHERE topic = 'orders'"


class QueryCheck(BaseModel):
    """A backfill's query to check, or the topic and the range for which Refeed writes the query."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [{"query": _EXAMPLE}]})

    query: Annotated[str, Field(max_length=_MAX_QUERY_CHARACTERS)] = Field(default="", description="The query.")
    parameters: dict[str, QueryParameter] = Field(default_factory=dict, description="Its parameters by name.")
    source_topic: str | None = Field(default=None, description="The topic, as in a backfill's request.")
    from_: str | None = Field(default=None, alias="from", description="The first publish time.")
    to: str | None = Field(default=None, description="The end of the publish times, exclusive.")
    source_attributes: dict[str, str] = Field(default_factory=dict, description="Attributes of the messages.")
    where: str | None = Field(default=None, description="A further condition.")


class QueryEdit(BaseModel):
    """A change of the query: `text` replaces the characters from `start` to `end`, exclusive."""

    start: int = Field(description="The offset of the first replaced character.")
    end: int = Field(description="The offset after the last replaced character.")
    text: str = Field(description="The new text.")


class QueryFinding(BaseModel):
    """The reason for a refusal, and the refused part of the query. Offsets count code points from 0."""

    code: str
    message: str
    line: int = Field(description="The line, from 1.")
    column: int = Field(description="The column, from 1.")
    start: int = Field(description="The offset of the first refused character.")
    end: int = Field(description="The offset after the last refused character.")
    rewrite: str | None = Field(
        description="A suggestion for the query, as SQL or as a sentence. Null if there is no suggestion."
    )
    edits: list[QueryEdit] = Field(
        description="Edits that together correct the fault. Empty if there is no correction."
    )
    source: Literal["gate", "warehouse"] = Field(
        description="Who refuses the query. `gate`: the SQL gate (Refeed's check of queries). `warehouse`: the "
        "gate accepts the query, but the deployment's warehouse can't run the query."
    )


class RewrittenQuery(BaseModel):
    """The query with all edits applied."""

    query: str = Field(description="The query with the edits.")
    passes: bool = Field(description="Whether this query is accepted.")


class QueryColumn(BaseModel):
    """A column and its type."""

    name: str = Field(description="The column's name.")
    type: str = Field(description="The column's GoogleSQL type.")


class ReadableTableOut(BaseModel):
    """A table that queries may read."""

    table: str = Field(description="The table's name.")
    is_archive: bool = Field(description="Whether the table is the archive.")
    columns: list[QueryColumn] | None = Field(
        description="The table's columns. Null if only BigQuery knows the columns."
    )


class QueryVerdict(BaseModel):
    """The gate's verdict on a query. The query did not run."""

    query: str = Field(description="The checked query. The findings have their places in this query.")
    passes: bool = Field(description="Whether the query is accepted.")
    findings: list[QueryFinding] = Field(description="The reasons why the query is refused.")
    rewritten: RewrittenQuery | None = Field(
        description="The query with all edits applied. Null if there are no edits."
    )
    window: TimeWindow | None = Field(
        description="The window of `ingest_time` in which the query can read messages. Null if the query is "
        "refused."
    )
    columns: list[QueryColumn] = Field(description="The columns of the result. Empty if the query is refused.")
    warnings: list[PlanWarning] = Field(description="The warnings about an accepted query.")
    reads: list[str] = Field(description="The tables that the query reads. Empty if the query is refused.")
    tables: list[ReadableTableOut] = Field(description="All tables that queries may read.")


@router.post(
    "/queries:check",
    response_model=QueryVerdict,
    responses=problems(s422=INVALID, s502="The warehouse returned an error."),
)
def check_query(body: QueryCheck, request: Request, service: Service, caller: Caller, quick: QuickCalls) -> Any:
    """Check the query of a replay without running it. The answer lists all faults, with their corrections."""
    with quick:
        found = service.check_query(BackfillCreate(topic="none", **dict(body)), principal=caller)
    # It changes nothing and is called as somebody types: the audit log keeps it only when it is refused or fails.
    request.state.is_audited = True
    return found
