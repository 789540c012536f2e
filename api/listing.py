"""Parameters of lists of jobs, as OpenAPI shows them."""

from collections.abc import Callable, Sequence
from typing import Annotated, Final, TypeVar

from fastapi import Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from api.schemas import Since
from jobs.listing import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, ListRequest
from jobs.store import JobFilter
from model.job import JobState
from model.label import is_label

LIST_INVALID: Final = "A parameter is not valid. `errors` lists every violation."
_MAX_LABELS: Final = 64

Found = TypeVar("Found")
PageSize = Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE)]
IdToken = Annotated[str | None, Query(max_length=1000)]


def page_of(
    found: Sequence[Found], size: int, render_token: Callable[[Found], str]
) -> tuple[Sequence[Found], str | None]:
    """Return a page and the token of the next one, out of one thing more than the page may have."""
    return found[:size], render_token(found[size - 1]) if len(found) > size else None


def _check_label(text: str) -> str:
    key, colon, value = text.partition(":")
    if not colon or not is_label(key, value):
        raise ValueError("a label is key:value, of lower-case letters, digits, _ and -")
    return text


class JobListParameters(BaseModel):
    """Parameters of every list of jobs.

    An unknown one is refused: a list without a filter that was asked for would show too much.
    """

    model_config = ConfigDict(extra="forbid")

    page_size: int = Field(DEFAULT_PAGE_SIZE, ge=1, le=MAX_PAGE_SIZE)
    page_token: str | None = Field(
        None,
        max_length=2000,
        description="The `next_page_token` of the previous page. Send the other parameters unchanged.",
    )
    state: list[JobState] = Field(
        [], description="List only jobs in this state. Repeat the parameter for several states."
    )
    since: Since | None = Field(
        None, description="List only jobs that were created at this time (RFC 3339) or later."
    )
    order_by: str = Field(
        "",
        max_length=200,
        description="The fields to sort by, separated by commas. You can sort by `id`, `state`, `topic`, "
        "`created_by` and `created_at`. Add ` desc` to a field for descending order.",
        examples=["created_at desc"],
    )

    def request(self) -> ListRequest:
        """Return the list that is asked for."""
        return ListRequest(self.page_size, self.page_token, self.order_by, self.where())

    def where(self) -> JobFilter:
        """Return which jobs are asked for."""
        return JobFilter(states=tuple(self.state), created_since=self.since)


class BackfillListParameters(JobListParameters):
    """Parameters of a list of backfills."""

    topic: str | None = Field(None, description="List only backfills to this topic.", examples=["orders"])
    label: list[Annotated[str, AfterValidator(_check_label)]] = Field(
        [],
        max_length=_MAX_LABELS,
        description="List only backfills with this label, as `key:value`. Repeat the parameter for several "
        "labels.",
        examples=[["team:shop"]],
    )

    def where(self) -> JobFilter:
        """Return which backfills are asked for."""
        labels = tuple((key, value) for key, _, value in (label.partition(":") for label in self.label))
        return JobFilter(tuple(self.state), self.topic, labels, self.since)


def backfill_listing(parameters: Annotated[BackfillListParameters, Query()]) -> ListRequest:
    """Return what a list of backfills is asked for; a FastAPI dependency."""
    return parameters.request()


def merge_listing(parameters: Annotated[JobListParameters, Query()]) -> ListRequest:
    """Return what a list of merges or compactions is asked for; a FastAPI dependency."""
    return parameters.request()
