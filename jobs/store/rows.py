"""Rows as records: a record's fields are the columns of their names, read by the fields' types."""

from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from jobs.store.records import Idempotency
from model.errors import IdempotencyKeyReusedError, RefeedError
from model.typed import field_readers

Record = TypeVar("Record")
# An id that is not there comes from a caller, and may be of any length.
_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class Records(Generic[Record]):
    """The rows of a table as records of ``kind``, for calls within a transaction; each is known by its id.

    ``noun`` is the word for one of them, and ``missing`` the error for an id that none has.
    """

    table: sa.Table
    kind: type[Record]
    noun: str
    missing: type[RefeedError]

    def get(self, connection: Connection, key: str, *, for_update: bool = False) -> Record:
        """Return a record; ``for_update`` keeps others from changing it until the transaction ends.

        Raises:
            RefeedError: there is none; its class is ``missing``.
        """
        query = self.select().where(self.table.c.id == key)
        found = self.find(connection, query.with_for_update() if for_update else query)
        if found is None:
            raise self.missing(f"There is no {self.noun} {key[:_SHOWN]}.", id=key[:_SHOWN])
        return found

    def select(self) -> sa.Select[Any]:
        """Return a query of whole rows."""
        return sa.select(self.table)

    def find(self, connection: Connection, query: sa.Select[Any]) -> Record | None:
        """Return the first record of a query of whole rows, None where it finds none."""
        row = connection.execute(query).first()
        return None if row is None else read_row(self.kind, row)

    def find_all(self, connection: Connection, query: sa.Select[Any]) -> list[Record]:
        """Return all records of a query of whole rows."""
        return [read_row(self.kind, row) for row in connection.execute(query)]

    def insert(self, connection: Connection, **values: Any) -> Record:
        """Keep a new record, and return it."""
        made = self.table.insert().values(**values).returning(self.table)
        return read_row(self.kind, connection.execute(made).one())

    def update(self, connection: Connection, key: str, **changes: Any) -> Record:
        """Change columns of a record that is there, and return it as it is then."""
        changed = self.table.update().where(self.table.c.id == key).values(**changes).returning(self.table)
        return read_row(self.kind, connection.execute(changed).one())

    def find_made(
        self, connection: Connection, idempotency: Idempotency | None, *, actor: str, detail: str
    ) -> Record | None:
        """Return the record that the caller's key made before, None where there is none.

        Raises:
            IdempotencyKeyReusedError: it was made with another fingerprint; ``detail`` names its id.
        """
        if idempotency is None:
            return None
        key = scoped_key(idempotency, actor)
        row = connection.execute(self.select().where(self.table.c.idempotency_key == key)).first()
        if row is None:
            return None
        if row.fingerprint != idempotency.fingerprint:
            raise IdempotencyKeyReusedError(**{detail: row.id})
        return read_row(self.kind, row)


def read_row(kind: type[Record], row: Row[Any], **derived: Any) -> Record:
    """Return the record that a row is: each field is ``derived``, or read from the column of its name."""
    columns = row._asdict()
    readers = field_readers(kind)  # type: ignore[arg-type]  # a class is hashable
    return kind(**derived, **{name: read(columns[name]) for name, read in readers.items() if name not in derived})


def scoped_key(idempotency: Idempotency, actor: str) -> str:
    """Return what a column keeps of a caller's key; another caller's same key is another one."""
    # A key comes in a header, so it has no line break: two callers' names and keys can't give the same text.
    return f"{actor}\n{idempotency.key}"


def key_columns(idempotency: Idempotency | None, actor: str) -> dict[str, str | None]:
    """Return the columns by which a record is found when its create comes again."""
    if idempotency is None:
        return {"idempotency_key": None, "fingerprint": None}
    return {"idempotency_key": scoped_key(idempotency, actor), "fingerprint": idempotency.fingerprint}
