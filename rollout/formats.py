"""The formats of a release: of what a stream keeps, and its next start, another release or an agent reads."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final, Self

from model.format import Format
from pipeline.plan import PLAN_FORMAT
from pipeline.repository import REPOSITORY_FORMAT
from streams.control import CONTROL_FORMAT
from streams.journal import JOURNAL_FORMAT
from streams.lease import LEASE_FORMAT
from streams.positions import POSITIONS_FORMAT
from streams.snapshot import STATE_FORMAT
from streams.status import STATUS_FORMAT
from warehouse.open import warehouse_formats

# The number of each stands beside the code that writes it.
_STATE: Final[Mapping[str, Format]] = {
    "control": CONTROL_FORMAT,
    "journal": JOURNAL_FORMAT,
    "lease": LEASE_FORMAT,
    "plan": PLAN_FORMAT,
    "positions": POSITIONS_FORMAT,
    "schema_repository": REPOSITORY_FORMAT,
    "snapshot": Format(STATE_FORMAT, tuple(range(1, STATE_FORMAT + 1))),
    "status": STATUS_FORMAT,
}


@dataclass(frozen=True, slots=True)
class ReleaseFormats:
    """The formats of one release; ``warehouses`` are those of each kind of warehouse, by its name."""

    version: str
    state: Mapping[str, Format]
    warehouses: Mapping[str, Mapping[str, Format]]

    def to_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` takes."""
        return {
            "version": self.version,
            "state": _to_json(self.state),
            "warehouses": {name: _to_json(formats) for name, formats in self.warehouses.items()},
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return the formats that :meth:`to_json` described, of this release or another one."""
        warehouses = {name: _from_json(formats) for name, formats in fields["warehouses"].items()}
        return cls(str(fields["version"]), _from_json(fields["state"]), warehouses)


def own_formats() -> ReleaseFormats:
    """Return the formats of the release whose code runs here."""
    return ReleaseFormats(version("refeed"), _STATE, warehouse_formats())


def _to_json(formats: Mapping[str, Format]) -> dict[str, Any]:
    return {name: found.to_json() for name, found in formats.items()}


def _from_json(formats: Mapping[str, Any]) -> dict[str, Format]:
    return {name: Format.from_json(found) for name, found in formats.items()}
