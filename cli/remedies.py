"""The command that answers a problem or an item of the inbox, wherever it is shown."""

from collections.abc import Mapping
from typing import Any, Final

from cli.backfill_view import next_command

# The next command after a problem; jobs are in the inbox with their own.
MENDS: Final = {
    "backup_not_running": "refeed up, or refeed backup",
    "background_failing": "refeed doctor, on the service's machine",
    "stream_not_reporting": "refeed doctor, on the stream's machine",
    "stream_without_agent": "refeed up, or refeed agent",
    "messages_expire": "refeed get streams",
    "stream_failing": "refeed logs stream/{name}",
    "stream_failed": "refeed events stream/{name}",
    "stream_ended": "refeed launch {name}",
    "stream_behind": "refeed get topics",
    "source_alert": "refeed source check",
    "source_refuses": "refeed dead-letters",
    "topic_unread": "refeed attach",
}
DOES: Final[Mapping[tuple[str, str], str]] = {
    ("approval", "backfill"): "refeed approve {id}",
    ("incomplete", "backfill"): "refeed missing {id}",
    ("failure", "merge"): "refeed retry {id}",
    ("failure", "compaction"): "refeed retry {id}",
    ("approval", "change"): "refeed approve {id}",
    ("failure", "update"): "refeed describe {id}",
    ("dead_letters", "stream"): "refeed dead-letters",
    ("gap", "topic"): "refeed histogram {id}",
    ("type_change", "source"): "refeed describe source/{id}",
    ("ended", "stream"): MENDS["stream_ended"].replace("{name}", "{id}"),
    ("failure", "stream"): "refeed events stream/{id}",
    ("failure", "snapshot"): "refeed describe {id}",
    ("failure", "manifest"): "refeed get manifests",
    ("failure", "schedule"): "refeed describe schedule/{id}",
}


def command_of(item: Mapping[str, Any]) -> str:
    """Return the command that answers an item; of a backfill the one that its own ``show`` names."""
    if item.get("code") == "rules_unfit":
        # A retry uses the rules that the merge began with.
        return f"refeed describe {item['id']}"
    if (item["kind"], item["resource"]) in DOES:
        return DOES[item["kind"], item["resource"]].format(id=item["id"])
    # An API of an earlier release gives no code.
    state = "FAILED" if item["kind"] == "failure" else "PAUSED"
    job = {"id": item["id"], "state": state, "error": {"code": item.get("code")}}
    return next_command(job) or f"refeed describe {item['id']}"
