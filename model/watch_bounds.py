"""The bounds of a watch: how much worse a new release may be than the old one."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from model.declaration import Declared, FieldSpec, declared_fields

_MOST: Final = 1e6


@dataclass(frozen=True, slots=True)
class WatchBounds(Declared):
    """The limits for the new release. A limit is the old release's figure, times a factor, plus an addition."""

    dead_letter_factor: Annotated[
        float,
        FieldSpec(
            description="The factor for the share of messages that become dead letters.", least=0, most=_MOST
        ),
    ] = 2.0
    dead_letter_share: Annotated[
        float,
        FieldSpec(
            description="This number is added to the allowed share. 0.01 is one percent of the messages.",
            least=0,
            most=1,
        ),
    ] = 0.01
    # Some faults come with every start.
    fault_factor: Annotated[
        float,
        FieldSpec(
            description="The factor for faults per second: failed Pulls and acknowledgements.", least=0, most=_MOST
        ),
    ] = 2.0
    faults_per_second: Annotated[
        float, FieldSpec(description="This number is added to the allowed faults per second.", least=0, most=_MOST)
    ] = 0.5
    lag_factor: Annotated[
        float,
        FieldSpec(
            description="The factor for the lag. The lag is the age of the oldest pending message.",
            least=0,
            most=_MOST,
        ),
    ] = 2.0
    # A lag that has grown by a minute beyond twice the old one's will not go away by itself.
    lag_seconds: Annotated[
        float, FieldSpec(description="This number of seconds is added to the allowed lag.", least=0, most=_MOST)
    ] = 60.0
    # The producers may just send less: a rate counts while the lag grows.
    rate_factor: Annotated[
        float,
        FieldSpec(
            description="If the lag grows, the new release must process at least this share of the old release's "
            "messages per second.",
            least=0,
            most=1,
        ),
    ] = 0.5

    def faults(self) -> list[tuple[str, str]]:
        """Return the names of the fields that are out of their bounds, each with what it takes."""
        return [
            (each.name, f"must be a number from {each.spec.least:g} to {each.spec.most:g}")
            for each in declared_fields(type(self))
            if not each.spec.allows(getattr(self, each.name))
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the bounds by their names."""
        return asdict(self)


USUAL_BOUNDS: Final = WatchBounds()
