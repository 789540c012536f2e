"""What is uploaded, in one piece or more, and its rows."""

import json
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tests.standin.catalog import TableEntry
from tests.standin.problems import Problem
from tests.standin.schemas import normalise_fields, parse_rows

_RANGE: Final = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


class Uploads:
    """Uploads under way, each a file beside its metadata; they survive a killed server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "uploads").mkdir(exist_ok=True)

    def start(self, metadata: Mapping[str, Any]) -> str:
        upload = uuid.uuid4().hex
        (self._folder / "uploads" / f"{upload}.json").write_text(json.dumps(metadata))
        (self._folder / self.path(upload)).touch()
        return upload

    def path(self, upload: str) -> str:
        """Return where an upload's bytes are, relative to the folder."""
        return f"uploads/{upload}"

    def metadata(self, upload: str) -> dict[str, Any]:
        """Return what the upload was begun with.

        Raises:
            Problem: ``notFound``.
        """
        path = self._folder / "uploads" / f"{upload}.json"
        if not re.fullmatch(r"[0-9a-f]{32}", upload) or not path.exists():
            raise Problem("notFound", f"Not found: Upload {upload}")
        return dict(json.loads(path.read_text()))

    def take(self, upload: str, content_range: str, data: bytes) -> tuple[int, bool]:
        """Add a chunk; return how many bytes are there and whether that is all."""
        match = _RANGE.fullmatch(content_range)
        if match is None:
            raise Problem("invalid", f"Invalid Content-Range {content_range!r}.")
        path = self._folder / self.path(upload)
        size = path.stat().st_size
        if match[1] is not None:
            if int(match[1]) > size:
                raise Problem("invalid", f"A chunk begins at {match[1]}, behind what is there: {size}.")
            with path.open("r+b") as file:
                file.seek(int(match[1]))
                file.write(data)
            size = int(match[1]) + len(data)
        return size, match[3] != "*" and size == int(match[3])


def read_upload(
    path: Path, config: Mapping[str, Any], table: TableEntry | None
) -> tuple[list[dict[str, Any]], pa.Table]:
    """Return the fields and rows of an uploaded file of newline-delimited JSON.

    Raises:
        Problem: ``invalid``; a row is not of the schema ("Loading JSON data from Cloud Storage", errors).
    """
    kind = config.get("sourceFormat", "CSV")
    given = config.get("schema", {}).get("fields")
    fields = normalise_fields(given) if given else (table.fields if table else None)
    if kind != "NEWLINE_DELIMITED_JSON":
        raise Problem("invalid", f"{kind} is not among what is kept here; use newline-delimited JSON.")
    if fields is None:
        raise Problem("invalid", "No schema specified on job or table.")
    try:
        lines = [json.loads(line) for line in path.read_bytes().splitlines() if line.strip()]
        # "Load from newline delimited JSON files" (https://cloud.google.com/bigquery/docs/json-data): the value
        # itself stands in the line, so that a text is a JSON string.
        return fields, parse_rows(lines, fields, json_is_text=False)
    except json.JSONDecodeError as exc:
        raise Problem("invalid", f"Error while reading data, error message: JSON parsing error: {exc}") from exc
    except ValueError as exc:
        row, reason = exc.args
        raise Problem(
            "invalid", "Error while reading data, error message: JSON table encountered too many errors. "
            f"Rows: {row + 1}; errors: 1. {reason}"
        ) from exc  # fmt: skip
