"""Refuses a parameter that an operation lacks: ``validate_onyl=true`` must not create what was to be validated."""

from collections.abc import Iterator
from typing import Any

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel


def refuse_unknown_parameters(request: Request) -> None:
    """Refuse the request if its query has a parameter that its operation lacks; a FastAPI dependency.

    Raises:
        RequestValidationError: it has.
    """
    route = request.scope["route"]
    # A former path passes its query on.
    known = set(_names_of(route.dependant) if route.include_in_schema else request.query_params)
    text = "Extra inputs are not permitted"
    faults = [
        {"type": "extra_forbidden", "loc": ("query", name), "msg": text, "input": request.query_params[name]}
        for name in request.query_params
        if name not in known
    ]
    if faults:
        raise RequestValidationError(faults)


def _names_of(dependant: Dependant) -> Iterator[str]:
    """Yield the names of the parameters that a route or one of its dependencies takes; of a model, its fields."""
    for parameter in dependant.query_params:
        kind: Any = parameter.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from (field.alias or name for name, field in kind.model_fields.items())
        else:
            yield parameter.alias
    for inner in dependant.dependencies:
        yield from _names_of(inner)
