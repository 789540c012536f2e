"""The names that operations have in OpenAPI, in figures and in the audit log: those of their functions."""

from fastapi.routing import APIRoute
from starlette.types import Scope


def name_operation(route: APIRoute) -> str:
    """Return the id of a route's operation; that of ``list_topics`` is listTopics."""
    first, *others = route.name.split("_")
    return first + "".join(map(str.capitalize, others))


def find_operation(scope: Scope) -> str | None:
    """Return the id of the operation that a request was for; None of a page, and of a path that is no route."""
    route = scope.get("route")
    if not isinstance(route, APIRoute):
        return None
    return route.operation_id or (name_operation(route) if route.include_in_schema else None)
