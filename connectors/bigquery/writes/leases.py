"""Leases in the dataset: one small table each, changed only on the very version that was read."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from google.api_core import exceptions as api
from google.cloud import bigquery

from connectors.bigquery.client import ONCE, Clients
from connectors.bigquery.errors import call_bigquery
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.catalog import create_lasting_table
from connectors.bigquery.writes.attempt_notes import AttemptNotes
from model.errors import CheckpointCorruptError, LeaseLostError, WarehouseUnavailableError

_LEASE_SECONDS: Final = 60.0
_MOST_TRIES: Final = 20


@dataclass(frozen=True, slots=True)
class LeaseState:
    """Who has a lease: how often it was taken, the fence of its epoch, and fences that may still be open."""

    epoch: int = 0
    fence: str = ""
    open_fences: tuple[str, ...] = ()
    holder: str | None = None


class BigQueryLeases:
    """The leases of one archive, each kept as JSON in the description of an empty table of its own.

    A patch with If-Match is BigQuery's compare-and-set: it is free, takes one call, and an empty table has no
    other writers, so that its ETag changes with the lease alone. Google allows five such changes of a table in
    ten seconds; a lease is renewed every ten. ``on_taken`` is called with each lease that was taken and its state.
    """

    def __init__(
        self,
        clients: Clients,
        archive: TableId,
        notes: AttemptNotes,
        on_taken: Callable[[str, LeaseState], None],
    ) -> None:
        self._clients = clients
        self._archive = archive
        self._notes = notes
        self._on_taken = on_taken

    def read_lease(self, name: str) -> bytes | None:
        """Return what the holder wrote last, None when nobody did."""
        state, _ = self._read(name, is_created=False)
        return None if state.holder is None else state.holder.encode()

    def write_lease(self, name: str, epoch: int, content: bytes) -> None:
        """Replace what the holder of ``epoch`` wrote; fences that taking it closed are forgotten.

        Raises:
            LeaseLostError: another stream took the lease.
        """

        def change(found: LeaseState) -> LeaseState:
            if found.epoch != epoch:
                raise LeaseLostError(lease=name)
            return replace(found, holder=content.decode(), open_fences=())

        self._change(name, change)

    def take_lease(self, name: str) -> int:
        """Take the lease and return its new epoch: from now on nothing is committed under an older one.

        The epoch has a fence of its own; every older fence is closed before ``on_taken`` is called.

        Raises:
            LeaseLostError: another one took it at the same moment.
            CommitOutcomeUnknownError: what the holder before had noted can't be settled now.
        """
        fence = self._notes.open_fence()
        seen: list[int] = []

        def change(found: LeaseState) -> LeaseState:
            if found.fence == fence:
                return found  # the answer to this very change was lost
            if seen and found.epoch != seen[0]:
                raise LeaseLostError(f"Another stream has just taken the lease {name}.", lease=name)
            seen.append(found.epoch)
            older = (*found.open_fences, found.fence) if found.fence else found.open_fences
            return LeaseState(found.epoch + 1, fence, older, found.holder)

        taken = self._change(name, change)
        for older in taken.open_fences:
            self._notes.close_fence(older)
        self._on_taken(name, taken)
        return taken.epoch

    def now(self) -> float:
        """Return this machine's time."""
        return time.time()

    def replace_fence(self, name: str, epoch: int) -> LeaseState:
        """Give ``epoch`` a new fence, because BigQuery has forgotten the old one, as it does with idle streams.

        Raises:
            LeaseLostError: another stream took the lease.
        """
        fence = self._notes.open_fence()

        def change(found: LeaseState) -> LeaseState:
            if found.epoch != epoch:
                raise LeaseLostError(lease=name)
            return replace(found, fence=fence, open_fences=(*found.open_fences, found.fence))

        return self._change(name, change)

    def epoch(self, name: str) -> int:
        """Return how many times the lease has been taken."""
        return self._read(name, is_created=False)[0].epoch

    def _change(self, name: str, change: Callable[[LeaseState], LeaseState]) -> LeaseState:
        def call() -> LeaseState:
            for _ in range(_MOST_TRIES):
                state, table = self._read(name, is_created=True)
                wanted = change(state)
                if wanted == state:
                    return wanted
                table.description = json.dumps(asdict(wanted))
                try:
                    self._clients.rest().update_table(table, ["description"], **ONCE)
                except api.PreconditionFailed:
                    continue
                return wanted
            raise WarehouseUnavailableError(f"Other processes keep changing the lease {name}.")

        return call_bigquery(call, f"changing the lease {name}", seconds=_LEASE_SECONDS)

    def _read(self, name: str, *, is_created: bool) -> tuple[LeaseState, Any]:
        table = self._archive.companion(f"lease_{re.sub('[^A-Za-z0-9_]', '_', name)}")

        def call() -> Any:
            try:
                return self._clients.rest().get_table(str(table), **ONCE)
            except api.NotFound:
                if not is_created:
                    return None
            wanted = bigquery.Table(str(table), schema=[bigquery.SchemaField("nothing", "STRING")])
            wanted.description = json.dumps(asdict(LeaseState()))
            wanted.labels = self._clients.connection.labels_for("lease")
            create_lasting_table(self._clients, wanted)
            return self._clients.rest().get_table(str(table), **ONCE)

        found = call_bigquery(call, f"reading the lease {name}", seconds=_LEASE_SECONDS)
        if found is None:
            return LeaseState(), None
        try:
            fields = json.loads(found.description or "{}")
            return LeaseState(**{**fields, "open_fences": tuple(fields.get("open_fences", ()))}), found
        except (ValueError, TypeError) as exc:
            raise CheckpointCorruptError(
                f"The description of table {table} is not a lease. Stop the backup stream, then delete the table. "
                "No message is lost.",
                table=str(table),
            ) from exc
