"""Approvals as records: what somebody asked for, and what a second person decided."""

from dataclasses import fields
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from jobs.store.database import Database
from jobs.store.rows import read_row
from jobs.store.tables import APPROVALS
from model.approval import (
    EXPIRES_AFTER,
    Approval,
    ApprovalRequest,
    ApprovalState,
)
from model.errors import ApprovalNotFoundError, ApprovalStateError
from model.fault import FaultRecord
from model.job import new_job_id
from model.principal import Principal

_LATE: Final = FaultRecord("approval_late", "Nobody decided in time.")


class Approvals:
    """Keeps each approval for good; one that nobody decided in time is shown as EXPIRED."""

    _database: Database

    def create_approval(self, asked: ApprovalRequest) -> Approval:
        """Keep a WAITING approval; the same request by the same caller gives back the one that waits."""
        columns = APPROVALS.c
        with self._database.write("approvals") as connection:
            now = self._database.now(connection)
            waits = sa.select(APPROVALS).where(
                columns.state == ApprovalState.WAITING,
                columns.expires_at > now,
                columns.kind == asked.kind,
                columns.name == asked.name,
                columns.action == asked.action,
                columns.version == asked.version,
                columns.requested_by == asked.requester.name,
            )
            for row in connection.execute(waits):
                if row.request == asked.request:
                    return _approval_of(row, now)
            approval_id = new_job_id("ap")
            values = {each.name: getattr(asked, each.name) for each in fields(asked) if each.name != "requester"}
            connection.execute(
                APPROVALS.insert().values(
                    **values,
                    id=approval_id,
                    requested_by=asked.requester.name,
                    scopes=sorted(asked.requester.scopes),
                    topics=asked.requester.topics,
                    requested_at=now,
                    expires_at=now + EXPIRES_AFTER,
                    state=ApprovalState.WAITING,
                )
            )
            return _get(connection, approval_id, now)

    def get_approval(self, approval_id: str) -> Approval:
        """Return the approval.

        Raises:
            ApprovalNotFoundError: there is none; any call that names one may raise it.
        """
        with self._database.read() as connection:
            return _get(connection, approval_id, self._database.now(connection))

    def list_approvals(
        self, *, state: ApprovalState | None = None, before: str | None = None, limit: int | None = None
    ) -> list[Approval]:
        """Return approvals, newest first; ``before`` is the id that the page before ended with."""
        columns = APPROVALS.c
        query = sa.select(APPROVALS).order_by(columns.id.desc()).limit(limit)
        if before is not None:
            query = query.where(columns.id < before)
        with self._database.read() as connection:
            now = self._database.now(connection)
            if state is not None:
                query = query.where(_is(state, now))
            return [_approval_of(row, now) for row in connection.execute(query)]

    def decide_approval(
        self, approval_id: str, state: ApprovalState, *, actor: str, reason: str | None = None
    ) -> Approval:
        """Make a WAITING approval APPROVED or REJECTED; of several who decide at once one does.

        Raises:
            ApprovalStateError: it is decided already, or has expired.
        """
        with self._database.write("approvals") as connection:
            now = self._database.now(connection)
            found = _get(connection, approval_id, now, for_update=True)
            if found.state is not ApprovalState.WAITING:
                by = "" if found.decided_by is None else f", decided by {found.decided_by}"
                raise ApprovalStateError(f"{approval_id} is {found.state}{by}.", id=approval_id, state=found.state)
            _update(connection, approval_id, state=state, decided_by=actor, decided_at=now, reason=reason)
            return _get(connection, approval_id, now)

    def note_outcome(self, approval_id: str, outcome: dict[str, Any]) -> Approval:
        """Note what the action of an APPROVED approval made."""
        with self._database.write() as connection:
            _update(connection, approval_id, outcome=outcome)
            return _get(connection, approval_id, self._database.now(connection))

    def expire_approval(self, approval_id: str, error: FaultRecord) -> None:
        """Make a WAITING approval EXPIRED before its time; one that is decided meanwhile stays so."""
        columns = APPROVALS.c
        with self._database.write("approvals") as connection:
            connection.execute(
                APPROVALS.update()
                .where(columns.id == approval_id, columns.state == ApprovalState.WAITING)
                .values(state=ApprovalState.EXPIRED, error=error)
            )


def _is(state: ApprovalState, now: datetime) -> sa.ColumnElement[bool]:
    columns = APPROVALS.c
    waits = columns.state == ApprovalState.WAITING
    if state is ApprovalState.WAITING:
        return sa.and_(waits, columns.expires_at > now)
    if state is ApprovalState.EXPIRED:
        return sa.or_(columns.state == state, sa.and_(waits, columns.expires_at <= now))
    return columns.state == state


def _get(connection: Connection, approval_id: str, now: datetime, *, for_update: bool = False) -> Approval:
    query = sa.select(APPROVALS).where(APPROVALS.c.id == approval_id)
    row = connection.execute(query.with_for_update() if for_update else query).first()
    if row is None:
        raise ApprovalNotFoundError(f"There is no approval {approval_id[:80]}.", id=approval_id[:80])
    return _approval_of(row, now)


def _update(connection: Connection, approval_id: str, **changes: Any) -> None:
    connection.execute(APPROVALS.update().where(APPROVALS.c.id == approval_id).values(**changes))


def _approval_of(row: Row[Any], now: datetime) -> Approval:
    requester = read_row(Principal, row, name=row.requested_by)
    asked = read_row(ApprovalRequest, row, requester=requester)
    if row.state == ApprovalState.WAITING and row.expires_at <= now:
        return read_row(Approval, row, asked=asked, state=ApprovalState.EXPIRED, error=_LATE)
    return read_row(Approval, row, asked=asked)
