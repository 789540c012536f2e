"""Queries before they are a backfill's: checked as they are written, and run by nobody."""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from api.answers import INVALID, Caller, QuickCalls, Service, problems
from api.schemas import CodedMessage
from api.schemas_backfills import TimeWindow
from sql.parameters import QueryParameter

router: Final = APIRouter(tags=["queries"])
# Above the gate's own bound, whose finding is clearer.
_MAX_QUERY_CHARACTERS: Final = 1_000_000
_EXAMPLE: Final = "SELECT data, attributes, message_id FROM backup.messages WHERE topic = 'orders'"


class QueryCheck(BaseModel):
    """A query to check, as a backfill would have it."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [{"query": _EXAMPLE}]})

    query: Annotated[str, Field(max_length=_MAX_QUERY_CHARACTERS)]
    parameters: dict[str, QueryParameter] = Field(default_factory=dict)


class QueryEdit(BaseModel):
    """A change of the text: `text` takes the place of the characters from `start` to `end`, exclusive."""

    start: int
    end: int
    text: str


class QueryFinding(BaseModel):
    """A reason why the query is refused, and where; offsets count characters (code points) from 0."""

    code: str
    message: str
    line: int
    column: int
    start: int
    end: int
    rewrite: str | None = Field(description="A way out, in words or as SQL.")
    edits: list[QueryEdit] = Field(
        description="What mends it when all of them are applied: tried, so that this finding is gone and no other "
        "one has come. Empty where nothing is known to."
    )
    source: Literal["gate", "warehouse"] = Field(
        description="`warehouse`: the gate lets it through, and this deployment's warehouse can't do it."
    )


class RewrittenQuery(BaseModel):
    """The query with the edits of all findings, or of its warnings where it passes, and whether it may run."""

    query: str
    passes: bool


class QueryColumn(BaseModel):
    """A column and its type."""

    name: str
    type: str


class ReadableTableOut(BaseModel):
    """A table that queries may read."""

    table: str
    is_archive: bool
    columns: list[QueryColumn] | None = Field(description="Null where they are known to BigQuery alone.")


class QueryWarning(CodedMessage):
    """Something to know of a query that may run."""


class QueryVerdict(BaseModel):
    """The gate's verdict on a query; nothing was run."""

    passes: bool
    findings: list[QueryFinding]
    rewritten: RewrittenQuery | None
    window: TimeWindow | None = Field(description="The ingestion times that it can read; null when it is refused.")
    columns: list[QueryColumn] = Field(description="Of its result; empty when it is refused.")
    warnings: list[QueryWarning]
    reads: list[str] = Field(description="The tables that it reads; empty when it is refused.")
    tables: list[ReadableTableOut] = Field(description="All tables that queries may read.")


@router.post(
    "/queries:check",
    operation_id="checkQuery",
    response_model=QueryVerdict,
    responses=problems(s422=INVALID, s502="The warehouse failed."),
)
def check_query(body: QueryCheck, request: Request, service: Service, caller: Caller, quick: QuickCalls) -> Any:
    """Check a replay's query without running it: findings, edits that mend them, and the tables it may read."""
    with quick:
        found = service.check_query(body.query, body.parameters, principal=caller)
    # It changes nothing and is called as somebody types: the audit log keeps it only when it is refused or fails.
    request.state.is_audited = True
    return found
