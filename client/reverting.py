"""Whether a backfill can be reverted, by what the API says of it."""

from collections.abc import Mapping
from typing import Any

from model.job import JobState


def find_revert_obstacle(backfill: Mapping[str, Any]) -> str | None:
    """Return why a backfill can't be reverted, None where it can: rows of it are staged, and none is merged.

    Example:
        >>> landed = {"state": "complete", "published": 3, "landed": 3, "merged": 0}
        >>> find_revert_obstacle({"state": "SUCCEEDED", "verification": landed})
        >>> find_revert_obstacle({"state": "SUCCEEDED", "verification": {**landed, "merged": 2}})
        'not possible: 2 rows are merged'
    """
    verification = backfill.get("verification") or {}
    if not JobState(backfill["state"]).is_final or verification.get("state", "pending") == "pending":
        return "once it has ended and is verified"
    if not verification.get("published") or verification.get("landed") == 0:
        return "nothing to revert"
    if verification.get("landed") is None:
        return "not possible: no staging table of the topic is known"
    if verification.get("merged"):
        return f"not possible: {verification['merged']:,} rows are merged"
    return None
