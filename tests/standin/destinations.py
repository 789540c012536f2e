"""Where a job writes its rows: create and write dispositions, partition decorators, all at one moment."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from tests.standin.catalog import Catalog, TableEntry, TableKey, now_us
from tests.standin.problems import Problem, duplicate, not_found
from tests.standin.resources import Resources, parse_partition, replace_with_pieces
from tests.standin.schemas import conform_table

RESULTS_DATASET: Final = "_standin_results"
# "Using cached query results": anonymous results are kept for about 24 hours.
_RESULTS_LIVE_MS: Final = 24 * 3600 * 1000
_TABLE_MEMBERS: Final = ("timePartitioning", "clustering")


class Destinations:
    """Writes a job's rows into its table."""

    def __init__(self, catalog: Catalog, resources: Resources) -> None:
        self._catalog = catalog
        self._resources = resources

    def anonymous(self, project: str, job_id: str) -> dict[str, str]:
        """Return the reference of the table for a query's rows that nobody named."""
        with contextlib.suppress(Problem):
            self._resources.insert_dataset(
                project, {"datasetReference": {"projectId": project, "datasetId": RESULTS_DATASET}}
            )
        return {"projectId": project, "datasetId": RESULTS_DATASET, "tableId": f"anon_{job_id}".replace("-", "_")}

    def write(
        self,
        config: Mapping[str, Any],
        fields: Sequence[Mapping[str, Any]],
        rows: pa.Table,
        default_disposition: str,
        publish: Callable[[], None],
    ) -> None:
        """Write ``rows`` by the dispositions in ``config``; ``publish`` runs in the transaction that shows them.

        Raises:
            Problem: ``notFound``, ``duplicate`` (WRITE_EMPTY and it isn't), ``invalid`` (other columns).
        """
        reference = config["destinationTable"]
        name, _, decorator = str(reference["tableId"]).partition("$")
        key = TableKey(reference["projectId"], reference["datasetId"], name)
        disposition = config.get("writeDisposition") or default_disposition
        with self._catalog.transaction():
            entry = self._entry(key, config, fields)
        with self._catalog.change_lock(entry.id):
            snapshot = self._catalog.snapshot(entry)
            partition = parse_partition(entry, decorator) if decorator else now_us()
            replaced = [p for p in snapshot.pieces if not decorator or p.partition_us == partition]
            if disposition == "WRITE_EMPTY" and replaced:
                raise duplicate("Table", key.project, key.dataset, key.name)
            if disposition == "WRITE_TRUNCATE" and not decorator:
                entry = self._reshaped(entry, fields)
            part = self._catalog.write_rows(entry, _fitted(rows, entry, fields), partition)
            with self._catalog.transaction():
                if disposition == "WRITE_TRUNCATE":
                    kept = [piece for piece in snapshot.pieces if piece not in replaced]
                    replace_with_pieces(self._catalog, entry, snapshot, kept)
                    self._catalog.put_table(entry.key, entry.body)
                    if not decorator and snapshot.pieces:
                        self._catalog.note_replaced(entry.id)
                self._catalog.add_part(entry, part)
                publish()

    def _entry(self, key: TableKey, config: Mapping[str, Any], fields: Sequence[Mapping[str, Any]]) -> TableEntry:
        found = self._catalog.get_table(key)
        if found is not None:
            if found.is_view:
                raise Problem("invalid", f"{key} is a view.")
            return found
        if config.get("createDisposition") == "CREATE_NEVER":
            raise not_found("Table", key.project, key.dataset, key.name)
        body: dict[str, Any] = {
            "tableReference": {"projectId": key.project, "datasetId": key.dataset, "tableId": key.name},
            "schema": {"fields": list(fields)},
            **{member: config[member] for member in _TABLE_MEMBERS if config.get(member)},
        }
        if encryption := config.get("destinationEncryptionConfiguration"):
            body["encryptionConfiguration"] = encryption
        if key.dataset == RESULTS_DATASET:
            body["expirationTime"] = str(now_us() // 1000 + _RESULTS_LIVE_MS)
        self._resources.insert_table(key.project, key.dataset, body)
        return self._catalog.find_table(key)

    def _reshaped(self, entry: TableEntry, fields: Sequence[Mapping[str, Any]]) -> TableEntry:
        """Return the table with the columns of what replaces its rows, as WRITE_TRUNCATE does.

        It takes policy tags away too, which a query's result never has:
        https://github.com/GoogleCloudPlatform/cloud-foundation-fabric/issues/1532
        """
        if _shape(entry.fields) == _shape(fields) and not _is_tagged(entry.fields):
            return entry
        return TableEntry(entry.id, entry.key, {**entry.body, "schema": {"fields": list(fields)}})


def _is_tagged(fields: Sequence[Mapping[str, Any]]) -> bool:
    return any((f.get("policyTags") or {}).get("names") or _is_tagged(f.get("fields") or ()) for f in fields)


def _shape(fields: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [(f["name"].lower(), f["type"], f["mode"] == "REPEATED", _shape(f.get("fields") or ())) for f in fields]


def _fitted(rows: pa.Table, entry: TableEntry, fields: Sequence[Mapping[str, Any]]) -> pa.Table:
    known = {name: rest for name, *rest in _shape(entry.fields)}
    for name, *rest in _shape(fields):
        if known.get(name) != rest:
            raise Problem("invalid", f"Provided Schema does not match Table {entry.key}. Field: {name}")
    for field in entry.fields:
        place = rows.schema.get_field_index(field["name"])
        if field["mode"] == "REQUIRED" and (place < 0 or rows.column(place).null_count):
            raise Problem("invalid", f"Required field {field['name']} cannot be null")
    return conform_table(rows, entry.arrow_schema())
