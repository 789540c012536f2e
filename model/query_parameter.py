"""A named, typed parameter of a query in JSON."""

from typing import Annotated, Any

from typing_extensions import TypedDict

from model.declaration import FieldSpec, declared


# Pydantic takes this TypedDict alone before Python 3.12.
@declared
class QueryParameter(TypedDict):
    """The type and the value of a query's parameter."""

    type: Annotated[
        str,
        FieldSpec(
            description="The GoogleSQL type, such as STRING, TIMESTAMP or ARRAY<STRING>.",
            longest=64,
            example="TIMESTAMP",
        ),
    ]
    value: Annotated[
        Any,
        FieldSpec(
            description="The value as JSON: BYTES as base64, DATE and TIMESTAMP as RFC 3339, an array as a list. "
            "null means NULL.",
            example="2026-01-01T00:00:00Z",
        ),
    ]
