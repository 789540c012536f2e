"""What is shown of a stream that was launched: its record beside its newest report."""

from typing import Any, Final

from jobs.lease_owner import LeaseOwner
from model.stream_record import ENDED_STATES, StreamRecord, StreamState, Wanted

# The fields of its record that are shown as they are.
_SHOWN: Final = (
    "release",
    "options",
    "wanted",
    "generation",
    "home",
    "snapshot_id",
    "created_by",
    "created_at",
    "launched_by",
    "launched_at",
)


def recorded_fields(record: StreamRecord | None) -> dict[str, Any]:
    """Return the fields that come from the record alone; each is None of a stream that was started by hand."""
    if record is None:
        return dict.fromkeys((*_SHOWN, "drain_timeout_seconds", "agent", "etag"))
    owner = LeaseOwner.parse(record.agent) if record.agent is not None and record.is_held else None
    return {
        **{name: getattr(record, name) for name in _SHOWN},
        "drain_timeout_seconds": record.drain_timeout_seconds if record.wanted is Wanted.DRAINED else None,
        "agent": None if owner is None else {"host": owner.host, "pid": owner.process.pid},
        "etag": f'"{record.version}"',
    }


def is_own_report(record: StreamRecord, instance: Any, reported: StreamState) -> bool:
    """Whether a report is of the record's newest process, or of one that somebody runs by hand meanwhile."""
    return instance == record.instance_id or (not str(instance).startswith("in_") and _is_up(reported))


def shown_state(record: StreamRecord, instance: Any, reported: StreamState | None) -> StreamState:
    """Return where the stream stands; ``reported`` is what its newest report says, None without one.

    The agent's word counts for how a stream ended and why it does not run, the stream's own for how it runs. One
    that somebody started by hand under the name is shown as it reports, whatever is wanted.
    """
    is_own = instance == record.instance_id
    running = reported if reported is not None and _is_up(reported) else None
    if running is not None and not is_own:
        return running
    if not record.is_living:
        return record.state
    is_lost = reported is None and record.instance_id is not None and not record.is_held
    if is_lost or (is_own and reported is StreamState.NOT_REPORTING and record.state is not StreamState.FAILED):
        return StreamState.NOT_REPORTING
    if record.wanted is not Wanted.RUNNING:
        return StreamState.DRAINING
    if running is None or record.state in {StreamState.FAILED, StreamState.UPDATING}:
        return record.state
    return running


def _is_up(reported: StreamState) -> bool:
    return reported not in {*ENDED_STATES, StreamState.FAILED, StreamState.NOT_REPORTING}
