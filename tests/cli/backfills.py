"""A backfill as the API answers it."""

from typing import Any


def backfill(state: str, published: int | None = 0, **fields: Any) -> dict[str, Any]:
    return {
        "id": "bf_1",
        "state": state,
        "topic": "orders",
        "created_at": "2026-01-01T00:00:00Z",
        "progress": {"selected": 2, "published": published, "failed": 0},
        "error": None,
        **fields,
    }
