"""Manifests that come by upload: which replica watches a source, and what became of each of its files."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from jobs.store.database import Database
from jobs.store.rows import read_row
from jobs.store.tables import AUDIT, MANIFESTS, UPLOADS
from jobs.store.waits import is_over
from model.errors import LeaseLostError
from model.manifest_upload import ManifestUpload
from model.principal import Principal

# The row of the source itself, which has the lease, beside those of its files.
_ITSELF: Final = ""


class Uploads:
    """Keeps a lease a source and a record a file.

    Whatever is changed for a source is changed in a transaction in which its holder still holds the lease, so a
    replica that was stopped for long changes nothing after another one has taken over.

    Raises:
        LeaseLostError: any call with a ``holder`` that no longer holds the source.
    """

    _database: Database

    def hold_source(
        self, source: str, holder: str, *, lease_seconds: float, is_dead: Callable[[str], bool] = lambda _: False
    ) -> bool:
        """Take or renew the lease of a source, and return whether ``holder`` has it.

        ``is_dead`` says of another holder whether it is known to be gone before its lease is over.
        """
        with self._database.write_now(f"upload {source}") as (connection, now):
            values = {"lease_owner": holder, "lease_until": now + timedelta(seconds=lease_seconds)}
            row = _find(connection, source, _ITSELF)
            if row is None:
                first = {"source": source, "file": _ITSELF, "generation": "", "noted_at": now}
                connection.execute(UPLOADS.insert().values(**first, **values))
                return True
            other = None if row.lease_owner == holder else row.lease_owner
            if other is not None and not is_over(row.lease_until, now) and not is_dead(other):
                return False
            connection.execute(UPLOADS.update().where(*_is(source, _ITSELF)).values(**values))
            return True

    def release_source(self, source: str, holder: str) -> None:
        """Let another replica hold the source now; one that somebody else holds is left alone."""
        where = [*_is(source, _ITSELF), UPLOADS.c.lease_owner == holder]
        with self._database.write() as connection:
            connection.execute(UPLOADS.update().where(*where).values(lease_owner=None, lease_until=None))

    def set_grant(self, source: str, principal: Principal, *, holder: str) -> None:
        """Give the source's manifests the scopes and topics that ``principal`` has now, and no others."""
        values = {"scopes": sorted(principal.scopes), "topics": principal.topics}
        with self._database.write("manifests") as connection:
            check_holder(connection, source, holder)
            connection.execute(MANIFESTS.update().where(MANIFESTS.c.source == source).values(**values))

    def find_source(self, source: str) -> ManifestUpload | None:
        """Return the record of the source itself; None before anybody watched it."""
        with self._database.read() as connection:
            row = connection.execute(sa.select(UPLOADS).where(*_is(source, _ITSELF))).first()
            return None if row is None else read_row(ManifestUpload, row)

    def list_uploads(self, source: str) -> list[ManifestUpload]:
        """Return the source's files, by name."""
        columns = UPLOADS.c
        query = sa.select(UPLOADS).where(columns.source == source, columns.file != _ITSELF).order_by(columns.file)
        with self._database.read() as connection:
            return [read_row(ManifestUpload, row) for row in connection.execute(query)]

    def set_source_problem(self, source: str, problem: str | None, *, holder: str) -> None:
        """Note why the source can't be read, None where it can; a problem that goes on keeps its time."""
        with self._database.write() as connection:
            row = check_holder(connection, source, holder)
            if row.fault != problem:
                at = row.noted_at if row.fault is not None else self._database.now(connection)
                where = _is(source, _ITSELF)
                connection.execute(UPLOADS.update().where(*where).values(fault=problem, noted_at=at))

    def note_upload(self, source: str, file: str, generation: str, fault: str | None, *, holder: str) -> None:
        """Note what became of the version of a file that is there, with one line in the audit log.

        The same version with the same fault is noted once.
        """
        with self._database.write(f"upload {source}") as connection:
            check_holder(connection, source, holder)
            row = _find(connection, source, file)
            values: dict[str, Any] = {"gone_at": None}
            if row is None or (row.generation, row.fault) != (generation, fault):
                values |= {"generation": generation, "fault": fault, "noted_at": self._database.now(connection)}
                if fault is None:
                    values["applied_generation"] = generation
                why = f"generation {generation}" + ("" if fault is None else f": {fault}")
                _audit(connection, source, file, outcome="done" if fault is None else "refused", why=why)
            if row is None:
                connection.execute(UPLOADS.insert().values(source=source, file=file, **values))
            else:
                connection.execute(UPLOADS.update().where(*_is(source, file)).values(**values))

    def note_gone(self, source: str, file: str, *, holder: str) -> None:
        """Note that a manifest's file is missing, even if it has no record; the time of the first note stays."""
        with self._database.write(f"upload {source}") as connection:
            check_holder(connection, source, holder)
            now = self._database.now(connection)
            if _find(connection, source, file) is None:
                first = {"source": source, "file": file, "generation": "", "noted_at": now}
                connection.execute(UPLOADS.insert().values(**first, gone_at=now))
            where = [*_is(source, file), UPLOADS.c.gone_at.is_(None)]
            connection.execute(UPLOADS.update().where(*where).values(gone_at=now))

    def forget_upload(self, source: str, file: str, *, holder: str) -> None:
        """Forget a file that has gone."""
        with self._database.write() as connection:
            check_holder(connection, source, holder)
            connection.execute(UPLOADS.delete().where(*_is(source, file)))


def check_holder(connection: Connection, source: str, holder: str) -> Row[Any]:
    """Return the source's row, which is locked until the transaction's end.

    Raises:
        LeaseLostError: somebody else holds it; a lease that expired and that nobody took counts as held.
    """
    row = _find(connection, source, _ITSELF)
    if row is None or row.lease_owner != holder:
        raise LeaseLostError(f"Another replica watches {source} now.", source=source)
    return row


def is_left(connection: Connection, source: str, name: str, now: datetime) -> bool:
    """Whether an upload left a manifest behind: its file has gone, or nobody watches the source any more."""
    itself, file = (_find(connection, source, each) for each in (_ITSELF, f"{name}.yaml"))
    if itself is None:
        return False
    is_watched = itself.lease_until is not None and not is_over(itself.lease_until, now)
    return not is_watched or (file is not None and file.gone_at is not None)


def forget_file(connection: Connection, source: str, name: str) -> None:
    """Forget the file of a manifest that was removed, if an upload made it."""
    connection.execute(UPLOADS.delete().where(*_is(source, f"{name}.yaml")))


def _is(source: str, file: str) -> list[sa.ColumnElement[bool]]:
    return [UPLOADS.c.source == source, UPLOADS.c.file == file]


def _find(connection: Connection, source: str, file: str) -> Row[Any] | None:
    return connection.execute(sa.select(UPLOADS).where(*_is(source, file)).with_for_update()).first()


def _audit(connection: Connection, source: str, file: str, *, outcome: str, why: str) -> None:
    target = f"/manifests/{file.rpartition('.')[0]}"
    connection.execute(
        AUDIT.insert().values(
            at=datetime.now(UTC),
            actor=source,
            action="applyManifest",
            target=target[:200],
            outcome=outcome,
            why=why[:500],
        )
    )
