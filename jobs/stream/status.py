"""What a running stream says of itself, in a small file that others read."""

import json
import os
import time
from pathlib import Path
from typing import Any


class StatusFile:
    """A JSON object that is replaced whole; it survives the stream, and says so by its ``pid`` and ``at``.

    A status that can't be written, the disk being full for example, is not worth a stream's life.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fields: dict[str, Any] = {"pid": os.getpid(), "state": "starting", "error": None}

    def write(self, **fields: Any) -> None:
        """Change ``fields`` and write all of them; a state without an error clears the error."""
        if "state" in fields:
            fields.setdefault("error", None)
        self._fields |= fields
        self._fields["at"] = time.time()
        temporary = self._path.with_suffix(".tmp")
        try:
            temporary.write_text(json.dumps(self._fields))
            temporary.rename(self._path)
        except OSError:
            temporary.unlink(missing_ok=True)

    @staticmethod
    def read(path: Path) -> dict[str, Any] | None:
        """Return what was written last, None when there is nothing to read."""
        try:
            fields: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError):
            return None
        return fields
