"""What lists of jobs are asked for, as OpenAPI shows it."""

from typing import Annotated, Final

from fastapi import Depends, Query

from jobs.filter import MAX_FILTER_CHARACTERS
from jobs.listing import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, ListRequest

LIST_INVALID: Final = "The filter, the order or the token is not valid; `errors` says where."

PageSize = Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE)]


def _list_request(
    *,
    page_size: PageSize = DEFAULT_PAGE_SIZE,
    page_token: Annotated[
        str | None, Query(max_length=2000, description="next_page_token of a page with the same filter and order.")
    ] = None,
    filter_text: Annotated[
        str,
        Query(
            alias="filter",
            max_length=MAX_FILTER_CHARACTERS,
            description="AIP-160: fields id, state, topic, created_by, created_at, started_at, finished_at and "
            "labels.KEY; = != < <= > >=, labels.KEY:*, AND, NOT, brackets, and OR between values of one field.",
            examples=['state = RUNNING AND topic = "orders"'],
        ),
    ] = "",
    order_by: Annotated[
        str,
        Query(
            max_length=200,
            description="AIP-132: id, state, topic, created_by or created_at, each with desc or not, with commas.",
            examples=["created_at desc"],
        ),
    ] = "",
) -> ListRequest:
    """Return what is asked for; a FastAPI dependency."""
    return ListRequest(page_size, page_token, filter_text, order_by)


Listing = Annotated[ListRequest, Depends(_list_request)]
