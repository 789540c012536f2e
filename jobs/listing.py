"""Pages of jobs, for the list of each kind."""

from dataclasses import dataclass
from typing import Final

from jobs.filter import parse_list_query, parse_page_token, render_page_token
from jobs.store import Job, JobStore, sort_key

MAX_PAGE_SIZE: Final = 1000
DEFAULT_PAGE_SIZE: Final = 50


@dataclass(frozen=True, slots=True)
class ListRequest:
    """Which jobs somebody wants to see, as they wrote it; without an order the newest come first."""

    page_size: int = DEFAULT_PAGE_SIZE
    page_token: str | None = None
    filter_text: str = ""
    order_by: str = ""


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs, and the token of those that come after them."""

    jobs: list[Job]
    next_page_token: str | None


def read_page(store: JobStore, kind: str, request: ListRequest) -> JobPage:
    """Return a page of the jobs of a kind.

    Raises:
        RequestInvalidError: filter, order or token is wrong, or the token is of another list.
    """
    query = parse_list_query(request.filter_text, request.order_by)
    size = max(1, min(request.page_size, MAX_PAGE_SIZE))
    after = None if not request.page_token else parse_page_token(request.page_token, query)
    jobs = store.list_jobs(kind, limit=size + 1, conditions=query.conditions, order=query.order, after=after)
    token = render_page_token(query, sort_key(jobs[size - 1], query.order)) if len(jobs) > size else None
    return JobPage(jobs[:size], token)
