"""Lists of jobs: the request, its order (AIP-132) and one page."""

from dataclasses import dataclass
from typing import Final

from jobs.page_tokens import parse_page_token, render_page_token
from jobs.store import EVERY_JOB, ORDER_FIELDS, Job, JobFilter, JobStore, SortOrder, sort_key
from jobs.store.lists import complete_order
from model.errors import RequestInvalidError, fault_at

MAX_PAGE_SIZE: Final = 1000
DEFAULT_PAGE_SIZE: Final = 50


@dataclass(frozen=True, slots=True)
class ListRequest:
    """A request for one page of jobs; the default order is newest first."""

    page_size: int = DEFAULT_PAGE_SIZE
    page_token: str | None = None
    order_by: str = ""
    where: JobFilter = EVERY_JOB


def read_page(store: JobStore, request: ListRequest) -> tuple[list[Job], str | None]:
    """Return a page of jobs, and the token of the next one.

    Raises:
        RequestInvalidError: the order or the token is invalid, or the token belongs to another list.
    """
    where, order = request.where, parse_order(request.order_by)
    size = max(1, min(request.page_size, MAX_PAGE_SIZE))
    after = None if not request.page_token else parse_page_token(request.page_token, where, order)
    jobs = store.list_jobs(where, limit=size + 1, order=order, after=after)
    token = render_page_token(where, order, sort_key(jobs[size - 1], order)) if len(jobs) > size else None
    return jobs[:size], token


def parse_order(text: str) -> tuple[SortOrder, ...]:
    """Parse an order such as ``topic, created_at desc``, and append the id as tie-breaker.

    Raises:
        RequestInvalidError: the text is no order; ``details["errors"]`` has the column.

    Example:
        >>> [(part.field, part.descending) for part in parse_order("topic")]
        [('topic', False), ('id', True)]
    """
    orders: list[SortOrder] = []
    column = 1
    for part in text.split(",") if text.strip() else ():
        words = part.split()
        fault: str | None = None
        if not words or words[1:] not in ([], ["asc"], ["desc"]):
            fault = (
                "An order must be a list of fields, separated by commas. Write `desc` after a field for "
                "descending order."
            )
        elif words[0] not in ORDER_FIELDS:
            fault = f"The list can't be sorted by {words[0][:60]!r}. Use {', '.join(ORDER_FIELDS)}."
        elif any(order.field == words[0] for order in orders):
            fault = f"The order names {words[0]} twice."
        if fault is not None:
            raise _order_invalid(fault, column + len(part) - len(part.lstrip()))
        orders.append(SortOrder(words[0], words[1:] == ["desc"]))
        column += len(part) + 1
    return complete_order(orders)


def _order_invalid(fault: str, column: int) -> RequestInvalidError:
    message = f"order_by, column {column}: {fault}"
    error = fault_at("/order_by", "order_by_invalid", message, line=1, column=column)
    return RequestInvalidError(message, errors=[error])
