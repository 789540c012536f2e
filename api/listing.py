"""Parameters of lists of jobs, as OpenAPI shows them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

from fastapi import Query
from pydantic import AfterValidator, BaseModel, Field, WithJsonSchema

from api.schemas import Since
from api.schemas_jobs import JobKindName, job_json
from jobs.listing import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, ListRequest
from jobs.reader import JobView
from jobs.store import JobFilter
from jobs.store.step_jobs import stream_subject
from model.errors import JobUnreadableError
from model.job import JobState
from model.label import is_label
from model.stream_update import UpdateState

LIST_INVALID: Final = "A parameter is not valid. `errors` lists every violation."
_MAX_LABELS: Final = 64
_JOB_STATES: Final[frozenset[str]] = frozenset(JobState)
_STATES: Final = [*map(str, JobState), *(state for state in map(str, UpdateState) if state not in _JOB_STATES)]
_UPDATE_ENDS: Final[Mapping[str, frozenset[str]]] = {
    UpdateState.STABLE: frozenset({JobState.SUCCEEDED}),
    UpdateState.ROLLED_BACK: frozenset({JobState.CANCELLED, JobState.FAILED}),
    UpdateState.REFUSED: frozenset({JobState.FAILED}),
}
_STEPS: Final = frozenset({JobState.PENDING, JobState.RUNNING})

Found = TypeVar("Found")
PageSize = Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE)]
IdToken = Annotated[str | None, Query(max_length=1000)]
PageToken = Annotated[
    str | None, Query(max_length=2000, description="The `next_page_token` of the previous page.")
]


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


def _job_states(state: str) -> frozenset[str]:
    """Return the states in which the job store has a job that is shown in ``state``, which may be an update's."""
    return frozenset({state}) if state in _JOB_STATES else _UPDATE_ENDS.get(state, _STEPS)


def _check_state(text: str) -> str:
    if text not in _STATES:
        raise ValueError(f"{text[:40]!r} is not a state. The states are {', '.join(_STATES)}")
    return text


class KindListParameters(BaseModel):
    """Parameters of a list of jobs of one kind."""

    page_size: int = Field(DEFAULT_PAGE_SIZE, ge=1, le=MAX_PAGE_SIZE)
    page_token: str | None = Field(
        None,
        max_length=2000,
        description="The `next_page_token` of the previous page. Send the other parameters unchanged.",
    )
    state: list[
        Annotated[str, AfterValidator(_check_state), WithJsonSchema({"type": "string", "enum": _STATES})]
    ] = Field(
        [],
        max_length=_MAX_LABELS,
        description="List only jobs in this state. Repeat the parameter for several states. An update also has a "
        "state of other jobs: SUCCEEDED if it is STABLE, FAILED if it is REFUSED, CANCELLED or FAILED if it is "
        "ROLLED_BACK, and RUNNING in each of its steps. A page can have fewer jobs than `page_size`.",
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
            states=tuple(sorted({JobState(each) for state in self.state for each in _job_states(state)})),
            topic=self.topic,
            labels=tuple((key, value) for key, _, value in (label.partition(":") for label in self.label)),
            created_since=self.since,
            kinds=tuple(kinds),
            created_by=self.created_by,
            id_prefix=self.id_prefix,
            subject=None if stream is None else stream_subject(stream),
        )
        return ListRequest(self.page_size, self.page_token, self.order_by, where)

    def select(self, jobs: Sequence[JobView], unreadable: list[str]) -> list[dict[str, Any]]:
        """Return those of a page's jobs that are shown in a wanted state: the store knows no states of updates.

        The ids of jobs with values that no answer can have are added to ``unreadable``.
        """
        shown, wanted = [], {*self.state}
        for job in jobs:
            try:
                shown.append(job_json(job))
            except JobUnreadableError as exc:
                unreadable.append(exc.details["id"])
        if wanted <= _JOB_STATES:
            return shown
        return [job for job in shown if {job["state"], *_job_states(job["state"])} & wanted]


class JobListParameters(KindListParameters):
    """Parameters of the list of all jobs."""

    kind: list[JobKindName] = Field(
        [], description="List only jobs of this kind. Repeat the parameter for several kinds."
    )
    stream: str | None = Field(
        None,
        max_length=300,
        description="List only updates, rollbacks and changes of this stream.",
        examples=["backup"],
    )
