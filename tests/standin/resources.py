"""The REST resources datasets and tables: insert, get, list, patch, delete."""

import datetime as dt
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from tests.standin.catalog import Catalog, TableEntry, TableKey, now_us
from tests.standin.problems import Problem, check_labels, duplicate
from tests.standin.schemas import check_change, normalise_fields

LOCATION: Final = "US"
# Members that the service makes; a client's values for them are ignored.
_OUTPUT_ONLY: Final = frozenset(
    ("kind", "id", "selfLink", "etag", "creationTime", "lastModifiedTime", "numRows", "numBytes", "type")
)
_ASSIGNABLE: Final = frozenset(
    (old, new)
    for old, *wider in (
        ("INTEGER", "NUMERIC", "BIGNUMERIC", "FLOAT"),
        ("NUMERIC", "BIGNUMERIC", "FLOAT"),
        ("BIGNUMERIC", "FLOAT"),
    )
    for new in wider
)
_IMMUTABLE: Final = ("datasetReference", "tableReference", "location")


class Resources:
    """Datasets and tables over one catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        # What tells a view's columns from its project and text; the engine sets it.
        self.describe_view: Callable[[str, str], list[dict[str, Any]]] | None = None

    # Datasets

    def insert_dataset(self, project: str, body: Mapping[str, Any]) -> dict[str, Any]:
        name = str(body.get("datasetReference", {}).get("datasetId") or "")
        if not name.replace("_", "a").isalnum():
            raise Problem("invalid", f"Invalid dataset ID {name!r}.")
        with self._catalog.transaction():
            if self._catalog.query("SELECT 1 FROM datasets WHERE project = ? AND dataset = ?", project, name):
                raise duplicate("Dataset", project, name)
            check_labels(body.get("labels"))
            stored = {key: value for key, value in body.items() if key not in _OUTPUT_ONLY}
            stored["datasetReference"] = {"projectId": project, "datasetId": name}
            stored.setdefault("location", LOCATION)
            return self._put_dataset(project, name, _stamp(stored, None))

    def get_dataset(self, project: str, name: str) -> dict[str, Any]:
        return self._dataset_answer(self._catalog.find_dataset(project, name))

    def list_datasets(self, project: str, *, everything: bool) -> dict[str, Any]:
        """Return the datasets of a project; hidden ones begin with an underscore."""
        rows = self._catalog.query("SELECT body FROM datasets WHERE project = ? ORDER BY dataset", project)
        bodies = [self._dataset_answer(json.loads(row["body"])) for row in rows]
        shown = [b for b in bodies if everything or not b["datasetReference"]["datasetId"].startswith("_")]
        keep = ("kind", "id", "datasetReference", "labels", "friendlyName", "location")
        return {
            "kind": "bigquery#datasetList",
            "datasets": [{key: body[key] for key in keep if key in body} for body in shown],
        }

    def change_dataset(
        self, project: str, name: str, body: Mapping[str, Any], *, if_match: str | None
    ) -> dict[str, Any]:
        with self._catalog.transaction():
            old = self._catalog.find_dataset(project, name)
            _check_etag(old, if_match)
            check_labels(body.get("labels"))
            return self._put_dataset(project, name, _stamp(_changed(old, body), old))

    def delete_dataset(self, project: str, name: str, *, contents: bool) -> None:
        """Drop a dataset, with ``contents`` its tables too."""
        with self._catalog.transaction() as db:
            self._catalog.find_dataset(project, name)
            tables = self._tables(project, name)
            if tables and not contents:
                raise Problem("resourceInUse", f"Dataset {project}:{name} is still in use")
            for entry in tables:
                self._catalog.delete_table(entry)
            db.execute("DELETE FROM datasets WHERE project = ? AND dataset = ?", (project, name))

    # Tables

    def insert_table(self, project: str, dataset: str, body: Mapping[str, Any]) -> dict[str, Any]:
        name = str(body.get("tableReference", {}).get("tableId") or "")
        if not name or "$" in name:
            raise Problem("invalid", f"Invalid table ID {name!r}.")
        key = TableKey(project, dataset, name)
        with self._catalog.transaction():
            parent = self._catalog.find_dataset(project, dataset)
            if self._catalog.get_table(key) is not None:
                raise duplicate("Table", project, dataset, name)
            stored = {member: value for member, value in body.items() if member not in _OUTPUT_ONLY}
            stored["tableReference"] = {"projectId": project, "datasetId": dataset, "tableId": name}
            stored["location"] = parent["location"]
            _inherit_expiration(parent, stored)
            self._describe(project, stored)
            checked = _checked_table(stored)
            return self.answer(self._catalog.put_table(key, _stamp(checked, None)))

    def get_table(self, key: TableKey) -> dict[str, Any]:
        return self.answer(self._catalog.find_table(key))

    def list_tables(self, project: str, dataset: str, page_size: int, page_token: str) -> dict[str, Any]:
        self._catalog.find_dataset(project, dataset)
        entries = [entry for entry in self._tables(project, dataset) if entry.key.name > page_token]
        page = entries[:page_size]
        keep = ("kind", "id", "tableReference", "type", "labels", "timePartitioning", "clustering", "creationTime",
                "expirationTime", "requirePartitionFilter", "friendlyName", "view")  # fmt: skip
        answer: dict[str, Any] = {
            "kind": "bigquery#tableList",
            "tables": [{k: v for k, v in self.answer(entry).items() if k in keep} for entry in page],
            "totalItems": len(self._tables(project, dataset)),
        }
        if len(entries) > page_size:
            answer["nextPageToken"] = page[-1].key.name
        return answer

    def change_table(self, key: TableKey, body: Mapping[str, Any], *, if_match: str | None) -> dict[str, Any]:
        """Patch a table's metadata; its partitioning can't be changed."""
        with self._catalog.transaction():
            entry = self._catalog.find_table(key)
            _check_etag(entry.body, if_match)
            old, changed = entry.body, _changed(entry.body, body)
            self._describe(key.project, changed)
            new = _checked_table(changed)
            if _partitioning(old) != _partitioning(new):
                raise Problem("invalid", "Cannot change partitioning spec for a partitioned/clustered table.")
            if old.get("encryptionConfiguration") and not new.get("encryptionConfiguration"):
                raise Problem("invalid", "Cannot remove the encryption configuration of a table.")
            if "schema" in old and not entry.is_view:
                check_change(old["schema"]["fields"], new.get("schema", {}).get("fields", []))
            return self.answer(self._catalog.put_table(key, _stamp(new, old)))

    def widen_columns(self, key: TableKey, columns: Sequence[tuple[str, str]]) -> None:
        """Give columns another data type, of every row, in the write buffer or not.

        "ALTER TABLE ALTER COLUMN SET DATA TYPE requires that the existing column type is assignable to the new
        type": what an INT64 and so on coerces to
        (https://cloud.google.com/bigquery/docs/reference/standard-sql/conversion_rules).
        """
        with self._catalog.transaction():
            entry = self._catalog.find_table(key)
            fields = [dict(field) for field in entry.fields]
            for name, kind in columns:
                [field] = [one for one in fields if one["name"].lower() == name.lower()]
                wanted = normalise_fields([{**field, "type": kind}])[0]["type"]
                if field["mode"] == "REPEATED" or (field["type"], wanted) not in _ASSIGNABLE:
                    raise Problem(
                        "invalidQuery",
                        "ALTER TABLE ALTER COLUMN SET DATA TYPE requires that the existing column type "
                        f"({field['type']}) is assignable to the new type ({kind})",
                    )
                field["type"] = wanted
            self._catalog.put_table(key, _stamp({**entry.body, "schema": {"fields": fields}}, entry.body))

    def delete_table(self, key: TableKey) -> None:
        self._catalog.delete_table(self._catalog.find_table(key))

    def answer(self, entry: TableEntry) -> dict[str, Any]:
        """Return the table's resource, with what is computed."""
        key = entry.key
        answer = {
            **entry.body,
            "kind": "bigquery#table",
            "id": f"{key.project}:{key.dataset}.{key.name}",
            "selfLink": f"/bigquery/v2/projects/{key.project}/datasets/{key.dataset}/tables/{key.name}",
            "type": "VIEW" if entry.is_view else "TABLE",
        }
        if not entry.is_view:
            snapshot = self._catalog.snapshot(entry)
            answer["numRows"] = str(snapshot.rows)
            answer["numBytes"] = str(self._catalog.stored_bytes(snapshot))
            # "A lower-bound estimate of the number of rows currently in the streaming buffer"; with nothing in it
            # there is no such member:
            # https://googleapis.dev/dotnet/Google.Apis.Bigquery.v2/latest/api/Google.Apis.Bigquery.v2.Data.Streamingbuffer.html
            waiting = [p for p in snapshot.pieces if entry.ingestion_step_us and p.partition_us is None]
            if waiting:
                oldest = min(self._catalog.arrival_us(piece) for piece in waiting)
                answer["streamingBuffer"] = {
                    "estimatedRows": str(sum(piece.rows for piece in waiting)),
                    "estimatedBytes": str(self._catalog.stored_bytes(replace(snapshot, pieces=tuple(waiting)))),
                    "oldestEntryTime": str(oldest // 1000),
                }
        return answer

    def _describe(self, project: str, body: dict[str, Any]) -> None:
        if "view" in body and self.describe_view is not None:
            body["schema"] = {"fields": self.describe_view(project, body["view"]["query"])}

    def _tables(self, project: str, dataset: str) -> list[TableEntry]:
        rows = self._catalog.query(
            "SELECT name FROM tables WHERE project = ? AND dataset = ? ORDER BY name", project, dataset
        )
        found = (self._catalog.get_table(TableKey(project, dataset, row["name"])) for row in rows)
        return [entry for entry in found if entry is not None]

    def _put_dataset(self, project: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
        with self._catalog.transaction() as db:
            db.execute("INSERT OR REPLACE INTO datasets VALUES (?, ?, ?)", (project, name, json.dumps(body)))
        return self._dataset_answer(body)

    def _dataset_answer(self, body: Mapping[str, Any]) -> dict[str, Any]:
        reference = body["datasetReference"]
        project, name = reference["projectId"], reference["datasetId"]
        path = f"/bigquery/v2/projects/{project}/datasets/{name}"
        return {**body, "kind": "bigquery#dataset", "id": f"{project}:{name}", "selfLink": path}


def parse_partition(entry: TableEntry, text: str) -> int:
    """Return the start of the partition that a decorator such as 20260102 or 2026010213 names, in microseconds.

    Raises:
        Problem: ``invalid``.
    """
    step = entry.ingestion_step_us
    form = {8: "%Y%m%d", 10: "%Y%m%d%H"}.get(len(text))
    if step is None or form is None or (len(text) == 8) != (step > 3_600_000_000):
        raise Problem("invalid", f"Invalid partition decorator {text!r} for table {entry.key}.")
    try:
        moment = dt.datetime.strptime(text, form).replace(tzinfo=dt.UTC)
    except ValueError as exc:
        raise Problem("invalid", f"Invalid partition decorator {text!r}.") from exc
    return int(moment.timestamp()) * 1_000_000


def replace_with_pieces(catalog: Catalog, entry: TableEntry, snapshot: Any, kept: list[Any]) -> None:
    """Leave only ``kept`` of a snapshot's rows, without copying them."""
    with catalog.transaction():
        catalog.drop_parts(snapshot)
        for piece in kept:
            catalog.add_part(entry, asdict(piece))


def _inherit_expiration(parent: Mapping[str, Any], stored: dict[str, Any]) -> None:
    """Give a new table the dataset's default expirations where the request names none.

    An explicit null names none: googleapis/python-bigquery#2403, "Default expiration date is added to created
    table with a TimePartitioning when expiration_ms is explicitly none". Dataset.defaultPartitionExpirationMs:
    "Setting this property overrides the use of defaultTableExpirationMs for partitioned tables".
    """
    partitioning = stored.get("timePartitioning")
    if partitioning is not None and (lives := parent.get("defaultPartitionExpirationMs")):
        if partitioning.get("expirationMs") is None:
            stored["timePartitioning"] = {**partitioning, "expirationMs": str(lives)}
    elif (lives := parent.get("defaultTableExpirationMs")) and stored.get("expirationTime") is None:
        stored["expirationTime"] = str(now_us() // 1000 + int(lives))
    if stored.get("expirationTime") is None:
        stored.pop("expirationTime", None)


def _checked_table(body: dict[str, Any]) -> dict[str, Any]:
    if (expires := body.get("expirationTime")) is not None and int(expires) * 1000 <= now_us():
        raise Problem("invalid", "Invalid value for expirationTime: it has to be in the future.")
    if "schema" in body:
        body["schema"] = {"fields": normalise_fields(body["schema"].get("fields") or [])}
    check_labels(body.get("labels"))
    names = {field["name"].lower() for field in body.get("schema", {}).get("fields", [])}
    if partitioning := body.get("timePartitioning"):
        body["timePartitioning"] = _checked_partitioning(partitioning, names)
    columns = (body.get("clustering") or {}).get("fields") or []
    if len(columns) > 4:
        raise Problem("invalid", "Cannot cluster by more than 4 columns.")
    for column in columns:
        if column.lower() not in names:
            raise Problem(
                "invalid", f"The field specified for clustering cannot be found in the schema: {column}."
            )
    if body.get("requirePartitionFilter") and not body.get("timePartitioning"):
        raise Problem("invalid", "require_partition_filter is allowed on partitioned tables only.")
    return body


def _checked_partitioning(partitioning: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    kind = str(partitioning.get("type") or "").upper()
    if kind not in {"DAY", "HOUR"}:
        raise Problem("invalid", f"Partitioning by {kind or '(none)'} is not among what this server keeps.")
    column = partitioning.get("field")
    if column and column.lower() not in names:
        raise Problem("invalid", f"The field specified for partitioning cannot be found in the schema: {column}.")
    checked = {**partitioning, "type": kind}
    if (lives := partitioning.get("expirationMs")) is not None:
        checked["expirationMs"] = str(lives)
    return checked


def _partitioning(body: Mapping[str, Any]) -> tuple[Any, Any]:
    partitioning = body.get("timePartitioning") or {}
    return partitioning.get("type"), partitioning.get("field")


def _changed(old: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    given = {key: value for key, value in body.items() if key not in _OUTPUT_ONLY and key not in _IMMUTABLE}
    kept = {key: old[key] for key in (*_IMMUTABLE, "creationTime") if key in old}
    merged = dict(old)
    for key, value in given.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(old.get(key), dict) and key != "schema":
            merged[key] = _without_nulls({**old[key], **value})
        else:
            merged[key] = value
    return {**merged, **kept}


def _without_nulls(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: member for key, member in value.items() if member is not None}


def _stamp(body: Mapping[str, Any], old: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return ``body`` with its times and an etag that no other version has."""
    moment = now_us()
    stamped = {**body, "lastModifiedTime": str(moment // 1000)}
    stamped.setdefault("creationTime", str(moment // 1000))
    previous = (old or {}).get("etag", "")
    stamped["etag"] = hashlib.sha256(f"{previous}{moment}{json.dumps(stamped)}".encode()).hexdigest()[:24]
    return stamped


def _check_etag(body: Mapping[str, Any], if_match: str | None) -> None:
    # "Datasets: patch" and "Tables: patch" honour If-Match; 412 is conditionNotMet.
    if if_match and if_match not in {"*", body["etag"]}:
        raise Problem("conditionNotMet", "Precondition Failed")
