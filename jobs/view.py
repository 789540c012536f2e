"""Jobs with a driver as people see them: one schema for the API and ``--json``."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, TypeAdapter

from jobs.store import Job
from model.fault import FaultRecord
from model.job import JobState


@dataclass(frozen=True, kw_only=True)
class DrivenJob:
    """What people see of every job with a driver; a kind adds its own fields. Times are aware UTC."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {}

    id: Annotated[str, Field(description="The job's id, which begins with `bf_`, `mg_` or `cp_`, by its kind.")]
    kind: Annotated[str, Field(description="The kind of the job.")]
    state: Annotated[JobState, Field(description="The job's state.")]
    created_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    restarts: Annotated[
        int,
        Field(
            description="The number of drivers that died and were replaced since a person last started the job."
        ),
    ]
    error: FaultRecord | None
    etag: str

    @classmethod
    def read(cls, job: Job, **own: Any) -> Self:
        """Return the view of a stored job, with the fields of its kind.

        Raises:
            ValueError: another release wrote a value that this schema does not have.
        """
        names = [each.name for each in fields(DrivenJob) if each.name != "etag"]
        shown: Self = cls._adapter().validate_python(
            {**{name: getattr(job, name) for name in names}, "etag": f'"{job.version}"', **own}
        )
        return shown

    def to_json(self) -> dict[str, Any]:
        """Return the job in the API's JSON."""
        shown: dict[str, Any] = self._adapter().dump_python(self, mode="json", by_alias=True)
        return shown

    @classmethod
    @cache
    def _adapter(cls) -> TypeAdapter[Any]:
        return TypeAdapter(cls)


def shape_of(example: Mapping[str, Any]) -> dict[str, Any]:
    """Return pydantic's configuration of a kind; ``example`` is a job of the kind without the usual fields."""
    usual = {
        "state": "SUCCEEDED",
        "created_by": "key:ann",
        "created_at": "2026-01-03T03:00:00Z",
        "started_at": "2026-01-03T03:00:01Z",
        "finished_at": "2026-01-03T03:00:09Z",
        "restarts": 0,
        "error": None,
        "etag": '"5"',
    }
    # Every answer has every field, also those that a request may leave out.
    return {
        "json_schema_serialization_defaults_required": True,
        "json_schema_extra": {"examples": [{**usual, **example}]},
    }
