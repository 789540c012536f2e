"""A Delta table of a lake whose log survives a power cut: opened, created, committed to, given a wider schema."""

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction, Transaction

from connectors.columns import arrow_schema
from connectors.lake.bucket_log import LOG_RETENTION
from connectors.lake.clocks import Stopwatch, refuse_wrong_clock
from connectors.lake.delta_log import DeltaLog
from connectors.lake.errors import our_errors
from connectors.lake.objects import Objects, open_objects
from model.errors import WarehouseError
from model.schema import Evolution, RowSchema, plan_evolution

# Delta knows no JSON, no TIME, no policy tags: what the table was given is kept whole, beside its own schema.
SCHEMA_PROPERTY: Final = "refeed.schema"
# Clean-up of a log frees the places of its entries, and a store may take an entry long after it was asked to.
KEPT_IN_BUCKET: Final = {LOG_RETENTION: "interval 7 days"}
# A transaction that is dropped is a lease that nobody has taken.
FORGETTING: Final = "delta.setTransactionRetentionDuration"
_TRIES: Final = 3


def table_uri(root: str, table: str) -> str:
    """Return where the table ``dataset.table`` lies in the folder or URI ``root``.

    Example:
        >>> table_uri("gs://lake/", "backup.messages")
        'gs://lake/backup/messages'
    """
    return f"{root.rstrip('/')}/{'/'.join(table.split('.')[-2:])}"


class DurableTable:
    """The table ``dataset.table`` of the lake ``root``, a folder or a URI; ``partition`` is its partition column.

    One object per thread, because it holds a snapshot that its calls move on.
    """

    def __init__(self, root: str, table: str, partition: pa.Field) -> None:
        self.name = table
        self.uri = table_uri(root, table)
        self._root = root
        self._partition = partition
        self._log = DeltaLog(self.uri)
        self._delta: DeltaTable | None = None
        self._read_at = Stopwatch()

    def exists(self) -> bool:
        """Whether the table has been created."""
        with our_errors(f"opening {self.name}"):
            if self._delta is not None and self._log.is_local:
                return bool(DeltaTable.is_deltatable(self.uri))
            self._delta = self._log.find()
            if self._delta is not None:
                self._opened(self._delta)
        return self._delta is not None

    def schema(self) -> RowSchema | None:
        """Return the schema that the table was given, None when there is no table yet.

        Raises:
            WarehouseError: there is a table, and not one of ours.
        """
        if not self.exists():
            return None
        with our_errors(f"reading the schema of {self.name}"):
            found = self._table().metadata().configuration.get(SCHEMA_PROPERTY)
        if found is None:
            raise WarehouseError(f"Another program created the table {self.uri}. Choose another table.")
        return RowSchema.from_json(json.loads(found))

    def plan(self, wanted: RowSchema) -> Evolution:
        """Return the changes that let the table hold rows of ``wanted`` and rewrite none; nothing is touched."""
        current = self.schema()
        return plan_evolution(RowSchema((), wanted.description) if current is None else current, wanted)

    @cached_property
    def _objects(self) -> Objects:
        return open_objects(self.uri)

    def _now(self) -> float:
        """Return the time by which the ages of the table's files count, in Unix seconds."""
        with our_errors(f"reading the clock of the storage of {self.name}"):
            return self._objects.now()

    def _table(self) -> DeltaTable:
        """Return the table at its newest version."""
        with our_errors(f"opening {self.name}"):
            # How old it is at a commit counts from before it was read.
            self._read_at = Stopwatch()
            if self._delta is None:
                self._delta = self._log.open()
                self._opened(self._delta)
            else:
                self._delta.update_incremental()
        return self._delta

    def _opened(self, table: DeltaTable) -> None:
        """Note what ``table``, which was opened, is like.

        Raises:
            WarehouseError: its log forgets who has taken its leases.
        """
        if FORGETTING in table.metadata().configuration:
            self._delta = None
            raise WarehouseError(
                f"{self.uri} has the property {FORGETTING}. With this property, Delta deletes the leases of "
                f"the table's writers, and two streams could write at the same time. "
                "Remove the property: ALTER TABLE ... UNSET TBLPROPERTIES."
            )

    def _create(
        self,
        schema: pa.Schema,
        configuration: Mapping[str, str],
        *,
        name: str | None = None,
        description: str = "",
    ) -> None:
        with our_errors(f"creating {self.name}"):
            try:
                DeltaTable.create(
                    self.uri,
                    schema=Schema.from_arrow(schema.append(self._partition)),
                    mode="ignore",
                    partition_by=[self._partition.name],
                    name=name or self.name,
                    description=description or None,
                    configuration={**configuration, **({} if self._log.is_local else KEPT_IN_BUCKET)},
                    raise_if_key_not_exists=False,
                )
            except CommitFailedError:
                # Another has just created it, or this one has, and the answer was lost.
                if self._log.find() is None:
                    raise
            self._log.sync(self._table())

    def _write(
        self,
        table: DeltaTable,
        actions: list[AddAction | RemoveAction],
        transactions: Mapping[str, int],
        *,
        schema: pa.Schema | None = None,
        retries: int | None = None,
    ) -> None:
        """Make one durable commit; with a ``schema`` all files are removed and the table's schema becomes that."""
        if schema is not None:
            # delta-rs says when the files were removed.
            refuse_wrong_clock(self._now(), "write the table again")
        # What this commit builds on must not go where it stays.
        self._log.sync(table)
        follows = table.version()
        table.create_write_transaction(
            actions,
            mode="append" if schema is None else "overwrite",
            schema=table.schema() if schema is None else Schema.from_arrow(schema.append(self._partition)),
            partition_by=[self._partition.name],
            commit_properties=CommitProperties(
                app_transactions=[Transaction(app, version) for app, version in transactions.items()],
                max_commit_retries=retries,
            ),
            post_commithook_properties=self._log.hooks,
        )
        self._log.refuse_late(follows, self._read_at)
        if self._log.committed(table):
            self._delta = None

    def _again(self, change: Callable[[], None]) -> None:
        """Make a change that another commit may come between: three times at most, from the newest version.

        Raises:
            WarehouseError: another commit came between each time.
        """
        for left in reversed(range(_TRIES)):
            try:
                change()
            except CommitFailedError as exc:
                if not left:
                    raise WarehouseError(f"Other processes keep changing {self.name}: {exc}") from exc
                self._delta = None
            else:
                break

    def _add_columns(self, schema: RowSchema) -> None:
        """Add columns, and note ``schema`` only then: the next call repairs what a crash in between leaves."""
        table = self._table()
        with our_errors(f"changing {self.name}", but=CommitFailedError):
            fields = list(Schema.from_arrow(arrow_schema(schema)).fields)
            table.alter.add_columns(fields, post_commithook_properties=self._log.hooks)
            self._note(table, schema)
        self._delta = None

    def _note(self, table: DeltaTable, schema: RowSchema) -> None:
        note = {SCHEMA_PROPERTY: json.dumps(schema.to_json())}
        table.alter.set_table_properties(
            note, raise_if_not_exists=False, post_commithook_properties=self._log.hooks
        )
        self._log.committed(table)


def rewrite_mark(current: RowSchema, target: RowSchema) -> str:
    """Return the transaction by which a log has that the table was written again in wider types."""
    digest = hashlib.sha256(json.dumps([current.to_json(), target.to_json()]).encode()).hexdigest()
    return f"rewrite:{digest[:16]}"
