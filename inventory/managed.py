"""What is shown of a stream that was launched: its record beside its newest report."""

from typing import Any, Final

from jobs.lease_owner import LeaseOwner
from model.moment import render_moment
from model.stream_record import ENDED_STATES, StreamRecord, StreamState, Wanted

_SILENT: Final = StreamState.NOT_REPORTING.value


def recorded_fields(record: StreamRecord) -> dict[str, Any]:
    """Return the fields that come from the record alone."""
    owner = LeaseOwner.parse(record.agent) if record.agent is not None and record.is_held else None
    return {
        "release": record.release,
        "options": record.options,
        "wanted": record.wanted.value,
        "drain_timeout_seconds": record.drain_timeout_seconds if record.wanted is Wanted.DRAINED else None,
        "generation": record.generation,
        "agent": None if owner is None else {"host": owner.host, "pid": owner.process.pid},
        "home": None if record.home is None else {"host": record.home.host, "path": record.home.path},
        "snapshot_id": record.snapshot_id,
        "created_by": record.created_by,
        "created_at": render_moment(record.created_at),
        "launched_by": record.launched_by,
        "launched_at": render_moment(record.launched_at),
        "etag": f'"{record.version}"',
    }


def is_own_report(record: StreamRecord, instance: Any, reported: str) -> bool:
    """Whether a report is of the record's newest process, or of one that somebody runs by hand meanwhile."""
    return instance == record.instance_id or (not str(instance).startswith("in_") and _is_up(reported))


def shown_state(record: StreamRecord, instance: Any, reported: str | None) -> str:
    """Return where the stream stands; ``reported`` is what its newest report says, None without one.

    The agent's word counts for how a stream ended and why it does not run, the stream's own for how it runs. One
    that somebody started by hand under the name is shown as it reports, whatever is wanted.
    """
    is_own = instance == record.instance_id
    is_up = reported is not None and _is_up(reported)
    if is_up and not is_own:
        return str(reported)
    if not record.is_living:
        return record.state.value
    is_lost = reported is None and record.instance_id is not None and not record.is_held
    if is_lost or (is_own and reported == _SILENT and record.state is not StreamState.FAILED):
        return _SILENT
    if record.wanted is not Wanted.RUNNING:
        return StreamState.DRAINING.value
    is_agent_s = not is_up or record.state in {StreamState.FAILED, StreamState.UPDATING}
    return record.state.value if is_agent_s else str(reported)


def _is_up(reported: str) -> bool:
    return reported not in {*ENDED_STATES, StreamState.FAILED, StreamState.NOT_REPORTING}
