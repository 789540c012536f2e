"""Manifests that were applied, and the runs of schedules: each slot once, however many replicas there are."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from jobs.store.database import Database
from jobs.store.events import MANIFEST, append_event
from jobs.store.job_rows import JOB_RECORDS
from jobs.store.records import Idempotency
from jobs.store.rows import read_row
from jobs.store.step_jobs import UPDATE, find_active_jobs
from jobs.store.stream_updates import MANIFEST_LABEL, begin, in_progress, update_of
from jobs.store.tables import EVENTS, JOBS, MANIFESTS, SCHEDULE_RUNS
from jobs.store.uploads import check_holder, forget_file, is_left
from model.errors import ManifestChangedError, ManifestNotFoundError, ManifestOwnedError
from model.event import HistoryEvent, HistoryEventType, render_changes
from model.manifest_record import LIVING_RUNS, ManifestRecord, RunState, ScheduleRun, Settlement
from model.principal import Principal
from model.rollout_record import ROLLOUT_KIND, NewRollout
from model.stream_update import UpdateManifest

_REMOVED: Final = "The schedule was removed."
# A clock that is set back by less is waited for: slots do not go back for it.
AHEAD: Final = timedelta(hours=1)
# A schedule of every minute has 130,000 runs in that time.
KEEP_RUNS: Final = timedelta(days=90)
_TRIMMED_AT_ONCE: Final = 1000
# So many of a schedule's newest runs are searched for the last one that was tried.
_LOOKED_AT: Final = 20
_TRIED: Final = (RunState.RUNNING, RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED)

# Decides about a schedule's slots: by its record, the store's time and its living runs, oldest first.
Choose = Callable[[ManifestRecord, datetime, Sequence[ScheduleRun]], Settlement | None]


class Manifests:
    """Keeps one record a name; a name belongs to the source that applied it until it is removed.

    A removed record stays, with its runs, and may be applied again by any source.
    """

    _database: Database

    def put_manifest(
        self,
        name: str,
        kind: str,
        document: Mapping[str, Any],
        digest: str,
        *,
        source: str,
        principal: Principal,
        keeps_slots: Callable[[ManifestRecord], bool] = lambda _: False,
        expected_version: int | None = None,
        holder: str | None = None,
        rollout: NewRollout | None = None,
    ) -> ManifestRecord:
        """Keep a manifest; one of the same content is left alone.

        With a ``rollout`` that begins too, or nothing is kept; the content that was tried last under the name does
        not begin again, also where the manifest was removed meanwhile. ``keeps_slots`` returns
        whether slots of the record before go on from where they are; else none before now is due.
        ``expected_version`` 0 is a name that is free. ``holder`` is the replica that
        watches the source, where it is one of uploads.

        Raises:
            ManifestOwnedError: the name belongs to another source.
            ManifestChangedError: it is at another version.
            LeaseLostError: ``holder`` does not watch the source any more.
            UpdateInProgressError: a rollout of it has not ended.
            RefeedError: as :meth:`StreamUpdates.create_update`.
        """
        with self._database.write("manifests") as connection:
            if holder is not None:
                check_holder(connection, source, holder)
            now = self._database.now(connection)
            row = _find(connection, name, for_update=True)
            before = None if row is None or row.removed_at is not None else read_row(ManifestRecord, row)
            if before is not None and before.source != source:
                raise _owned(before)
            _check_version(name, before, expected_version)
            if before is not None and (before.kind, before.digest) == (kind, digest):
                return before
            if ROLLOUT_KIND in {kind, None if before is None else before.kind}:
                _check_free(connection, name)
            is_kept = before is not None and keeps_slots(before)
            values: dict[str, Any] = {
                "kind": kind,
                "document": document,
                "digest": digest,
                "source": source,
                "applied_by": principal.name,
                "scopes": sorted(principal.scopes),
                "topics": principal.topics,
                "changed_at": now,
                "removed_at": None,
                "paused": before.paused if before is not None else None,
            }
            if before is not None and not is_kept:
                values["settled_until"] = now
            if before is not None and before.kind != kind:
                _skip_waiting(connection, name, now)
            if row is None:
                first = {"name": name, "version": 1, "created_at": now, "settled_until": now}
                connection.execute(MANIFESTS.insert().values(**first, **values))
            else:
                if before is None:
                    values |= {"created_at": now, "settled_until": max(now, row.settled_until)}
                _update(connection, name, version=row.version + 1, **values)
            made = read_row(ManifestRecord, _get(connection, name))
            what = f"{'applied' if before is None else 'changed'}, version {made.version}"
            applied, who = HistoryEventType.APPLIED, principal.name
            old = made.document if before is None else before.document
            changes = render_changes(old, made.document, tells_null=True)
            fields: dict[str, Any] = {"version": made.version, "changes": changes}
            append_event(connection, MANIFEST, name, applied, now, actor=who, what=what, **fields)
            if rollout is not None and not _is_tried(connection, name, digest):
                # No caller can send such a key: it would have a line break.
                once = Idempotency(f"{name}\n{made.version}", digest)
                begin(
                    connection,
                    now,
                    rollout.stream,
                    rollout.update,
                    actor=principal.name,
                    why=f"the rollout {name}",
                    idempotency=once,
                    manifest=UpdateManifest(name, digest, made.version),
                    from_side=rollout.from_side,
                )
            return made

    def get_manifest(self, name: str) -> ManifestRecord:
        """Return the manifest.

        Raises:
            ManifestNotFoundError: there is none, or it was removed.
        """
        with self._database.read() as connection:
            return read_row(ManifestRecord, _get_living(connection, name))

    def find_manifest_changes(self, name: str) -> tuple[HistoryEvent | None, HistoryEvent | None]:
        """Return the lines of its last application, and of its last change: that, a pause or a resume.

        None where the history does not have it any more.
        """
        columns, applied = EVENTS.c, HistoryEventType.APPLIED
        found = []
        with self._database.read() as connection:
            for types in ([applied], [applied, HistoryEventType.PAUSED, HistoryEventType.RESUMED]):
                is_it = (columns.resource == MANIFEST, columns.id == name, columns.type.in_(types))
                query = sa.select(EVENTS).where(*is_it).order_by(columns.number.desc()).limit(1)
                row = connection.execute(query).first()
                found.append(None if row is None else read_row(HistoryEvent, row))
        return found[0], found[1]

    def list_manifests(self, *, kind: str | None = None) -> list[ManifestRecord]:
        """Return every manifest that was not removed, by name."""
        query = sa.select(MANIFESTS).where(MANIFESTS.c.removed_at.is_(None)).order_by(MANIFESTS.c.name)
        if kind is not None:
            query = query.where(MANIFESTS.c.kind == kind)
        with self._database.read() as connection:
            return [read_row(ManifestRecord, row) for row in connection.execute(query)]

    def remove_manifest(
        self, name: str, *, source: str, actor: str | None = None, expected_version: int | None = None
    ) -> ManifestRecord:
        """Remove a manifest: what runs ends by itself, and what has not begun never does.

        What an upload left behind, its file or its whole source having gone, any source may remove. ``actor`` is
        who wanted that, without one the source.

        Raises:
            ManifestNotFoundError: there is none.
            ManifestOwnedError: the name belongs to another source.
            ManifestChangedError: it is at another version.
            UpdateInProgressError: a rollout of it has not ended.
        """
        with self._database.write_now("manifests") as (connection, now):
            record = read_row(ManifestRecord, _get_living(connection, name, for_update=True))
            if record.source != source and not is_left(connection, record.source, name, now):
                raise _owned(record)
            _check_version(name, record, expected_version)
            if record.kind == ROLLOUT_KIND:
                _check_free(connection, name)
            _skip_waiting(connection, name, now)
            _update(connection, name, removed_at=now, changed_at=now, version=record.version + 1)
            forget_file(connection, record.source, name)
            removed = HistoryEventType.REMOVED
            append_event(connection, MANIFEST, name, removed, now, actor=actor or source, what="removed")
            return record

    def pause_schedule(
        self,
        name: str,
        why: str | None,
        *,
        actor: str | None = None,
        note: str = "",
        expected_version: int | None = None,
    ) -> ManifestRecord:
        """Pause a schedule for a reason, or resume it with None; resuming makes no slot due that is past.

        ``actor`` is who wanted that, without one the schedule itself. The history has the reason, or a ``note``.

        Raises:
            ManifestNotFoundError: there is none.
            ManifestChangedError: it is at another version.
        """
        with self._database.write_now("manifests") as (connection, now):
            record = read_row(ManifestRecord, _get_living(connection, name, for_update=True))
            _check_version(name, record, expected_version)
            if (record.paused is None) == (why is None):
                return record
            # A clock that was set back must not bring slots again.
            since = {"settled_until": max(now, record.settled_until)} if why is None else {}
            _update(connection, name, paused=why, changed_at=now, version=record.version + 1, **since)
            kind = HistoryEventType.RESUMED if why is None else HistoryEventType.PAUSED
            who = actor or f"schedule:{name}"
            append_event(
                connection, MANIFEST, name, kind, now, actor=who, what=kind.value, why=why or note or None
            )
            return read_row(ManifestRecord, _get(connection, name))

    def now(self) -> datetime:
        """Return the time of the clock that slots go by."""
        with self._database.read() as connection:
            return self._database.now(connection)

    def settle_slots(self, name: str, choose: Choose) -> list[ScheduleRun]:
        """Keep the runs that ``choose`` makes of slots that are due, together with how far slots are decided.

        Of several replicas that call at once each one sees what the other has decided, so a slot has one run.
        """
        with self._database.write_now("manifests") as (connection, now):
            row = _find(connection, name, for_update=True)
            if row is None or row.removed_at is not None or row.paused is not None:
                return []
            settled = choose(read_row(ManifestRecord, row), now, _runs(connection, name, living=True))
            if settled is None:
                return []
            # After a manifest came back under its name, or a clock was set back, a slot may have had its run.
            known = {run.slot for run in _runs(connection, name, slots=[each.slot for each in settled.runs])}
            due = [each for each in settled.runs if each.slot not in known]
            _add_runs(connection, name, now, replace(settled, runs=tuple(due)))
            _trim_runs(connection, name, now)
            _update(connection, name, settled_until=settled.until)
            if settled.missed is not None:
                kind, what = HistoryEventType.NOTED, f"missed {settled.missed}"
                append_event(connection, MANIFEST, name, kind, now, actor=f"schedule:{name}", what=what)
            return _runs(connection, name, slots=[each.slot for each in due])

    def add_run(self, name: str, choose: Choose, *, actor: str, idempotency_key: str | None) -> ScheduleRun:
        """Keep the one run that ``choose`` makes beside the slots; the same key of the actor gives back the first.

        Raises:
            ManifestNotFoundError: there is no such schedule.
            RefeedError: as ``choose``; nothing is kept.
        """
        with self._database.write("manifests") as connection:
            record = read_row(ManifestRecord, _get_living(connection, name, for_update=True))
            key = None if idempotency_key is None else f"{actor}\n{idempotency_key}"
            columns = SCHEDULE_RUNS.c
            made = sa.select(SCHEDULE_RUNS).where(columns.schedule == name, columns.idempotency_key == key)
            row = None if key is None else connection.execute(made).first()
            if row is not None:
                return read_row(ScheduleRun, row)
            now = self._database.now(connection)
            # Slots are whole minutes: a run beside them never takes the place of one.
            now = now.replace(microsecond=now.microsecond or 1)
            while _runs(connection, name, slots=[now]):
                now += timedelta(microseconds=1)
            chosen = choose(record, now, _runs(connection, name, living=True))
            assert chosen is not None, "somebody asked for it"
            _add_runs(connection, name, now, chosen, idempotency_key=key)
            noted = HistoryEventType.NOTED
            append_event(connection, MANIFEST, name, noted, now, actor=actor, what="requested a run")
            return _runs(connection, name, slots=[each.slot for each in chosen.runs])[0]

    def set_back(self, name: str) -> ManifestRecord:
        """Undo what a clock that was ahead has decided about slots of its future; return the record.

        Where slots are decided for more than an hour ahead they go on from the newest slot until now that ran, or
        from the last change where that was later. A slot of the future that ran does not run again. Where the
        clock was set back beyond all runs that are kept, none is due until it has caught up.

        Raises:
            ManifestNotFoundError: there is none.
        """
        with self._database.write_now("manifests") as (connection, now):
            row = _get_living(connection, name, for_update=True)
            if row.settled_until > now + AHEAD:
                since = min(row.changed_at, now)
                _update(connection, name, settled_until=max(since, _newest_slot(connection, name, now) or since))
            return read_row(ManifestRecord, _get(connection, name))

    def list_living_runs(self) -> list[ScheduleRun]:
        """Return every run that has not ended, of removed schedules too, by schedule and oldest first."""
        with self._database.read() as connection:
            return _runs(connection, living=True)

    def list_runs(self, schedule: str, *, limit: int) -> list[ScheduleRun]:
        """Return the last runs of a schedule, newest first."""
        with self._database.read() as connection:
            return _runs(connection, schedule, newest=limit)

    def list_unstarted(self, since: datetime) -> list[ScheduleRun]:
        """Return the last run of each schedule that has FAILED since then because it could not start its job."""
        columns = SCHEDULE_RUNS.c
        failed = sa.and_(columns.state == RunState.FAILED, columns.job_id.is_(None), columns.finished_at >= since)
        with self._database.read() as connection:
            found = []
            for schedule in connection.scalars(sa.select(columns.schedule).where(failed).distinct()).all():
                ended = [each for each in _runs(connection, schedule, newest=_LOOKED_AT) if each.state in _TRIED]
                if ended and (ended[0].state, ended[0].job_id) == (RunState.FAILED, None):
                    found.append(ended[0])
            return found

    def change_run(
        self,
        run: ScheduleRun,
        state: RunState,
        *,
        job_kind: str | None = None,
        job_id: str | None = None,
        why: str | None = None,
        pauses: str | None = None,
    ) -> bool:
        """Bring a run to another state, unless another replica has changed it since; return whether it did.

        With ``pauses``, a reason, its schedule is paused by the same change, unless it was removed.
        A run that has just got its job is RUNNING whatever became of it meanwhile: the job is there.
        """
        columns = SCHEDULE_RUNS.c
        with self._database.write(None if pauses is None else "manifests") as connection:
            where = [columns.schedule == run.schedule, columns.slot == run.slot]
            if job_id is None:
                where.append(columns.state == run.state)
            else:
                where.append(columns.job_id.is_(None))
            values: dict[str, Any] = {"state": state, "why": why, "finished_at": None}
            if state.is_final:
                values["finished_at"] = self._database.now(connection)
            if job_id is not None:
                values |= {"job_kind": job_kind, "job_id": job_id}
            is_changed = bool(connection.execute(SCHEDULE_RUNS.update().where(*where).values(**values)).rowcount)
            if is_changed and pauses is not None:
                with suppress(ManifestNotFoundError):
                    self.pause_schedule(run.schedule, pauses)
            return is_changed


def _is_tried(connection: Connection, manifest: str, digest: str) -> bool:
    """Whether the last update that the manifest began, reversals aside, was of this content."""
    is_reversal = JOBS.c.labels["reverses"].as_string().is_not(None)
    query = sa.select(JOBS).where(JOBS.c.kind == UPDATE, manifest == MANIFEST_LABEL, ~is_reversal)
    last = JOB_RECORDS.find(connection, query.order_by(JOBS.c.id.desc()).limit(1))
    return last is not None and last.request["rollout"]["digest"] == digest


def _check_free(connection: Connection, manifest: str) -> None:
    """Raise when a rollout of the manifest has not ended.

    Raises:
        UpdateInProgressError: there is one; ``details["update"]`` names it.
    """
    for update in map(update_of, find_active_jobs(connection, UPDATE)):
        if update.manifest is not None and update.manifest.name == manifest:
            raise in_progress(update)


def _owned(record: ManifestRecord) -> ManifestOwnedError:
    """Return the error of a name that another source has, with the way to change or remove the manifest."""
    if record.source == "api":
        way = "Change or remove it with 'refeed apply' or 'refeed delete'"
    elif record.source.startswith("upload:"):
        way = "Change or delete its file there. When 'refeed inbox' lists the file, use 'refeed delete'"
    else:
        way = f"Change the setting {record.source}"
    message = f"{record.name} belongs to {record.source}. {way}, or choose another name."
    return ManifestOwnedError(message, name=record.name, source=record.source)


def _check_version(name: str, record: ManifestRecord | None, expected: int | None) -> None:
    version = 0 if record is None else record.version
    if expected is not None and version != expected:
        raise ManifestChangedError(f"{name} has changed since you read it or made the plan.", name=name)


def _add_runs(connection: Connection, name: str, now: datetime, settled: Settlement, **given: str | None) -> None:
    for run in settled.runs:
        values = {"slot": run.slot, "slot_start": run.slot_start, "state": run.state, "why": run.why}
        values |= {"created_at": now, "finished_at": now if run.state.is_final else None}
        added = SCHEDULE_RUNS.insert().values(schedule=name, request=settled.request, **values, **given)
        connection.execute(added)


def _skip_waiting(connection: Connection, name: str, now: datetime) -> None:
    """End the runs that have no job yet; the one that a replica is about to give one gets it back."""
    columns = SCHEDULE_RUNS.c
    where = [columns.schedule == name, columns.state.in_([RunState.QUEUED, RunState.STARTING])]
    skipped = {"state": RunState.SKIPPED, "finished_at": now, "why": _REMOVED}
    connection.execute(SCHEDULE_RUNS.update().where(*where).values(**skipped))


def _newest_slot(connection: Connection, name: str, now: datetime) -> datetime | None:
    """Return the newest slot until ``now`` that ran; the oldest one of all where earlier ones may have run."""
    columns = SCHEDULE_RUNS.c
    oldest, newest = connection.execute(
        sa.select(sa.func.min(columns.slot), sa.func.max(columns.slot)).where(columns.schedule == name)
    ).one()
    query = sa.select(sa.func.max(columns.slot)).where(columns.schedule == name, columns.slot <= now + AHEAD)
    found: datetime | None = connection.scalar(query)
    if found is None and oldest is not None and newest - oldest >= KEEP_RUNS:
        return oldest  # type: ignore[no-any-return]
    return found


def _trim_runs(connection: Connection, name: str, now: datetime) -> None:
    """Forget runs of long ago, all but the newest of them: it has how far slots had been decided."""
    columns = SCHEDULE_RUNS.c
    is_old = sa.and_(columns.schedule == name, columns.slot < now - KEEP_RUNS)
    newest = connection.scalar(sa.select(sa.func.max(columns.slot)).where(is_old))
    if newest is None:
        return
    is_over = sa.and_(columns.schedule == name, columns.slot < newest, columns.state.not_in(LIVING_RUNS))
    old = sa.select(columns.slot).where(is_over).order_by(columns.slot).limit(_TRIMMED_AT_ONCE)
    connection.execute(SCHEDULE_RUNS.delete().where(is_over, columns.slot.in_(old)))


def _find(connection: Connection, name: str, *, for_update: bool = False) -> Row[Any] | None:
    query: sa.Select[Any] = sa.select(MANIFESTS).where(MANIFESTS.c.name == name)
    return connection.execute(query.with_for_update() if for_update else query).first()


def _get(connection: Connection, name: str) -> Row[Any]:
    return connection.execute(sa.select(MANIFESTS).where(MANIFESTS.c.name == name)).one()


def _get_living(connection: Connection, name: str, *, for_update: bool = False) -> Row[Any]:
    row = _find(connection, name, for_update=for_update)
    if row is None or row.removed_at is not None:
        raise ManifestNotFoundError(f"There is no manifest {name[:80]}.", name=name[:80])
    return row


def _update(connection: Connection, name: str, **values: Any) -> None:
    connection.execute(MANIFESTS.update().where(MANIFESTS.c.name == name).values(**values))


def _runs(
    connection: Connection,
    schedule: str | None = None,
    *,
    living: bool = False,
    newest: int | None = None,
    slots: Collection[datetime] | None = None,
) -> list[ScheduleRun]:
    columns = SCHEDULE_RUNS.c
    query = sa.select(SCHEDULE_RUNS)
    if slots is not None:
        query = query.where(columns.slot.in_(slots))
    if schedule is not None:
        query = query.where(columns.schedule == schedule)
    if living:
        query = query.where(columns.state.in_(LIVING_RUNS))
    if newest is not None:
        query = query.order_by(columns.slot.desc()).limit(newest)
        return [read_row(ScheduleRun, row) for row in connection.execute(query)]
    # Sorted here: asked to sort, SQLite would rather walk through every run there ever was.
    found = [read_row(ScheduleRun, row) for row in connection.execute(query)]
    return sorted(found, key=lambda run: (run.schedule, run.slot))
