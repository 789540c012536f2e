"""``kind: Schedule``: a job that runs again and again, and everything that is wrong with how it is written."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, AwareDatetime, Field, TypeAdapter, ValidationError, model_validator

from backfill.plan.create import BackfillCreate
from backfill.plan.create import find_faults as find_backfill_faults
from model.errors import RequestInvalidError
from model.plain_yaml import walk_names, walk_texts
from reporting.request import MergeCreate
from rollout.manifests.cron import Cron, Timing, parse_zone
from rollout.manifests.rollout import Found, ManifestPart, RolloutWanted, read_document
from rollout.manifests.rollout import find_faults as find_rollout_faults
from rollout.manifests.slots import SLOT_FIELDS, Slot, fill_request, is_slot
from sql.parameters import parse_parameters
from sql.violation import QueryRefusedError

KIND: Final = "Schedule"
_MAX_CATCH_UP_SECONDS: Final = 31 * 86400.0
_SLOT_TYPES: Final = ("TIMESTAMP", "DATE")
_REQUEST: Final = ("job", "request")
_SOME_SLOT: Final = Slot(datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 2, tzinfo=UTC), parse_zone("UTC"))
_NO_SLOT: Final = (
    "{ slot.start } and { slot.end } must be the whole value of from or to of a backfill, of a TIMESTAMP or DATE "
    "parameter, of a template's parameter, or of a merge's since."
)


def _cron(text: str) -> str:
    cron = Cron.parse(text)
    if next(Timing(cron, parse_zone("UTC")).after(datetime(2000, 1, 1, tzinfo=UTC)), None) is None:
        raise ValueError("never has a run, because no month has such a day")
    return text


def _zone(text: str) -> str:
    parse_zone(text)
    return text


class SnapshotWanted(ManifestPart):
    """The snapshot to make."""

    stream: str = Field(min_length=1, max_length=63, description="The stream's name.")
    with_source: bool = Field(
        default=False, description="Whether to make a Pub/Sub snapshot of each subscription."
    )


class TemplateWanted(ManifestPart):
    """The template to launch, with the values of its parameters."""

    template: str = Field(min_length=1, max_length=63, description="The template's name.")
    parameters: dict[str, Any] = Field(
        default_factory=dict,
        description="The parameters' values. A value may be {{ slot.start }} or {{ slot.end }}.",
    )


class BackfillJob(ManifestPart):
    """A backfill. Its ``from``, ``to`` and parameters may be ``{{ slot.start }}`` or ``{{ slot.end }}``.

    An age such as 1h counts from the slot's end.
    """

    kind: Literal["backfill"]
    request: BackfillCreate


class MergeJob(ManifestPart):
    """A merge of staging tables into reporting tables."""

    kind: Literal["merge"]
    request: MergeCreate = Field(default_factory=MergeCreate)


class SnapshotJob(ManifestPart):
    """A snapshot of a stream."""

    kind: Literal["snapshot"]
    request: SnapshotWanted


class TemplateJob(ManifestPart):
    """The job or stream that a template describes."""

    kind: Literal["template"]
    request: TemplateWanted


class RolloutJob(ManifestPart):
    """A rollout of a stream. If the stream already has the release and options of ``to``, the slot is skipped."""

    kind: Literal["rollout"]
    request: RolloutWanted


class CompactionWanted(ManifestPart):
    """The tables to compact."""

    tables: list[Annotated[str, Field(pattern=r"^(archive|\w+\.\w+)$", max_length=300)]] = Field(
        default_factory=lambda: ["archive"],
        min_length=1,
        max_length=1000,
        description="The tables to compact. Write `archive` for the archive, and dataset.table for a staging "
        "or reporting table.",
        examples=[["archive", "staging.orders"]],
    )


class CompactionJob(ManifestPart):
    """A compaction of tables in the lake. It combines small files into large files, and changes no row."""

    kind: Literal["compaction"]
    request: CompactionWanted = Field(default_factory=CompactionWanted)


Job = BackfillJob | MergeJob | SnapshotJob | TemplateJob | RolloutJob | CompactionJob


class CatchUp(ManifestPart):
    """Which missed slots run when the service starts again. Without this field, missed slots are skipped."""

    window_seconds: float = Field(
        ge=60,
        le=_MAX_CATCH_UP_SECONDS,
        description="Slots that ended more than this many seconds ago are skipped.",
    )
    max: int = Field(
        ge=1,
        le=100,
        description="The maximum number of missed slots that Refeed runs later. Refeed runs the newest missed "
        "slots, one after another.",
    )


class ScheduleManifest(ManifestPart):
    """A job that runs regularly. A slot is the time between two runs. The slot's job starts when the slot ends."""

    kind: Literal["Schedule"]
    name: str = Field(
        pattern=r"^[a-z][a-z0-9\-]{0,62}$", description="The manifest's name, and its id in commands and calls."
    )
    description: str = Field(default="", max_length=2000)
    cron: Annotated[str, AfterValidator(_cron)] = Field(
        max_length=200,
        description="The cron expression: minute, hour, day of month, month, day of week.",
        examples=["15 0 * * *"],
    )
    time_zone: Annotated[str, AfterValidator(_zone)] = Field(
        default="UTC",
        max_length=100,
        description="The time zone of the cron expression: a name from the tz database.",
        examples=["Europe/Berlin"],
    )
    start: AwareDatetime | None = Field(
        default=None, description="The schedule starts no job for a slot before this time (RFC 3339)."
    )
    end: AwareDatetime | None = Field(
        default=None, description="The schedule starts no job for a slot at this time (RFC 3339) or later."
    )
    job: Annotated[Job, Field(discriminator="kind")]
    catch_up: CatchUp | None = None
    overlap: Literal["skip", "queue"] = Field(
        default="skip",
        description="What happens if the previous run has not ended. `skip`: the slot is skipped. `queue`: the "
        "slot waits for the end of the previous run, and at most one slot waits.",
    )
    on_failure: Literal["go_on", "pause"] = Field(
        default="go_on",
        description="What happens after a failed run. `go_on`: the schedule continues. `pause`: the schedule "
        "pauses.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, moment in (("start", self.start), ("end", self.end)):
            try:
                _ = moment and moment.astimezone(parse_zone(self.time_zone))
            except OverflowError as exc:
                raise ValueError(f"{name} is before the year 1 or after the year 9999 in this time zone") from exc
        if self.start is not None and self.end is not None and self.end <= self.start:
            raise ValueError("end is not after start")
        return self

    def timing(self) -> Timing:
        """Return when it is due."""
        return Timing(Cron.parse(self.cron), parse_zone(self.time_zone), self.start, self.end)


def read_schedule(document: Mapping[str, Any]) -> ScheduleManifest:
    """Return the schedule that the document of a manifest is; raises as :func:`read_document`."""
    return read_document(ScheduleManifest, document)


def find_faults(value: Mapping[str, Any]) -> Iterator[Found]:
    """Yield what is wrong with a schedule's job beyond the shape that the model checks."""
    job = value.get("job")
    if isinstance(job, Mapping) and isinstance(job.get("request") or {}, Mapping):
        yield from _job_faults(str(job.get("kind")), job.get("request") or {})


def _job_faults(kind: str, request: Mapping[str, Any]) -> Iterator[Found]:
    for path, name in walk_names(request):
        if "{{" in name:
            yield (*_REQUEST, *path), _NO_SLOT
    for path, text in walk_texts(request):
        if "{{" in text and not _may_be_slot(kind, path, request):
            yield (*_REQUEST, *path), _NO_SLOT
    if kind == "backfill":
        for fault in find_backfill_faults({name for name, value in request.items() if value}):
            yield (*_REQUEST, *fault["pointer"].split("/")[1:]), fault["message"]
    if kind == "backfill" and request.get("plan_id") is not None:
        yield (
            (*_REQUEST, "plan_id"),
            ("plan_id can't be used in a schedule, because a plan expires and belongs to one backfill."),
        )
    if kind == "rollout":
        yield from (((*_REQUEST, *path), message) for path, message in find_rollout_faults(request))
    try:
        yield from _value_faults(kind, request)
    except (ValidationError, TypeError, KeyError, AttributeError, ValueError):
        # Its shape is wrong, and the model names that.
        return


def _value_faults(kind: str, request: Mapping[str, Any]) -> Iterator[Found]:
    """Yield what is wrong with the values of a request that has the times of some slot."""
    try:
        filled = fill_request(kind, request, _SOME_SLOT)
        if kind == "backfill":
            parse_parameters(filled["parameters"])
        elif kind == "merge":
            TypeAdapter(MergeCreate).validate_json(json.dumps(filled)).parse()
    except QueryRefusedError as exc:
        for violation in exc.violations:
            yield (*_REQUEST, "parameters"), violation.message
    except RequestInvalidError as exc:
        for error in exc.details["errors"]:
            yield (*_REQUEST, *error["pointer"].split("/")[1:]), error["message"]


def _may_be_slot(kind: str, path: tuple[str | int, ...], request: Mapping[str, Any]) -> bool:
    value: Any = request
    owner: Any = request
    for part in path:
        owner, value = value, value[part]
    if not is_slot(value):
        return False
    if kind == "merge":
        return path == ("since",)
    if kind == "template":
        return path[:1] == ("parameters",) and len(path) == len(("parameters", "name"))
    if kind == "backfill":
        if path in {(name,) for name in SLOT_FIELDS}:
            return True
        is_value = path[:1] == ("parameters",) and path[2:] == ("value",)
        return is_value and isinstance(owner, Mapping) and owner.get("type") in _SLOT_TYPES
    return False
