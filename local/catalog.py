"""The one file that remembers a data folder's topics, subscriptions and snapshots: replaced whole."""

import json
import os
from pathlib import Path
from typing import Any, Final

from google.protobuf import json_format

from model.errors import CheckpointCorruptError

FILE_NAME: Final = "resources.json"


def read_catalog(folder: Path) -> dict[str, Any]:
    """Return what was last written, or nothing when there was no write yet.

    Raises:
        CheckpointCorruptError: the file can't be read; the message says what to do.
    """
    path = folder / FILE_NAME
    if not path.exists():
        return {"next_number": 1, "logs": [], "topics": [], "subscriptions": [], "snapshots": []}
    try:
        content = json.loads(path.read_text())
        return {key: content[key] for key in ("next_number", "logs", "topics", "subscriptions", "snapshots")}
    except (ValueError, KeyError, TypeError) as exc:
        raise CheckpointCorruptError(
            f"{path} can't be read ({exc}). Restore it from a copy, or move {folder} away to begin empty.",
            path=str(path),
        ) from exc


def write_catalog(folder: Path, content: dict[str, Any]) -> None:
    """Replace the file by ``content``, at once or not at all.

    Raises:
        OSError: the disk did not take it; the file is as before.
    """
    path = folder / FILE_NAME
    temporary = path.with_suffix(".new")
    with temporary.open("w") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def render_config(config: Any) -> dict[str, Any]:
    """Return a protobuf configuration as JSON-ready data."""
    return dict(json_format.MessageToDict(config, preserving_proto_field_name=True))


def parse_config(saved: dict[str, Any], config_type: Any) -> Any:
    """Return the configuration that ``render_config`` made ``saved`` of."""
    return json_format.ParseDict(saved, config_type())
