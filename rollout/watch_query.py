"""The query of a rollout's validation, which must give no rows once the watch is over."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from backfill.plan.planner import policy_of
from backfill.plan.settings import BackfillSettings
from model.moment import render_moment
from sql.validate import Policy, ValidatedQuery, parse_parameters, validate_query
from warehouse.queries import Queries

# More rows than these are not counted.
MAX_ROWS: Final = 1_000
# Other rollouts wait meanwhile.
ANSWER_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class WatchRows:
    """How many rows the query gave; ``is_cut`` where there are more."""

    count: int
    is_cut: bool

    def __str__(self) -> str:
        """Return the number as a person reads it."""
        return f"more than {self.count:,} rows" if self.is_cut else f"{self.count:,} row{'s' * (self.count != 1)}"


def validate_watch_query(text: str, since: datetime, policy: Policy) -> ValidatedQuery:
    """Return the query of a rollout's validation as the gate lets it through; it has a window, and any columns.

    Raises:
        QueryRefusedError: it doesn't; every violation is in it.
    """
    parameters = parse_parameters({"since": {"type": "TIMESTAMP", "value": render_moment(since)}})
    return validate_query(text, parameters, replace(policy, replay=False, windowed=True))


@dataclass(frozen=True, slots=True)
class WatchQueries:
    """Answers them over the tables that backfills' queries may read; ``@since`` is when the new release began."""

    settings: BackfillSettings
    queries: Queries

    def check(self, text: str, since: datetime) -> ValidatedQuery:
        """Return the query as the gate lets it through.

        Raises:
            QueryRefusedError: it doesn't; every violation is in it.
            WarehouseError: the warehouse does not answer.
        """
        found = validate_watch_query(text, since, policy_of(self.settings, self.queries, replay=False))
        self.queries.check(found)
        return found

    def count_rows(self, text: str, since: datetime, max_bytes: int) -> WatchRows:
        """Return how many rows the query gives.

        Raises:
            QueryTooLargeError: it would read more than ``max_bytes``, or does not end in time.
            QueryRefusedError, QueryError, WarehouseError: it can't be answered.
        """
        valid = self.check(text, since)
        found = self.queries.answer(valid, max_rows=MAX_ROWS, seconds=ANSWER_SECONDS, max_bytes=max_bytes)
        return WatchRows(found.rows.num_rows, found.is_cut)
