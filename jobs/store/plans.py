"""Plans that were made and may be quoted until they expire."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from jobs.store.database import Database
from jobs.store.records import StoredPlan
from jobs.store.rows import read_row
from jobs.store.tables import PLANS


class Plans:
    """Keeps plans; a caller that quotes one looks at its expiry."""

    _database: Database

    def put_plan(
        self, plan_id: str, fingerprint: str, document: dict[str, Any], expires_at: datetime
    ) -> StoredPlan:
        """Keep a new plan."""
        plan = StoredPlan(plan_id, fingerprint, document, datetime.now(UTC), expires_at.astimezone(UTC))
        with self._database.write() as connection:
            connection.execute(PLANS.insert().values(**asdict(plan)))
        return plan

    def get_plan(self, plan_id: str) -> StoredPlan | None:
        """Return the plan, also one that has expired, or None when there is none."""
        with self._database.read() as connection:
            row = connection.execute(sa.select(PLANS).where(PLANS.c.id == plan_id)).first()
        return None if row is None else read_row(StoredPlan, row)

    def purge_plans(self, now: datetime) -> int:
        """Forget plans that expired before ``now``, and return how many."""
        with self._database.write() as connection:
            return connection.execute(PLANS.delete().where(PLANS.c.expires_at < now)).rowcount
