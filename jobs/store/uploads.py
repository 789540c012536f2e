"""Manifests that come by upload: which replica watches a source, and what became of each of its files."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from jobs.store.database import Database
from jobs.store.rows import read_row
from jobs.store.tables import AUDIT, MANIFEST_UPLOADS, MANIFESTS, UPLOAD_SOURCES
from jobs.store.waits import is_over
from model.errors import LeaseLostError
from model.manifest_upload import ManifestUpload, UploadSource
from model.principal import Principal


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
        with self._database.write(f"upload {source}") as connection:
            now = self._database.now(connection)
            values = {"lease_owner": holder, "lease_until": now + timedelta(seconds=lease_seconds)}
            row = _find_source(connection, source)
            if row is None:
                connection.execute(UPLOAD_SOURCES.insert().values(source=source, **values))
                return True
            other = None if row.lease_owner == holder else row.lease_owner
            if other is not None and not is_over(row.lease_until, now) and not is_dead(other):
                return False
            connection.execute(UPLOAD_SOURCES.update().where(UPLOAD_SOURCES.c.source == source).values(**values))
            return True

    def release_source(self, source: str, holder: str) -> None:
        """Let another replica hold the source now; one that somebody else holds is left alone."""
        columns = UPLOAD_SOURCES.c
        with self._database.write() as connection:
            connection.execute(
                UPLOAD_SOURCES.update()
                .where(columns.source == source, columns.lease_owner == holder)
                .values(lease_owner=None, lease_until=None)
            )

    def set_grant(self, source: str, principal: Principal, *, holder: str) -> None:
        """Give the source's manifests the scopes and topics that ``principal`` has now, and no others."""
        values = {"scopes": sorted(principal.scopes), "topics": principal.topics}
        with self._database.write("manifests") as connection:
            check_holder(connection, source, holder)
            connection.execute(MANIFESTS.update().where(MANIFESTS.c.source == source).values(**values))

    def set_source_problem(self, source: str, problem: str | None, *, holder: str) -> None:
        """Note why the source can't be watched, None where it can; a problem that goes on keeps its time."""
        with self._database.write() as connection:
            row = check_holder(connection, source, holder)
            if row.problem != problem:
                at = None if problem is None else row.problem_at or self._database.now(connection)
                connection.execute(
                    UPLOAD_SOURCES.update()
                    .where(UPLOAD_SOURCES.c.source == source)
                    .values(problem=problem, problem_at=at)
                )

    def list_upload_sources(self) -> list[UploadSource]:
        """Return every source that was ever watched, by name."""
        with self._database.read() as connection:
            rows = connection.execute(sa.select(UPLOAD_SOURCES).order_by(UPLOAD_SOURCES.c.source))
            return [read_row(UploadSource, row) for row in rows]

    def list_uploads(self, source: str) -> list[ManifestUpload]:
        """Return the source's files, by name."""
        columns = MANIFEST_UPLOADS.c
        query = sa.select(MANIFEST_UPLOADS).where(columns.source == source).order_by(columns.file)
        with self._database.read() as connection:
            return [read_row(ManifestUpload, row) for row in connection.execute(query)]

    def note_upload(self, source: str, file: str, generation: str, fault: str | None, *, holder: str) -> None:
        """Note what became of the version of a file that is there, with one line in the audit log.

        The same version with the same fault is noted once.
        """
        with self._database.write(f"upload {source}") as connection:
            check_holder(connection, source, holder)
            row = _find_upload(connection, source, file)
            values: dict[str, Any] = dict.fromkeys(("gone_at", "waits", "approval_id", "removed_at"))
            if row is None or (row.generation, row.fault) != (generation, fault) or row.removed_at is not None:
                values |= {"generation": generation, "fault": fault, "noted_at": self._database.now(connection)}
                if fault is None:
                    values["applied_generation"] = generation
                why = f"generation {generation}" + ("" if fault is None else f": {fault}")
                outcome = "done" if fault is None else "refused"
                _audit(connection, source, file, action="applyManifest", outcome=outcome, why=why)
            _put_upload(connection, source, file, is_new=row is None, **values)

    def note_gone(
        self,
        source: str,
        file: str,
        *,
        holder: str,
        waits: str | None = None,
        approval_id: str | None = None,
    ) -> None:
        """Note that a file has gone, and why its manifest's removal waits; when it was first missed stays."""
        with self._database.write(f"upload {source}") as connection:
            check_holder(connection, source, holder)
            row = _find_upload(connection, source, file)
            if row is None:
                return
            if waits is not None and row.waits is None:
                _audit(connection, source, file, action="removeManifest", outcome="refused", why=waits)
            values: dict[str, Any] = {"gone_at": row.gone_at or self._database.now(connection)}
            values |= {"waits": waits or row.waits, "approval_id": approval_id or row.approval_id}
            _put_upload(connection, source, file, **values)

    def note_removed(self, source: str, file: str, why: str, *, holder: str | None = None) -> None:
        """Note that a file's manifest was removed because the file has gone; without ``holder`` by a person."""
        with self._database.write(f"upload {source}") as connection:
            if holder is not None:
                check_holder(connection, source, holder)
            _audit(connection, source, file, action="removeManifest", outcome="done", why=why)
            at = self._database.now(connection)
            _put_upload(connection, source, file, removed_at=at, waits=None, approval_id=None, fault=None)

    def forget_upload(self, source: str, file: str, *, holder: str) -> None:
        """Forget a file that has gone."""
        columns = MANIFEST_UPLOADS.c
        with self._database.write() as connection:
            check_holder(connection, source, holder)
            connection.execute(MANIFEST_UPLOADS.delete().where(columns.source == source, columns.file == file))


def check_holder(connection: Connection, source: str, holder: str) -> Row[Any]:
    """Return the source's row, which is locked until the transaction's end.

    Raises:
        LeaseLostError: somebody else holds it; a lease that expired and that nobody took counts as held.
    """
    row = _find_source(connection, source)
    if row is None or row.lease_owner != holder:
        raise LeaseLostError(f"Another replica watches {source} now.", source=source)
    return row


def _find_source(connection: Connection, source: str) -> Row[Any] | None:
    query = sa.select(UPLOAD_SOURCES).where(UPLOAD_SOURCES.c.source == source)
    return connection.execute(query.with_for_update()).first()


def _find_upload(connection: Connection, source: str, file: str) -> Row[Any] | None:
    columns = MANIFEST_UPLOADS.c
    return connection.execute(
        sa.select(MANIFEST_UPLOADS).where(columns.source == source, columns.file == file)
    ).first()


def _put_upload(connection: Connection, source: str, file: str, *, is_new: bool = False, **values: Any) -> None:
    columns = MANIFEST_UPLOADS.c
    if is_new:
        connection.execute(MANIFEST_UPLOADS.insert().values(source=source, file=file, **values))
    else:
        connection.execute(
            MANIFEST_UPLOADS.update().where(columns.source == source, columns.file == file).values(**values)
        )


def _audit(connection: Connection, source: str, file: str, *, action: str, outcome: str, why: str) -> None:
    target = f"/manifests/{file.rpartition('.')[0]}"
    connection.execute(
        AUDIT.insert().values(
            at=datetime.now(UTC), actor=source, action=action, target=target[:200], outcome=outcome, why=why[:500]
        )
    )
