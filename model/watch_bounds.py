"""The bounds of a watch: how much worse a new release may be than the old one."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from model.declaration import Declared, FieldSpec, declared_fields

_MOST: Final = 1e6


@dataclass(frozen=True, slots=True)
class WatchBounds(Declared):
    """By which factor, and by how much more than that, a figure of the new release may exceed the old one's."""

    dead_letter_factor: Annotated[
        float,
        FieldSpec(description="Times the old share of dead letters.", least=0, most=_MOST),
    ] = 2.0
    dead_letter_share: Annotated[
        float, FieldSpec(description="And this share of the messages more; 0.01 is a percent.", least=0, most=1)
    ] = 0.01
    # Some faults come with every start.
    fault_factor: Annotated[
        float, FieldSpec(description="Times the old faults a second.", least=0, most=_MOST)
    ] = 2.0
    faults_per_second: Annotated[
        float, FieldSpec(description="And this many faults a second more.", least=0, most=_MOST)
    ] = 0.5
    lag_factor: Annotated[
        float, FieldSpec(description="Times the old age of the oldest waiting message.", least=0, most=_MOST)
    ] = 2.0
    # A lag that has grown by a minute beyond twice the old one's will not go away by itself.
    lag_seconds: Annotated[float, FieldSpec(description="And this many seconds more.", least=0, most=_MOST)] = 60.0
    # The producers may just send less: a rate counts while the lag grows.
    rate_factor: Annotated[
        float,
        FieldSpec(
            description="The least share of the old messages a second, while the lag grows.", least=0, most=1
        ),
    ] = 0.5

    def faults(self) -> list[tuple[str, str]]:
        """Return the names of the fields that are out of their bounds, each with what it takes."""
        return [
            (each.name, f"takes a number from {each.spec.least:g} to {each.spec.most:g}")
            for each in declared_fields(type(self))
            if not each.spec.allows(getattr(self, each.name))
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the bounds by their names."""
        return asdict(self)


USUAL_BOUNDS: Final = WatchBounds()
