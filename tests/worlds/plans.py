"""A plan as the API answers it, for commands that show one."""

from typing import Any

PLAN: dict[str, Any] = {
    **{name: [] for name in ("samples", "subscriptions", "warnings")},
    "plan_id": "pl_1",
    "expires_at": "2026-01-01T00:15:00Z",
    "rows": 12,
    "topic": "orders",
    "window": None,
    "rows_by_topic": {},
}
