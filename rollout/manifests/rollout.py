"""``kind: Rollout``: a stream's way from one release and its options to another, and back."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from model.errors import ManifestInvalidError
from model.naming import did_you_mean
from model.rollout_record import ROLLOUT_KIND, RolloutSide
from model.stream_options import OPTIONS, StreamKind, overridable, parse_options, read_variables
from model.stream_update import MAX_VALIDATE_SECONDS, MIN_MESSAGES, VALIDATE_SECONDS
from model.watch_bounds import WatchBounds

KIND: Final = ROLLOUT_KIND
_SIDES: Final = ("from", "to")
_NAME: Final = r"^[a-z][a-z0-9\-]{0,62}$"
# A variable of the environment or a setting of Spark by its name, and why nobody may set it by a manifest.
_REFUSED: Final = (
    (r"PATH|.*_PATH", "decides which programs and libraries a process runs"),
    (r"_?PYTHON.*", "decides which code Python runs"),
    (r"_?JAVA.*|JDK_.*|CLASSPATH", "decides which Java and which code it runs"),
    (r"LD_.*|DYLD_.*", "decides which libraries every program loads"),
    (r"REFEED_SECRET", "is the deployment's secret, which marks every replay"),
    (r"REFEED_HOME", "is the folder of the streams' state, which the agent sets"),
    (r"REFEED_JOB_STORE", "is the store of all records, which the agent sets"),
    (r".*extraJavaOptions", "decides which code Spark's JVMs run"),
    (r".*(?:extraClassPath|class[_.\-]?path|extraLibraryPath)", "decides which code Spark's JVMs load"),
    (r"spark[._].*|REFEED_SPARK_.*", "configures Spark, which can load other code"),
)
_RULES: Final = tuple((re.compile(pattern, re.IGNORECASE), why) for pattern, why in _REFUSED)

Manifest = TypeVar("Manifest", bound=BaseModel)
# Where a fault is, and a sentence.
Found = tuple[tuple[str | int, ...], str]


class ManifestPart(BaseModel):
    """A part of a manifest: strictly typed, frozen, and without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


def _bounds(bounds: WatchBounds) -> WatchBounds:
    if faults := bounds.faults():
        raise ValueError("; ".join(f"{name} {takes}" for name, takes in faults))
    return bounds


class RolloutSideWanted(ManifestPart):
    """A release and all options of a stream. For a missing option, the stream uses the deployment's default."""

    release: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="The version of Refeed. Null means the installed version.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="The options of the stream, as in POST /streams.",
        examples=[{"slots": 4}],
    )
    environment: dict[str, str | int | float] = Field(
        default_factory=dict,
        description="The same options, but with the names of their settings, such as REFEED_BACKUP_SLOTS.",
        examples=[{"REFEED_BACKUP_BATCH_SECONDS": "2"}],
        json_schema_extra={"propertyNames": {"enum": [*sorted(overridable())]}},
    )

    def resolve(self, kind: StreamKind) -> RolloutSide:
        """Return the side of a stream of this kind, its variables as options.

        Raises:
            RequestInvalidError: an option or a variable is none of this kind, or has a wrong value.
        """
        texts = {name: str(value) for name, value in self.environment.items()}
        options = {**self.options, **read_variables(kind, texts)}
        return RolloutSide(self.release, parse_options(kind, options).to_json())


class Validation(ManifestPart):
    """The validation. Refeed compares the figures of the new release with the old release's last minute."""

    seconds: float = Field(
        default=VALIDATE_SECONDS,
        ge=0,
        le=MAX_VALIDATE_SECONDS,
        description="How long Refeed watches the new release, in seconds.",
    )
    min_messages: int = Field(
        default=MIN_MESSAGES,
        ge=0,
        description="If fewer than this number of messages arrive during the validation, the validation has no "
        "result (it is inconclusive).",
    )
    when_inconclusive: Literal["keep", "fail"] = Field(
        default="fail",
        description="What happens if too few messages arrive or a figure is unknown. `keep`: the new release "
        "stays. `fail`: the rollout fails, and `on_failure` applies.",
    )
    thresholds: Annotated[WatchBounds, AfterValidator(_bounds)] = Field(
        default_factory=WatchBounds, description="The limits for the new release's figures."
    )
    may_differ: list[str] = Field(
        default_factory=list,
        max_length=1000,
        description="Only with the strategy `rolling`: the columns whose values may differ between the two "
        "releases.",
    )


class RolloutWanted(ManifestPart):
    """The rollout of a stream that a schedule begins."""

    stream: str = Field(pattern=_NAME, description="The stream's name.")
    from_: RolloutSideWanted | None = Field(
        default=None,
        alias="from",
        description="The release and options with which the stream runs before the rollout. If the stream runs "
        "with another release or other options, the rollout is refused. With null, the stream may run with "
        "any release and any options.",
    )
    to: RolloutSideWanted = Field(
        description="The release and options with which the stream runs after the rollout."
    )
    strategy: Literal["restart", "update", "rolling"] = Field(
        default="update",
        description="`restart`: the stream is drained and started again. `update`: the new release takes over "
        "between two commits. `rolling`: first, Refeed compares the rows of the two releases (a shadow "
        "comparison). Then it does the same as `update`. Only a pipeline can use `rolling`.",
    )
    validate_: Validation = Field(default_factory=Validation, alias="validate")
    on_failure: Literal["rollback", "halt"] = Field(
        default="rollback",
        description="What happens if the new release fails. `rollback`: the old release runs again. `halt`: "
        "the new release stays until a person decides.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.from_ == self.to:
            raise ValueError("`from` and `to` are the same, so there is nothing to roll out")
        if self.validate_.may_differ and self.strategy != "rolling":
            raise ValueError("`may_differ` works only with the strategy `rolling`")
        return self


class RolloutManifest(RolloutWanted):
    """A rollout: a change of a stream to another release or to other options."""

    kind: Literal["Rollout"]
    name: str = Field(pattern=_NAME, description="The manifest's name, and its id in commands and calls.")
    description: str = Field(default="", max_length=2000)
    from_: RolloutSideWanted = Field(
        alias="from",
        description="The release and options with which the stream runs now. If the stream runs with another "
        "release or other options, the rollout is refused.",
    )


def read_document(kind: type[Manifest], document: Mapping[str, Any]) -> Manifest:
    """Return the manifest that the store has kept as ``document``.

    Raises:
        ManifestInvalidError: this release does not take it; a newer one did, or an older one that checked less.
    """
    try:
        return kind.model_validate_json(json.dumps(document))
    except ValidationError as exc:
        faults = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in exc.errors()[:3])
        raise ManifestInvalidError(
            f"The stored manifest {document.get('name')} is not valid in this release ({faults}). "
            "Apply it again, or delete it."
        ) from exc


def find_faults(value: Mapping[str, Any]) -> Iterator[Found]:
    """Yield every override that is refused, and what is set twice."""
    for side in _SIDES:
        given = value.get(side)
        if not isinstance(given, Mapping):
            continue
        options, environment = given.get("options"), given.get("environment")
        for name in options if isinstance(options, Mapping) else ():
            if (why := refuse_code(str(name))) is not None:
                yield (side, "options", str(name)), why
        for name in environment if isinstance(environment, Mapping) else ():
            if (why := refuse_variable(str(name))) is not None:
                yield (side, "environment", str(name)), why
            elif isinstance(options, Mapping) and (option := _option_of(str(name))) in options:
                yield (
                    (side, "environment", str(name)),
                    f"{name} sets the option {option}, but options also sets it. Leave out one of the two.",
                )


def refuse_code(name: str) -> str | None:
    """Return why no manifest may set ``name``, which could make other code run; None where it could not.

    Example:
        >>> refuse_code("LD_PRELOAD")
        "LD_PRELOAD decides which libraries every program loads, so a manifest can't set it."
        >>> refuse_code("batch_seconds")
    """
    shown = name[:80]
    return next(
        (f"{shown} {why}, so a manifest can't set it." for rule, why in _RULES if rule.fullmatch(name)), None
    )


def refuse_variable(name: str) -> str | None:
    """Return why a rollout may not set the variable ``name``; None where it may.

    Example:
        >>> refuse_variable("REFEED_BACKUP_SLOTS")
        >>> refuse_variable("EDITOR")
        'EDITOR is not a setting of a stream.'
    """
    allowed = overridable()
    if name in allowed:
        return None
    return refuse_code(name) or f"{name[:80]} is not a setting of a stream.{did_you_mean(name, allowed)}"


def _option_of(variable: str) -> str:
    return next(
        name for options in OPTIONS.values() for name, other in options.VARIABLES.items() if other == variable
    )
