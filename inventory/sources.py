"""Sources: what the pipeline makes of each topic's messages, how much of it, and how its tables have grown."""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import structlog

from jobs.inbox_items import FAILURE_DAYS, InboxItem
from jobs.store import RESTORE, JobFilter, JobStore, restore_of
from jobs.store.events import SOURCE
from model.errors import RefeedError, RequestInvalidError, SourceNotFoundError
from model.event import HistoryEvent, HistoryEventType
from model.moment import render_moment, render_time
from model.naming import did_you_mean
from model.principal import READ, Principal
from model.schema_diff import FieldChange, compare_schemas
from model.stream_snapshot import RestoreRecord
from model.window import Window
from pipeline.inferred import is_table_of
from pipeline.registry import Registry, RegistrySnapshot, Source, read_snapshot
from pipeline.repository import TypeVersion, read_versions, repository_table
from warehouse.counts import Counts, floor
from warehouse.rows import RowTables

_LOG: Final = structlog.get_logger(__name__)
# Of each kind of finding in the list of all sources, the largest; one source has all that its stream counts.
MAX_LISTED: Final = 10
# Merges that ended longer ago mean little for a source that is merged every night.
_MERGED_WITHIN: Final = timedelta(days=14)
# On BigQuery the schemas are read by a query, billed as the 10 MB that a query is billed at least.
REMEMBERED_SECONDS: Final = 60.0
# A weekend is shorter.
_CHANGED_WITHIN: Final = timedelta(days=FAILURE_DAYS)
_MOST_EVENTS: Final = 1000
_MOST_RESTORES: Final = 100
_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
_KINDS: Final = {"unknown_fields": "unknown", "missing_fields": "missing", "refused": "refused"}


@dataclass(frozen=True, slots=True)
class SourceFigures:
    """Where the figures of sources come from; each is read as it is asked for, and none of it by a scan.

    ``statuses`` are those of every stream, ``merged`` what merges that ended since a time have made of sources,
    the newest first.
    """

    counts: Counts
    statuses: Callable[[], Iterable[Mapping[str, Any]]]
    merged: Callable[[datetime], Sequence[Mapping[str, Any]]]


class SourceCatalog:
    """Describes the registry's sources; safe to use from many threads.

    ``open_tables`` opens the tables of rows, to read the schemas that were inferred beside ``dead_letters``.
    ``store`` has the histories of sources.

    Raises:
        ForbiddenError: any call whose ``principal`` lacks the scope READ.
        RegistryError: any call, while the registry or its ``sources.yaml`` can't be read.
        WarehouseError: any call, while the archive or the schemas can't be read.
        StoreUnavailableError: the job store, which has the merges, does not answer.
    """

    def __init__(
        self,
        registry: str,
        figures: SourceFigures,
        open_tables: Callable[[], RowTables],
        dead_letters: str,
        store: JobStore,
    ) -> None:
        self._store = store
        self._url = registry
        self._figures = figures
        self._open_tables = open_tables
        self._repository = repository_table(dead_letters)
        self._lock = threading.Lock()
        self._known: tuple[str, RegistrySnapshot] | None = None
        self._versions: tuple[float, dict[str, list[TypeVersion]]] | None = None

    def list_sources(self, *, principal: Principal) -> list[dict[str, Any]]:
        """Return every source by name, those that have a fault too; of findings the largest."""
        principal.require(READ)
        return self._describe(self._read(), MAX_LISTED)

    def show_source(self, name: str, *, principal: Principal) -> dict[str, Any]:
        """Return one source with everything that its stream has counted.

        Raises:
            SourceNotFoundError: the registry has no such source.
        """
        principal.require(READ)
        snapshot = self._read()
        for found in self._describe(snapshot, None, name):
            return found
        raise _not_found(name, snapshot)

    def list_versions(
        self,
        name: str,
        *,
        principal: Principal,
        event_type: str | None = None,
        before: int | None = None,
        after: int | None = None,
    ) -> dict[str, Any]:
        """Return the versions of a source's inferred tables, and what the newest two, or those given, differ in.

        There is no difference to show while no version is given and several types have some, or one has one alone.

        Raises:
            SourceNotFoundError: the registry has no source of this name that has no fault.
            RequestInvalidError: there is no such type, or no such version of it.
        """
        principal.require(READ)
        snapshot = self._read()
        source = next((each for each in snapshot.sources if each.name == name), None)
        if source is None:
            raise _not_found(name, snapshot)
        every = self._versions_of(source)
        versions = [each for each in every if event_type in {None, each.event_type}]
        if event_type is not None and not versions:
            raise RequestInvalidError.of(
                "type_unknown", f"{name} has no event type {event_type[:80]!r}.", "query:event_type"
            )
        return {
            "source": name,
            "versions": [_render_version(each) for each in versions],
            "diff": _diff(versions, before, after),
        }

    def check_source(self, name: str) -> None:
        """Raise unless the registry has the source, with a fault or without one.

        Raises:
            SourceNotFoundError: it does not.
        """
        snapshot = self._read()
        if name not in {each.name for each in snapshot.sources} | {each.name for each in snapshot.broken}:
            raise _not_found(name, snapshot)

    def note_type_changes(self) -> None:
        """Add each type change of the last seven days to the history of its source, once."""
        try:
            self._note_type_changes(datetime.now(UTC) - _CHANGED_WITHIN)
        except RefeedError as exc:
            _LOG.warning("type_changes_unknown", code=exc.code, error=exc.message)

    def _note_type_changes(self, since: datetime) -> None:
        for source in self._read().sources:
            for new, changed in _type_changes(self._versions_of(source)):
                if new.noted_at >= since:
                    what = f"types of columns of {new.table} changed, version {new.number}"
                    kind, at = HistoryEventType.CHANGED, new.noted_at
                    fields = {"table": new.table, "changes": [_render_change(each) for each in changed]}
                    self._store.note_event(SOURCE, source.name, what, actor="pipeline", kind=kind, at=at, **fields)

    def list_inbox(self, *, principal: Principal) -> list[InboxItem]:
        """Return an item for each of :func:`list_type_changes`."""
        principal.require(READ)
        return [_change_item(each) for each in list_type_changes(self._store)]

    def _describe(
        self, snapshot: RegistrySnapshot, most: int | None, name: str | None = None
    ) -> list[dict[str, Any]]:
        faulty = {broken.name: broken for broken in snapshot.broken if name in {None, broken.name}}
        sources = {source.name: source for source in snapshot.sources if name in {None, source.name}}
        if not faulty and not sources:
            return []
        now = datetime.now(UTC)
        window = Window(floor(now - _DAY, "hour"), floor(now, "hour") + _HOUR)
        hours = self._figures.counts.hours(window)
        statuses = _newest_by_source(self._figures.statuses(), sources.values())
        restores = self._list_discards(statuses.values())
        merged: dict[str, Mapping[str, Any]] = {}
        for line in self._figures.merged(now - _MERGED_WITHIN):
            merged.setdefault(line["source"], line)
        described = []
        for each in sorted({*faulty, *sources}):
            found = {**_NOTHING, "name": each, "staged": _render_staged(statuses.get(each), each, most)}
            if each in merged:
                found["merged"] = _render_merged(merged[each])
            if each in faulty:
                error = faulty[each].error
                found |= {"group": faulty[each].group, "fault": {"code": error.code, "message": error.message}}
            else:
                source = sources[each]
                came = [
                    topics[source.topic].messages for topics in hours.by_hour.values() if source.topic in topics
                ]
                archived = {
                    "from": render_time(window.start),
                    "to": render_time(window.end),
                    "messages": None if hours.unknown else sum(came),
                }
                found |= {**_render_source(source), "tables": self._tables(source), "archived": archived}
                found["last_type_change"] = _last_type_change(self._versions_of(source))
                if found["staged"] is not None:
                    discarded = _count_discarded(restores, statuses[each], found["tables"])
                    found["staged"]["rows"] = max(0, found["staged"]["rows"] - discarded)
            described.append(found)
        return described

    def _list_discards(self, statuses: Iterable[Mapping[str, Any]]) -> list[RestoreRecord]:
        """Return the restores that discarded rows after any of the counting processes began."""
        began = [_number(status.get("started_at")) for status in statuses]
        if not began:
            return []
        since = datetime.fromtimestamp(min(began), UTC)
        jobs = self._store.list_jobs(JobFilter(kinds=(RESTORE,), created_since=since), limit=_MOST_RESTORES)
        return [restore for restore in map(restore_of, jobs) if restore.discarded_rows]

    def _tables(self, source: Source) -> list[str]:
        if not source.is_inferred:
            return [source.staging]
        return sorted({version.table for version in self._versions_of(source)})

    def _versions_of(self, source: Source) -> list[TypeVersion]:
        if not source.is_inferred:
            return []
        with self._lock:
            known = self._versions
            if known is None or time.monotonic() - known[0] >= REMEMBERED_SECONDS:
                # Nothing is written: there is no stream and no lease.
                with closing(self._open_tables()) as tables:
                    known = (time.monotonic(), read_versions(tables.open(self._repository)))
                self._versions = known
        # Its name may have been another source's.
        return [each for each in known[1].get(source.name, ()) if is_table_of(source.staging, each.table)]

    def _read(self) -> RegistrySnapshot:
        registry = Registry(self._url)
        with self._lock:
            fingerprint = registry.fingerprint()
            if self._known is None or self._known[0] != fingerprint:
                files = registry.read_files()
                # One that nobody has filled is no fault.
                found = read_snapshot(files, registry.url, is_partial=True) if files else RegistrySnapshot("", ())
                self._known = (fingerprint, found)
            return self._known[1]


def list_type_changes(store: JobStore) -> list[HistoryEvent]:
    """Return type changes of the last seven days, the newest of each source that nobody has published since."""
    newest: dict[str, HistoryEvent] = {}
    since = datetime.now(UTC) - _CHANGED_WITHIN
    for event in store.list_last_events(since, limit=_MOST_EVENTS, of=(SOURCE, None)):
        newest.setdefault(event.id, event)
    return [each for each in newest.values() if each.type is HistoryEventType.CHANGED]


_NOTHING: Final[Mapping[str, Any]] = dict.fromkeys(
    (
        *("group", "topic", "subscription", "publish", "message", "schema_version", "is_inferred", "key"),
        *("event_time", "tables", "reporting", "archived", "staged", "merged", "fault"),
        "last_type_change",
    )
)


def _render_source(source: Source) -> dict[str, Any]:
    return {
        "group": source.group,
        "topic": source.topic,
        "subscription": source.subscription,
        "publish": source.publish or None,
        "message": source.message or None,
        "schema_version": source.version or None,
        "is_inferred": source.is_inferred,
        "key": list(source.key),
        "event_time": source.event_time,
        "reporting": source.reporting,
    }


def _newest_by_source(
    statuses: Iterable[Mapping[str, Any]], sources: Collection[Source]
) -> dict[str, Mapping[str, Any]]:
    """Return by source the newest status of a process that reads or has counted it.

    A source may have moved to another stream, and a process that has just begun has counted nothing.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for status in sorted(statuses, key=lambda status: _number(status.get("at"))):
        read = status.get("subscriptions") or ()
        counted = status.get("sources") or {}
        found |= dict.fromkeys([*counted, *(each.name for each in sources if each.subscription in read)], status)
    return found


def _render_staged(status: Mapping[str, Any] | None, name: str, most: int | None) -> dict[str, Any] | None:
    """Return what a stream has counted of a source since the process began; None where no stream reports it."""
    if status is None:
        return None
    counts = (status.get("sources") or {}).get(name, {})
    return {
        "since": _moment(status.get("started_at")),
        "at": _moment(status.get("at")),
        "rows": counts.get("rows", {}).get("staged", 0),
        **{shown: _render_findings(counts.get(kind, {}), most) for shown, kind in _KINDS.items()},
    }


def _count_discarded(restores: Iterable[RestoreRecord], status: Mapping[str, Any], tables: Collection[str]) -> int:
    """Return how many rows of the tables were discarded after the process of ``status`` began.

    It may be more than the process has staged: a snapshot may be older than the process.
    """
    began = _number(status.get("started_at"))
    later = [restore.discarded_rows for restore in restores if restore.created_at.timestamp() > began]
    return sum(rows.get(table, 0) for rows in later for table in tables)


def _render_findings(counts: Mapping[str, int], most: int | None) -> dict[str, Any]:
    largest = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    shown = [{"what": what, "count": count} for what, count in largest[:most]]
    return {"total": sum(counts.values()), "largest": shown}


def _render_merged(line: Mapping[str, Any]) -> dict[str, Any]:
    counts = ("changed", "newer", "without_key", "rows_before", "rows_after")
    names = ("merge_id", "state", "until", *counts, "error")
    finished_at = line["finished_at"]
    return {"finished_at": render_moment(finished_at), **{name: line[name] for name in names}}


def _render_version(version: TypeVersion) -> dict[str, Any]:
    return {
        "event_type": version.event_type,
        "number": version.number,
        "table": version.table,
        "noted_at": render_time(version.noted_at.astimezone(UTC)),
        "columns": len(version.schema.fields),
    }


def _type_changes(versions: Sequence[TypeVersion]) -> Iterator[tuple[TypeVersion, list[FieldChange]]]:
    """Yield each version that gave columns of its table other types; others only added columns."""
    for old, new in pairwise(versions):
        if old.table == new.table and (changed := compare_schemas(old.schema, new.schema).changed):
            yield new, changed


def _last_type_change(versions: Sequence[TypeVersion]) -> dict[str, Any] | None:
    found = max(_type_changes(versions), key=lambda each: each[0].noted_at, default=None)
    if found is None:
        return None
    return {**_render_version(found[0]), "changed": [asdict(each) for each in found[1]]}


def _render_change(change: FieldChange) -> dict[str, str]:
    """Return a change of a column's type as histories have changes of values."""
    pointer = f"/{change.path.replace('.', '/')}"
    return {"pointer": pointer, "before": change.before, "after": change.after}


def _change_item(event: HistoryEvent) -> InboxItem:
    changed = ", ".join(
        f"{each['pointer'][1:].replace('/', '.')} was {each['before']} and is {each['after']}"
        for each in event.fields["changes"]
    )
    message = f"Columns of {event.fields['table']} have another type: {changed}."
    return InboxItem("type_change", SOURCE, event.id, None, None, None, event.at, message)


def _diff(versions: Sequence[TypeVersion], before: int | None, after: int | None) -> dict[str, Any] | None:
    types = {each.event_type for each in versions}
    if len(types) > 1 and (before is not None or after is not None):
        raise RequestInvalidError.of(
            "type_missing", "The source has several event types. Choose one.", "query:event_type"
        )
    by_number = {each.number: each for each in versions}
    if len(types) != 1:
        wanted: tuple[int | None, int | None] = (before, after)
    else:
        last = max(by_number) if after is None else after
        earlier = max((number for number in by_number if number < last), default=None)
        wanted = (earlier if before is None else before, last)
    for number, pointer in zip((before, after), ("from", "to"), strict=True):
        if number is not None and number not in by_number:
            raise RequestInvalidError.of("version_unknown", f"There is no version {number}.", f"query:{pointer}")
    if wanted[0] is None or wanted[1] is None:
        return None
    old, new = by_number[wanted[0]], by_number[wanted[1]]
    found = compare_schemas(old.schema, new.schema).to_json()
    return {"event_type": new.event_type, "from": old.number, "to": new.number, **found}


def _not_found(name: str, snapshot: RegistrySnapshot) -> SourceNotFoundError:
    known = [each.name for each in snapshot.sources] + [each.name for each in snapshot.broken]
    return SourceNotFoundError(
        f"The registry has no source {name[:80]}.{did_you_mean(name, known)}", name=name[:80]
    )


def _moment(seconds: Any) -> str | None:
    return render_time(datetime.fromtimestamp(seconds, UTC)) if isinstance(seconds, int | float) else None


def _number(found: Any) -> float:
    return float(found) if isinstance(found, int | float) else 0.0
