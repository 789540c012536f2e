"""Parameters of lists of jobs, as OpenAPI shows them."""

from collections.abc import Callable, Sequence
from typing import Annotated, Final, TypeVar

from fastapi import Query
from pydantic import AfterValidator, BaseModel, Field

from api.schemas import Since
from api.schemas_jobs import JobKindName
from jobs.listing import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, ListRequest
from jobs.store import JobFilter
from jobs.store.step_jobs import stream_subject
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


class KindListParameters(BaseModel):
    """Parameters of a list of jobs of one kind."""

    page_size: int = Field(DEFAULT_PAGE_SIZE, ge=1, le=MAX_PAGE_SIZE)
    page_token: str | None = Field(
        None,
        max_length=2000,
        description="The `next_page_token` of the previous page. Send the other parameters unchanged.",
    )
    state: list[JobState] = Field(
        [],
        description="List only jobs in this state. Repeat the parameter for several states. An update that is "
        "STABLE is SUCCEEDED here, ROLLED_BACK is CANCELLED, REFUSED is FAILED, and its steps are RUNNING.",
    )
    topic: str | None = Field(None, description="List only backfills to this topic.", examples=["orders"])
    label: list[Annotated[str, AfterValidator(_check_label)]] = Field(
        [],
        max_length=_MAX_LABELS,
        description="List only jobs with this label, as `key:value`. Repeat the parameter for several labels.",
        examples=[["team:shop"]],
    )
    since: Since | None = Field(
        None, description="List only jobs that were created at this time (RFC 3339) or later."
    )
    created_by: str | None = Field(None, description="List only jobs of this creator.", examples=["key:ann"])
    id_prefix: str = Field(
        "",
        max_length=64,
        pattern="^[0-9A-Za-z_]*$",
        description="List only jobs whose id begins with these characters.",
        examples=["bf_01K0"],
    )
    order_by: str = Field(
        "",
        max_length=200,
        description="The fields to sort by, separated by commas. You can sort by `id`, `state`, `topic`, "
        "`created_by` and `created_at`. Add ` desc` to a field for descending order.",
        examples=["created_at desc"],
    )

    def request(self, kinds: Sequence[str], stream: str | None = None) -> ListRequest:
        """Return the list of jobs of these kinds, or of all, that is asked for."""
        where = JobFilter(
            states=tuple(self.state),
            topic=self.topic,
            labels=tuple((key, value) for key, _, value in (label.partition(":") for label in self.label)),
            created_since=self.since,
            kinds=tuple(kinds),
            created_by=self.created_by,
            id_prefix=self.id_prefix,
            subject=None if stream is None else stream_subject(stream),
        )
        return ListRequest(self.page_size, self.page_token, self.order_by, where)


class JobListParameters(KindListParameters):
    """Parameters of the list of all jobs."""

    kind: list[JobKindName] = Field(
        [], description="List only jobs of this kind. Repeat the parameter for several kinds."
    )
    stream: str | None = Field(
        None, max_length=300, description="List only updates and rollbacks of this stream.", examples=["backup"]
    )
