"""Asks the gate about the query of a schedule's backfill, or of a rollout's validation, before it is applied."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import TypeAdapter

from backfill.plan.plan import text_warnings
from backfill.plan.request import BackfillRequest
from backfill.plan.validation import ValidRequest
from model.errors import RequestInvalidError
from model.plain_yaml import YamlDocument
from rollout.manifests.cron import parse_zone
from rollout.manifests.manifest import Manifest, read_document, refuse
from rollout.manifests.rollout import RolloutManifest
from rollout.manifests.schedule import BackfillJob, RolloutJob, ScheduleManifest
from rollout.manifests.slots import Slot, fill_request
from sql.validate import ValidatedQuery
from sql.violation import QueryRefusedError, Violation

_BACKFILL: Final = TypeAdapter(BackfillRequest)
_REQUEST: Final = ("job", "request")
_QUERY: Final = (*_REQUEST, "query")
_POINTER: Final = "/" + "/".join(_REQUEST)
_WATCH_QUERY: Final[tuple[str, ...]] = ("validate", "query")


@dataclass(frozen=True, slots=True)
class JobGate:
    """Refuses schedules whose backfills would be refused, and rollouts whose query would.

    ``validate`` raises what creating the backfill would; its query gets the times of the last slot before ``now``.
    ``check_select`` raises for a rollout's query, whose release began ``now``.
    """

    validate: Callable[[BackfillRequest], ValidRequest]
    now: Callable[[], datetime]
    check_select: Callable[[str, datetime], ValidatedQuery]

    def check(self, manifest: Manifest, content: bytes) -> list[dict[str, str]]:
        """Ask about the manifest's query, where it has one, and return what there is to warn of.

        ``content`` is what the manifest was read from.

        Raises:
            ManifestInvalidError: it is refused; the errors have the places in the manifest.
            WarehouseError: the warehouse, which knows the tables, does not answer.
        """
        spec = manifest.spec
        if (found := find_watch_query(spec)) is not None:
            path, query = found
            with _refusing(content, path):
                return text_warnings(self.check_select(query, self.now()))
        if not isinstance(spec, ScheduleManifest) or not isinstance(spec.job, BackfillJob):
            return []
        timing = spec.timing()
        end = timing.before(self.now())
        slot = Slot(timing.before(end), end, parse_zone(spec.time_zone))
        request = spec.job.model_dump(mode="json")["request"]
        filled = _BACKFILL.validate_python(fill_request("backfill", request, slot))
        with _refusing(content, _QUERY):
            return text_warnings(self.validate(filled).query)


@contextmanager
def _refusing(content: bytes, path: tuple[str, ...]) -> Iterator[None]:
    """Refuse the manifest for what the block raises about the query at ``path``, or about a job's request.

    Raises:
        ManifestInvalidError: it raised something.
    """
    try:
        yield
    except QueryRefusedError as exc:
        source = read_document(content)
        raise refuse([_fault(source, path, each) for each in exc.violations]) from exc
    except RequestInvalidError as exc:
        source = read_document(content)
        faults = []
        for each in exc.details.get("errors", ()):
            if "line" in each:
                faults.append(_fault(source, path, Violation(**each)))
                continue
            pointer = f"{_POINTER}{each.get('pointer', '')}"
            faults.append(_placed(each["code"], pointer, each["message"], source.place_of(pointer)))
        if not faults:
            raise
        raise refuse(faults) from exc


def find_watch_query(spec: ScheduleManifest | RolloutManifest) -> tuple[tuple[str, ...], str] | None:
    """Return where the query of a rollout's validation stands in its manifest, and the query; None without one."""
    if isinstance(spec, RolloutManifest):
        path, query = _WATCH_QUERY, spec.validate_.query
    elif isinstance(spec.job, RolloutJob):
        path, query = (*_REQUEST, *_WATCH_QUERY), spec.job.request.validate_.query
    else:
        return None
    return None if query is None else (path, query)


def _fault(source: YamlDocument, path: tuple[str, ...], violation: Violation) -> dict[str, Any]:
    pointer = "/" + "/".join(path)
    place = source.place_in_text(path, violation.line, violation.column)
    if place is not None:
        return _placed(violation.code, pointer, violation.message, place)
    within = f"In the query's line {violation.line}, column {violation.column}: {violation.message}"
    return _placed(violation.code, pointer, within, source.place(path))


def _placed(code: str, pointer: str, message: str, place: tuple[int, int]) -> dict[str, Any]:
    line, column = place
    return {"code": code, "pointer": pointer, "message": message, "line": line, "column": column}
