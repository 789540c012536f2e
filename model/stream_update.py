"""The update of a stream as a record: the steps from one release to another, and back."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from dataclasses import fields as dataclass_fields
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Self

from model.declaration import FieldSpec
from model.fault import FaultRecord
from model.stream_options import extend_mapping
from model.stream_record import Wanted
from model.typed import read_fields
from model.watch_bounds import USUAL_BOUNDS, WatchBounds

VALIDATE_SECONDS: Final = 120.0
# A watch that may last longer is a stream that runs two releases for good.
MAX_VALIDATE_SECONDS: Final = 86_400.0
MIN_MESSAGES: Final = 100
# More of the archive is compared by a replay into other tables.
MAX_SHADOW_HOURS: Final = 24.0


class WhenInconclusive(StrEnum):
    """What follows an inconclusive watch: the new release stays, or the update fails."""

    KEEP = "keep"
    FAIL = "fail"


class UpdateStrategy(StrEnum):
    """How the new release gets the stream: from a standby between two commits, or by a stop and a start."""

    HAND_OVER = "hand_over"
    RESTART = "restart"


class UpdateState(StrEnum):
    """The current step of an update, or its result.

    Up to STARTING the old release runs and nothing of it has changed. In SHADOWING, which the update of a pipeline
    may ask for, the new release converts archived messages beside it, and their rows are compared. In
    HANDING_OVER the standby of the new release takes the stream over; in ROLLING_BACK a standby of the old one
    starts, and in HANDING_BACK it takes the stream back.

    An update by a restart has no standby: in MEASURING the old release gets its figures of a minute, in STOPPING
    it drains, and in RESTARTING the new one starts. STOPPING_BACK and RESTARTING_BACK lead back the same way.
    """

    CHECKING = "CHECKING"
    MEASURING = "MEASURING"
    SHADOWING = "SHADOWING"
    SNAPSHOTTING = "SNAPSHOTTING"
    STARTING = "STARTING"
    HANDING_OVER = "HANDING_OVER"
    STOPPING = "STOPPING"
    RESTARTING = "RESTARTING"
    WATCHING = "WATCHING"
    ROLLING_BACK = "ROLLING_BACK"
    HANDING_BACK = "HANDING_BACK"
    STOPPING_BACK = "STOPPING_BACK"
    RESTARTING_BACK = "RESTARTING_BACK"
    STABLE = "STABLE"
    REFUSED = "REFUSED"
    ROLLED_BACK = "ROLLED_BACK"
    FAILED = "FAILED"

    @property
    def is_ended(self) -> bool:
        """Whether nothing happens to the update any more."""
        return self in ENDED_UPDATES

    @property
    def is_before_hand_over(self) -> bool:
        """Whether the old release runs, and giving the update up changes nothing."""
        return self in _BEFORE

    @property
    def is_handing(self) -> bool:
        """Whether one process takes the stream over from another at this moment."""
        return self in {UpdateState.HANDING_OVER, UpdateState.HANDING_BACK}

    @property
    def is_stopping(self) -> bool:
        """Whether the stream's process drains, and its agent starts no other one."""
        return self in {UpdateState.STOPPING, UpdateState.STOPPING_BACK}

    @property
    def is_restarting(self) -> bool:
        """Whether the agent starts the stream as its record has it since this step began."""
        return self in {UpdateState.RESTARTING, UpdateState.RESTARTING_BACK}

    @property
    def is_shown(self) -> bool:
        """Whether the stream is shown as UPDATING."""
        return self in _SHOWN


ENDED_UPDATES: Final = frozenset(
    {UpdateState.STABLE, UpdateState.REFUSED, UpdateState.ROLLED_BACK, UpdateState.FAILED}
)
# The steps of the job that an update is, and the state that each is shown as.
UPDATE_STEPS: Final = {
    "check": UpdateState.CHECKING,
    "measure": UpdateState.MEASURING,
    "shadow": UpdateState.SHADOWING,
    "snapshot": UpdateState.SNAPSHOTTING,
    "stand_by": UpdateState.STARTING,
    "hand_over": UpdateState.HANDING_OVER,
    "stop": UpdateState.STOPPING,
    "start": UpdateState.RESTARTING,
    "watch": UpdateState.WATCHING,
    "back_stand_by": UpdateState.ROLLING_BACK,
    "hand_back": UpdateState.HANDING_BACK,
    "back_stop": UpdateState.STOPPING_BACK,
    "back_start": UpdateState.RESTARTING_BACK,
}
# The code of an update that somebody wanted taken back, and of one whose stream was to end.
UNWANTED: Final = "update_unwanted"
ABANDONED: Final = "update_abandoned"
# The codes of a shadow whose rows differ, and of one with too few of them.
SHADOW_DIFFERS: Final = "shadow_differs"
SHADOW_INCONCLUSIVE: Final = "shadow_inconclusive"
_BEFORE: Final = frozenset(
    {
        UpdateState.CHECKING,
        UpdateState.MEASURING,
        UpdateState.SHADOWING,
        UpdateState.SNAPSHOTTING,
        UpdateState.STARTING,
    }
)
_SHOWN: Final = frozenset(
    {UpdateState.STARTING, UpdateState.HANDING_OVER, UpdateState.ROLLING_BACK, UpdateState.HANDING_BACK}
)
# What a request did not have in the first release with updates, and is not kept where it is as usual.
_LATER_FIELDS: Final = ("shadow", "is_halting", "bounds", "when_inconclusive", "strategy", "is_trusted")


@dataclass(frozen=True, slots=True)
class ShadowRequest:
    """A run of the new release in the shadow: over how many hours of the archive, and columns that may differ."""

    hours: float = 1.0
    may_differ: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UpdateRequest:
    """An update as it is asked for.

    ``release`` None is the installed one. ``options`` changes options one by one, None takes one away. ``mapping``
    leads from the name of a source to its new one, or to None where it is to end. With ``shadow`` the new release
    has to agree in the shadow first. With ``is_halting`` a new release that fails once it has the stream stays,
    for a person to look at. ``when_inconclusive`` decides where too few messages came, or a figure is not known.
    One that ``is_trusted`` leads to what was STABLE before, and is watched for nothing.
    """

    release: str | None
    options: Mapping[str, Any]
    mapping: Mapping[str, str | None]
    validate_seconds: float = VALIDATE_SECONDS
    min_messages: int = MIN_MESSAGES
    reason: str | None = None
    shadow: ShadowRequest | None = None
    is_halting: bool = False
    bounds: WatchBounds = USUAL_BOUNDS
    when_inconclusive: WhenInconclusive = WhenInconclusive.KEEP
    strategy: UpdateStrategy = UpdateStrategy.HAND_OVER
    is_trusted: bool = False

    @property
    def is_restart(self) -> bool:
        """Whether the old release ends before the new one starts."""
        return self.strategy is UpdateStrategy.RESTART

    @property
    def on_failure(self) -> str:
        """What a new release that fails leads to, in the words of a manifest."""
        return "halt" if self.is_halting else "rollback"

    def to_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` takes; an agent of an earlier release knows no field of later ones."""
        unsaid = [
            each.name
            for each in dataclass_fields(self)
            if each.name in _LATER_FIELDS and getattr(self, each.name) == each.default
        ]
        return {name: value for name, value in asdict(self).items() if name not in unsaid}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return the request that :meth:`to_json` described, without what a later release added."""
        known = {each.name for each in dataclass_fields(cls)}
        return read_fields(cls, {name: value for name, value in fields.items() if name in known})


@dataclass(frozen=True, slots=True)
class UpdateFault(FaultRecord):
    """Why an update was refused, failed, was rolled back, or was inconclusive."""

    logs: Annotated[
        Mapping[str, str],
        FieldSpec(description="The last lines of each release's log. The keys are `old` and `new`."),
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UpdateReplay:
    """The messages that a release may have staged wrongly before it was taken back, by publish time.

    The interval is [since, until). ``since`` None means that nobody knows how old the oldest of them was.
    """

    since: datetime | None
    until: datetime
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UpdateManifest:
    """The manifest that asked for an update: a rollout, at its ``version``, or a schedule, which has None here."""

    name: str
    digest: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class StreamUpdate:
    """One update of a stream: its job, as people see it.

    ``from_release`` and ``from_options`` are those that it goes back to. ``checked`` is the check in JSON, None
    before. ``instance_id`` is the process that takes the stream over, and ``outgoing_id`` the one that it takes it
    over from; ``attempts`` counts the standbys that were started for the present step. ``figures`` are those that
    the watch compares. ``changed_at`` is when the present state was entered. ``manifest`` asked for it, where it
    is a rollout; ``unwanted_by`` had it taken back, and ``reverses`` is the update that it goes back from.
    """

    id: str
    stream: str
    generation: int
    state: UpdateState
    request: UpdateRequest
    from_release: str | None
    from_options: Mapping[str, Any]
    created_by: str
    created_at: datetime
    changed_at: datetime
    checked: Mapping[str, Any] | None = None
    snapshot_id: str | None = None
    instance_id: str | None = None
    outgoing_id: str | None = None
    attempts: int = 0
    handed_over_at: datetime | None = None
    paused_seconds: float | None = None
    figures: Mapping[str, Any] | None = None
    replay: UpdateReplay | None = None
    error: UpdateFault | None = None
    finished_at: datetime | None = None
    manifest: UpdateManifest | None = None
    unwanted_by: str | None = None
    reverses: str | None = None

    @property
    def to_options(self) -> dict[str, Any]:
        """The options of the stream once it is updated."""
        merged = {**self.from_options, **self.request.options, **self._renamed}
        return {name: value for name, value in merged.items() if value is not None}

    @property
    def back_options(self) -> dict[str, Any]:
        """The options of the stream once it has gone back: the registry keeps the new names of sources."""
        return {**self.from_options, **self._renamed}

    @property
    def _renamed(self) -> dict[str, Any]:
        if not self.request.mapping:
            return {}
        return {"mapping": extend_mapping(self.from_options.get("mapping"), self.request.mapping)}

    def abandoned(self, wanted: Wanted) -> UpdateFault:
        """Return why the update ends when its stream is to end."""
        return UpdateFault(
            ABANDONED, f"Somebody requested {wanted} for {self.stream} while the update was {self.state}."
        )

    @property
    def has_way_back(self) -> bool | None:
        """Whether the old release can go on after the new one has written; None before the check.

        A restart always tries to, since nothing but a start shows whether it can.
        """
        if self.request.is_restart:
            return True
        return None if self.checked is None else bool(self.checked["has_way_back"])


def render_abandons(update: Mapping[str, Any]) -> str:
    """Return what becomes of a running update, as the API shows it, when somebody drains or cancels its stream."""
    return (
        f"The update {update['id']} is {update['state']}. It fails ({ABANDONED}) when the stream ends, and Refeed "
        "does not roll it back."
    )
