"""Checks the query of a schedule's backfill by the gate, before the manifest is applied."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import TypeAdapter

from backfill.plan.create import BackfillCreate
from backfill.plan.plan import text_warnings
from backfill.plan.validation import ValidRequest
from model.errors import RequestInvalidError, fault_at
from model.plain_yaml import YamlDocument
from rollout.manifests.cron import parse_zone
from rollout.manifests.manifest import Manifest, refuse
from rollout.manifests.schedule import BackfillJob, ScheduleManifest
from rollout.manifests.slots import Slot, fill_request
from sql.violation import QueryRefusedError, Violation

_BACKFILL: Final = TypeAdapter(BackfillCreate)
_REQUEST: Final = ("job", "request")
_QUERY: Final = (*_REQUEST, "query")
_POINTER: Final = "/" + "/".join(_REQUEST)


@dataclass(frozen=True, slots=True)
class JobGate:
    """Refuses schedules whose backfills would be refused.

    ``validate`` raises the errors of a create of the backfill, for the last slot before ``now``.
    """

    validate: Callable[[BackfillCreate], ValidRequest]
    now: Callable[[], datetime]

    def check(self, manifest: Manifest) -> list[dict[str, str]]:
        """Check the query of a schedule's backfill, and return warnings.

        Raises:
            ManifestInvalidError: the query is refused; the errors have their places in the manifest.
            WarehouseError: the warehouse, which has the tables' schemas, does not answer.
        """
        spec = manifest.spec
        if not isinstance(spec, ScheduleManifest) or not isinstance(spec.job, BackfillJob):
            return []
        timing = spec.timing()
        end = timing.before(self.now())
        slot = Slot(timing.before(end), end, parse_zone(spec.time_zone))
        request = spec.job.model_dump(mode="json", by_alias=True)["request"]
        filled = _BACKFILL.validate_python(fill_request("backfill", request, slot))
        assert manifest.source is not None, "only the settings' own schedule has no text, and it is no backfill"
        with _refusing(manifest.source):
            return text_warnings(self.validate(filled).query)


@contextmanager
def _refusing(source: YamlDocument) -> Iterator[None]:
    """Turn the block's errors about the job's request or query into faults of the manifest.

    Raises:
        ManifestInvalidError: the block raised such an error.
    """
    try:
        yield
    except QueryRefusedError as exc:
        raise refuse([_fault(source, each) for each in exc.violations]) from exc
    except RequestInvalidError as exc:
        faults = []
        for each in exc.details.get("errors", ()):
            if "line" in each:
                faults.append(_fault(source, Violation(**each)))
                continue
            pointer = f"{_POINTER}{each.get('pointer', '')}"
            faults.append(_placed(each["code"], pointer, each["message"], source.place_of(pointer)))
        if not faults:
            raise
        raise refuse(faults) from exc


def _fault(source: YamlDocument, violation: Violation) -> dict[str, Any]:
    pointer = "/" + "/".join(_QUERY)
    place = source.place_in_text(_QUERY, violation.line, violation.column)
    if place is not None:
        return _placed(violation.code, pointer, violation.message, place)
    within = f"In the query's line {violation.line}, column {violation.column}: {violation.message}"
    return _placed(violation.code, pointer, within, source.place(_QUERY))


def _placed(code: str, pointer: str, message: str, place: tuple[int, int]) -> dict[str, Any]:
    line, column = place
    return fault_at(pointer, code, message, line=line, column=column)
