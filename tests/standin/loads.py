"""What is uploaded: multipart and resumable uploads, and their rows."""

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tests.standin.catalog import TableEntry
from tests.standin.problems import Problem
from tests.standin.schemas import arrow_schema, conform_table, fields_of, normalise_fields, parse_rows

_RANGE: Final = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


class Uploads:
    """Uploads under way, each a file beside its metadata; they survive a killed server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "uploads").mkdir(exist_ok=True)

    def start(self, metadata: Mapping[str, Any]) -> str:
        """Begin a resumable upload and return its id."""
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

    def store(self, data: bytes) -> str:
        """Keep the bytes of an upload that came whole and return its id."""
        upload = uuid.uuid4().hex
        (self._folder / self.path(upload)).write_bytes(data)
        return upload


def split_multipart(content_type: str, body: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the two parts of a multipart/related upload: metadata and media."""
    match = re.search(r'boundary="?([^";]+)"?', content_type)
    if match is None:
        raise Problem("invalid", "multipart without a boundary")
    parts = body.split(b"--" + match[1].encode())
    if len(parts) != 4:
        raise Problem("invalid", "an upload has two parts")
    contents = []
    for part in parts[1:3]:
        head, _, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        BytesHeaderParser().parsebytes(head)
        contents.append(content.removesuffix(b"\r\n"))
    return dict(json.loads(contents[0])), contents[1]


def _parquet_field(field: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a column of a Parquet file is: a LIST is a record of a record unless inference is asked for.

    "Loading Parquet data from Cloud Storage", LIST logical type: ``list.element`` without enableListInference.
    """
    if field["mode"] != "REPEATED" or (config.get("parquetOptions") or {}).get("enableListInference"):
        return field
    element = {**field, "name": "element", "mode": "NULLABLE"}
    inner = {"name": "list", "type": "RECORD", "mode": "REPEATED", "fields": [element]}
    return {"name": field["name"], "type": "RECORD", "mode": "NULLABLE", "fields": [inner]}


def _check_no_json(fields: Sequence[Mapping[str, Any]]) -> None:
    """Refuse JSON columns of a Parquet file.

    "If you use a batch load job to ingest JSON data into a table, the source data must be in CSV, Avro, or JSON
    format" (https://cloud.google.com/bigquery/docs/json-data, "Limitations"); the message is from
    https://github.com/googleapis/python-bigquery/issues/2377
    """
    for field in fields:
        if field["type"] == "JSON":
            raise Problem("invalid", "Unsupported field type: JSON")
        _check_no_json(field.get("fields") or ())


def read_upload(
    path: Path, config: Mapping[str, Any], table: TableEntry | None
) -> tuple[list[dict[str, Any]], pa.Table]:
    """Return the fields and rows of an uploaded file, newline-delimited JSON or Parquet.

    Raises:
        Problem: ``invalid``; a row is not of the schema ("Loading JSON data from Cloud Storage", errors).
    """
    kind = config.get("sourceFormat", "CSV")
    given = config.get("schema", {}).get("fields")
    fields = normalise_fields(given) if given else (table.fields if table else None)
    if kind == "PARQUET":
        try:
            rows = pq.read_table(path)
        except (pa.ArrowException, OSError) as exc:
            raise Problem("invalid", f"Error while reading data, error message: {exc}") from exc
        own = [_parquet_field(field, config) for field in fields_of(rows.schema)]
        known = {field["name"].lower(): field for field in fields or own}
        if unknown := [field["name"] for field in own if field["name"].lower() not in known]:
            raise Problem("invalid", f"No such field: {', '.join(unknown)}")
        chosen = [known[field["name"].lower()] for field in own]
        _check_no_json(chosen)
        if wrapped := [
            f["name"] for f, c in zip(own, chosen, strict=True) if f["mode"] != c["mode"] == "REPEATED"
        ]:
            raise Problem(
                "invalid", f"Provided Schema does not match Table. Field {wrapped[0]} has changed mode to NULLABLE"
            )
        try:
            return chosen, conform_table(rows, arrow_schema(chosen))
        except pa.ArrowException as exc:
            raise Problem("invalid", f"Error while reading data, error message: {exc}") from exc
    if kind != "NEWLINE_DELIMITED_JSON":
        raise Problem("invalid", f"{kind} is not among what is kept here; use Parquet or newline-delimited JSON.")
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
