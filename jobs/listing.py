"""Pages of jobs, for the list of each kind."""

from dataclasses import dataclass
from typing import Final

from jobs.filter import parse_list_query, parse_page_token, render_page_token
from jobs.store import Job, JobStore, sort_key

MAX_PAGE_SIZE: Final = 1000
DEFAULT_PAGE_SIZE: Final = 50


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs, and the token of those that come after them."""

    jobs: list[Job]
    next_page_token: str | None


def read_page(
    store: JobStore, kind: str, *, page_size: int, page_token: str | None, filter_text: str, order_by: str
) -> JobPage:
    """Return jobs of a kind that a filter lets through, the newest first without an order.

    Raises:
        RequestInvalidError: filter, order or token is wrong, or the token is of another list.
    """
    query = parse_list_query(filter_text, order_by)
    size = max(1, min(page_size, MAX_PAGE_SIZE))
    after = None if not page_token else parse_page_token(page_token, query)
    jobs = store.list_jobs(kind, limit=size + 1, conditions=query.conditions, order=query.order, after=after)
    token = render_page_token(query, sort_key(jobs[size - 1], query.order)) if len(jobs) > size else None
    return JobPage(jobs[:size], token)
