"""What lists of jobs are asked for, as OpenAPI shows it."""

from typing import Annotated

from fastapi import Query

from jobs.filter import MAX_FILTER_CHARACTERS
from jobs.listing import MAX_PAGE_SIZE

PageSize = Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE)]
ListToken = Annotated[
    str | None, Query(max_length=2000, description="next_page_token of a page with the same filter and order.")
]
FilterText = Annotated[
    str,
    Query(
        alias="filter",
        max_length=MAX_FILTER_CHARACTERS,
        description="AIP-160: fields id, state, topic, created_by, created_at, started_at, finished_at and "
        "labels.KEY; = != < <= > >=, labels.KEY:*, AND, NOT, brackets, and OR between values of one field.",
        examples=['state = RUNNING AND topic = "orders"'],
    ),
]
OrderBy = Annotated[
    str,
    Query(
        max_length=200,
        description="AIP-132: id, state, topic, created_by or created_at, each with desc or not, with commas.",
        examples=["created_at desc"],
    ),
]
