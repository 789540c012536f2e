"""The API's JSON shapes that every route shares, as OpenAPI shows them."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, cast

from fastapi import Query
from pydantic import AfterValidator, AliasPath, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from model.declaration import Declared, declared_fields

_RFC_3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]")


def _refuse_numbers(value: Any) -> Any:
    """Refuse what pydantic would take for seconds since 1970, and nobody means."""
    if isinstance(value, str) and _RFC_3339.match(value) is None:
        raise PydanticCustomError("datetime_parsing", "Input should be a time as RFC 3339: 2024-03-01T12:00:00Z")
    return value


def _bring_into_calendar(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        # Its own date is in the calendar, and in UTC it lies some hours before or after.
        return datetime.min.replace(tzinfo=UTC) if moment.year == 1 else datetime.max.replace(tzinfo=UTC)


Rfc3339Time = Annotated[AwareDatetime, BeforeValidator(_refuse_numbers)]
"""A time in a query's parameter, as RFC 3339 with an offset. Numbers are refused."""
Since = Annotated[Rfc3339Time, AfterValidator(_bring_into_calendar)]
"""The time (UTC) at which a list begins. A time before the calendar lists everything."""
End = Annotated[
    Rfc3339Time | None,
    Query(alias="to", description="End of the window (RFC 3339), exclusive. The default is now."),
]


def read_at(path: str, description: str | None = None) -> Any:
    """Return the declaration of a field that an answer reads from within another one, such as request.release."""
    return Field(validation_alias=AliasPath(*path.split(".")), description=description)


class StreamJobOut(BaseModel):
    """A job of a stream, read from what its service returns, or from its own JSON."""

    model_config = ConfigDict(populate_by_name=True, json_schema_serialization_defaults_required=True)

    id: str
    etag: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it in the API's shape."""
        return self.model_dump(mode="json")


class ProblemItem(BaseModel):
    """One violation. A violation in a query has a line and a column. Other violations have a JSON pointer."""

    code: str
    message: str
    pointer: str | None = Field(default=None, description="The JSON pointer of the field.")
    line: int | None = Field(default=None, description="The line in the query, from 1.")
    column: int | None = Field(default=None, description="The column in the query, from 1.")
    rewrite: str | None = Field(
        default=None,
        description="A suggestion for the query, as SQL or as a sentence. Null if there is no suggestion.",
    )


class Problem(BaseModel):
    """An error, as problem details (RFC 9457)."""

    type: Annotated[str, Field(json_schema_extra={"format": "uri-reference"})]
    title: str
    status: int
    detail: str
    instance: str
    code: str
    errors: list[ProblemItem]


def problem_schemas() -> dict[str, Any]:
    """Return OpenAPI's schemas of a problem and of what it is made of."""
    schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**schema.pop("$defs"), "Problem": schema}


def changes_of(declaration: type, name: str, about: str, *, example: dict[str, Any]) -> type:
    """Return the TypedDict of a declaration's fields that may change.

    It has the fields that are sent: no default stands for one that is left out.
    """
    declared = (each for each in declared_fields(declaration) if each.spec.is_changeable)
    fields = {each.name: Annotated[each.type, each.spec] for each in declared}
    # A type checker wants to read the fields in the text.
    make: Any = TypedDict
    found = make(name, fields, total=False)
    found.__doc__ = about
    found.__pydantic_config__ = {**Declared.__pydantic_config__, "json_schema_extra": {"examples": [example]}}
    return cast(type, found)


class Health(BaseModel):
    """The health of the service."""

    status: Literal["ok", "not_ready"] = Field(description="The value is `not_ready` if the service has problems.")
    problems: dict[str, str] = Field(
        default_factory=dict, description="The problems, by the part of the service that has the problem."
    )


class Root(BaseModel):
    """The service's main paths."""

    service: str = Field(default="refeed", description="The name of the service.")
    version: str = Field(description="The version of Refeed.")
    docs: str = Field(default="/docs", description="The path of Swagger UI.")
    openapi: str = Field(default="/openapi.json", description="The path of the OpenAPI document.")
    health: str = Field(default="/healthz", description="The path that shows whether the process runs.")
    readiness: str = Field(default="/readyz", description="The path that shows whether a backfill can start.")
    metrics: str = Field(default="/metrics", description="The path of the metrics.")
    status: str = Field(default="/status", description="The path of the service's status.")
