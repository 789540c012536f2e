"""The tables that BigQuery has: read, compared with their specifications, created and patched."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from google.cloud import bigquery

from connectors.bigquery.client import ONCE, Clients
from connectors.bigquery.errors import DATASET_ROLE, call_bigquery, find_in_bigquery
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.specs import DAY_MS, TableSpec, table_resource, with_expiration
from model.archive import Change
from model.errors import TableMismatchError, TableNotFoundError

# Somebody waits for the answer.
_TRY_SECONDS: Final = 30.0
# Differences by which a table loses rows that should be kept.
PARTITION_EXPIRATION: Final = "partition_expiration_days"
TABLE_EXPIRATION: Final = "table_expiration"


def differences(clients: Clients, specs: Sequence[TableSpec]) -> list[Change]:
    """Return what is missing or differs; nothing is changed."""
    found: list[Change] = []
    first = specs[0].id
    name, location = f"{first.project}.{first.dataset}", clients.connection.location
    dataset = _read_dataset(clients, first)
    if dataset is None:
        found.append(Change(name, "dataset", "missing", location))
    elif dataset.location.lower() != location.lower():
        found.append(Change(name, "location", dataset.location, location, is_compatible=False))
    for spec in specs:
        table = None if dataset is None else read_table(clients, spec.id)
        found += [Change(str(spec.id), "table", "missing", "created")] if table is None else _compare(spec, table)
    return found


def apply(clients: Clients, specs: Sequence[TableSpec]) -> list[Change]:
    """Create what is missing, patch what differs, and return what was done.

    Raises:
        TableMismatchError: something differs that can't be changed; nothing was changed at all.
    """
    changes = differences(clients, specs)
    if wrong := [change for change in changes if not change.is_compatible]:
        texts = [f"{c.resource} {c.field}: is {c.found}, but must be {c.wanted}" for c in wrong]
        raise TableMismatchError(
            f"Nothing was changed, because these differences can't be removed: {'; '.join(texts)}.",
            changes=[asdict(change) for change in wrong],
        )
    touched = {change.resource: change for change in changes}
    first = specs[0].id
    if f"{first.project}.{first.dataset}" in touched:
        _create_dataset(clients, specs[0])
    for spec in specs:
        change = touched.get(str(spec.id))
        if change is None:
            continue
        fields = [c.field for c in changes if c.resource == str(spec.id)]
        call_bigquery(
            partial(_create_or_patch, clients, spec, fields),
            f"creating or changing table {spec.id}",
            seconds=_TRY_SECONDS,
        )
    return changes


def read_table(clients: Clients, table: TableId) -> Any:
    """Return the table as BigQuery describes it, None when there is none."""
    return find_in_bigquery(
        lambda: clients.rest().get_table(str(table), **ONCE), f"reading table {table}", seconds=_TRY_SECONDS
    )


def check_tables(clients: Clients, specs: Sequence[TableSpec]) -> None:
    """Check that a stream finds its tables as they should be.

    Raises:
        TableNotFoundError: one is missing; 'refeed init' creates it.
        TableMismatchError: one has another partitioning or column type, or another expiration than it should.
    """
    for spec in specs:
        table = read_table(clients, spec.id)
        if table is None:
            raise TableNotFoundError(f"There is no table {spec.id}. Run 'refeed init' to create it.")
        if wrong := [change for change in _compare(spec, table) if _is_in_the_way(change)]:
            texts = [f"{c.field} is {c.found}, but must be {c.wanted}" for c in wrong]
            raise TableMismatchError(f"Table {spec.id}: {'; '.join(texts)}. Run 'refeed init'.")


def _is_in_the_way(change: Change) -> bool:
    """Whether a stream must not begin before the difference is mended."""
    is_missing_column = change.field.startswith("column ") and change.found == "missing"
    return (
        is_missing_column or not change.is_compatible or change.field in {PARTITION_EXPIRATION, TABLE_EXPIRATION}
    )


def create_lasting_table(clients: Clients, table: Any) -> Any:
    """Create ``table`` unless it exists, and return it with the expirations that it asks for and no others.

    A dataset's default expirations reach a new table even where the request says null
    (https://github.com/googleapis/python-bigquery/issues/2403), so a second call takes them away. The trap: a
    process that is killed between the two leaves a table that expires; 'refeed init' shows and mends it.
    """
    wanted_expires, partitioning = table.expires, table.time_partitioning
    wanted_ms = None if partitioning is None else partitioning.expiration_ms
    found = clients.rest().create_table(table, exists_ok=True, **ONCE)
    changed = []
    if found.expires != wanted_expires:
        found.expires = wanted_expires
        changed.append("expires")
    if found.time_partitioning is not None and found.time_partitioning.expiration_ms != wanted_ms:
        found.time_partitioning = with_expiration(found.time_partitioning, wanted_ms)
        changed.append("time_partitioning")
    return clients.rest().update_table(found, changed, **ONCE) if changed else found


def _read_dataset(clients: Clients, table: TableId) -> Any:
    return find_in_bigquery(
        lambda: clients.rest().get_dataset(f"{table.project}.{table.dataset}", **ONCE),
        f"reading dataset {table.dataset}",
        seconds=_TRY_SECONDS,
        role=DATASET_ROLE,
    )


def _create_or_patch(clients: Clients, spec: TableSpec, fields: Sequence[str]) -> None:
    if fields == ["table"]:
        create_lasting_table(clients, table_resource(spec))
    else:
        _patch(clients, spec, fields)


def _create_dataset(clients: Clients, spec: TableSpec) -> None:
    dataset = bigquery.Dataset(f"{spec.id.project}.{spec.id.dataset}")
    dataset.location = clients.connection.location
    dataset.description = "Refeed's archive of raw Pub/Sub messages, and its other tables."
    dataset.labels = dict(spec.labels)
    if spec.kms_key:
        dataset.default_encryption_configuration = bigquery.EncryptionConfiguration(kms_key_name=spec.kms_key)
    call_bigquery(
        lambda: clients.rest().create_dataset(dataset, exists_ok=True, **ONCE),
        f"creating dataset {spec.id.dataset}",
        seconds=_TRY_SECONDS,
        role=DATASET_ROLE,
    )


def _compare(spec: TableSpec, table: Any) -> Iterator[Change]:
    name = str(spec.id)
    partitioning = table.time_partitioning
    kind = _partitioning_text(partitioning)
    if kind != spec.partitioning.upper():
        yield Change(name, "partitioning", kind, spec.partitioning.upper(), is_compatible=False)
    else:
        days = (partitioning.expiration_ms or 0) / DAY_MS
        if days != spec.expiration_days:
            yield Change(name, PARTITION_EXPIRATION, f"{days:g}", str(spec.expiration_days))
    if table.expires is not None:
        yield Change(name, TABLE_EXPIRATION, table.expires.isoformat(), "never")
    for attribute, wanted in (
        ("require_partition_filter", spec.require_partition_filter),
        ("description", spec.description),
    ):
        found = getattr(table, attribute) or type(wanted)()
        if found != wanted:
            yield Change(name, attribute, str(found), str(wanted))
    clustering = tuple(table.clustering_fields or ())
    if clustering != spec.clustering:
        yield Change(name, "clustering", ", ".join(clustering) or "none", ", ".join(spec.clustering) or "none")
    missing = {key: value for key, value in spec.labels if table.labels.get(key) != value}
    if missing:
        yield Change(name, "labels", _pairs({k: table.labels.get(k, "") for k in missing}), _pairs(missing))
    key = table.encryption_configuration.kms_key_name if table.encryption_configuration else None
    # A key that nobody asked for may be the project's own policy: it is left as it is.
    if spec.kms_key and key != spec.kms_key:
        yield Change(name, "kms_key", key or "Google's own", spec.kms_key)
    yield from _compare_fields(name, "", spec.schema, table.schema)


def _partitioning_text(partitioning: Any) -> str:
    if partitioning is None:
        return "none"
    return f"{partitioning.type_} on {partitioning.field}" if partitioning.field else str(partitioning.type_)


def _compare_fields(
    table: str, prefix: str, wanted_fields: Sequence[Any], found_fields: Sequence[Any]
) -> Iterator[Change]:
    found_by_name = {field.name.lower(): field for field in found_fields}
    for wanted in wanted_fields:
        where = f"column {prefix}{wanted.name}"
        found = found_by_name.get(wanted.name.lower())
        if found is None:
            yield Change(table, where, "missing", f"{_type(wanted)} {wanted.mode}")
            continue
        if (_type(found), found.mode) != (_type(wanted), wanted.mode):
            # Google's "Modifying table schemas": REQUIRED may become NULLABLE, nothing else.
            is_relaxed = _type(found) == _type(wanted) and (found.mode, wanted.mode) == ("REQUIRED", "NULLABLE")
            yield Change(
                table,
                where,
                f"{_type(found)} {found.mode}",
                f"{_type(wanted)} {wanted.mode}",
                is_compatible=is_relaxed,
            )
        elif (found.description or "") != (wanted.description or ""):
            yield Change(table, f"{where} description", found.description or "", wanted.description or "")
        yield from _compare_fields(table, f"{prefix}{wanted.name}.", wanted.fields, found.fields)


def _patch(clients: Clients, spec: TableSpec, fields: Sequence[str]) -> None:
    """Change ``fields`` of a table on the very version that was read, so that nobody else's change is undone."""
    table = clients.rest().get_table(str(spec.id), **ONCE)
    wanted = table_resource(spec)
    changed = set()
    for name in fields:
        if name.startswith("column "):
            table.schema = _merge(spec.schema, table.schema)
            changed.add("schema")
        elif name == "labels":
            table.labels = {**table.labels, **dict(spec.labels)}
            changed.add("labels")
        else:
            attribute = {
                PARTITION_EXPIRATION: "time_partitioning",
                TABLE_EXPIRATION: "expires",
                "clustering": "clustering_fields",
                "kms_key": "encryption_configuration",
            }.get(name, name)
            setattr(table, attribute, getattr(wanted, attribute))
            changed.add(attribute)
    clients.rest().update_table(table, sorted(changed), **ONCE)


def _merge(wanted_fields: Sequence[Any], found_fields: Sequence[Any]) -> list[Any]:
    """Return the found columns in their order as wanted, then the new ones; columns that others added stay."""
    wanted_by_name = {field.name.lower(): field for field in wanted_fields}
    merged = [wanted_by_name.pop(field.name.lower(), field) for field in found_fields]
    return [*merged, *wanted_by_name.values()]


def _type(field: Any) -> str:
    """Return the type's one name: the API answers with the older of two."""
    return {"INT64": "INTEGER", "FLOAT64": "FLOAT", "BOOL": "BOOLEAN", "STRUCT": "RECORD"}.get(
        field.field_type, str(field.field_type)
    )


def _pairs(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))
