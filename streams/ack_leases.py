"""Extends the leases of pulled messages while a stream works, and acknowledges the messages when it is done."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from connectors.pubsub.ack_deadline import AckDeadline
from connectors.pubsub.acks import Held, acknowledge_each, extend_each
from model import failpoint
from streams.pulse import repeating

_log = structlog.get_logger(__name__)

# Leases are at least ten seconds long (Pub/Sub's smallest ack deadline).
_EXTEND_EVERY_SECONDS: Final = 3.0
_EXTEND_BY_SECONDS: Final = 60


class AckLeases:
    """Leases and acknowledgements of messages that a stream has pulled; ids have the journal's columns."""

    def __init__(self, channel: Any, project: str) -> None:
        self._channel = channel
        self._project = project

    def acknowledge(self, ids: pa.Table, deadline: AckDeadline) -> pa.Table:
        """Acknowledge ``ids``; return the ids of subscriptions that failed, which are redelivered at some time.

        The returned ids include ids that were acknowledged after ``deadline``: Pub/Sub does not report whether
        such an acknowledgement came too late.
        """
        held = list(self._held(ids))
        failed = set()
        for position, (path, error) in enumerate(acknowledge_each(self._channel, held)):
            if position == 0 and len(held) > 1:
                failpoint.hit("ack.between")
            if error is not None or deadline.is_over:
                failed.add(_id_of(path))
                why = "It is later than the leases." if error is None else error.message
                _log.warning("ack_failed", subscription=_id_of(path), error=why)
        names = ids.column("subscription").cast(pa.string())
        return ids.filter(pc.is_in(names, value_set=pa.array(sorted(failed), pa.string())))

    def give_back(self, ids: pa.Table) -> None:
        """Return ``ids`` for redelivery at once, or, if that fails, when their leases expire."""
        self._extend(ids, 0, "not_given_back")

    def extended(self, ids: pa.Table, deadline: AckDeadline) -> AbstractContextManager[None]:
        """Extend the leases of ``ids``, and their ``deadline``, from a thread for as long as the block runs."""
        send = partial(self._extend, ids, _EXTEND_BY_SECONDS, "lease_not_extended")
        extend = partial(deadline.extend, _EXTEND_BY_SECONDS, send)
        return repeating(extend, every_seconds=_EXTEND_EVERY_SECONDS, name="extend-leases")

    def _extend(self, ids: pa.Table, seconds: int, failure: str) -> bool:
        held = ((path, ack_ids, seconds) for path, ack_ids in self._held(ids))
        failed = [(path, error) for path, error in extend_each(self._channel, held) if error is not None]
        for path, error in failed:
            _log.warning(failure, subscription=_id_of(path), error=error.message)
        return not failed

    def _held(self, ids: pa.Table) -> Iterator[Held]:
        for subscription, ack_ids in _by_subscription(ids):
            yield f"projects/{self._project}/subscriptions/{subscription}", ack_ids


def _id_of(path: str) -> str:
    return path.rpartition("/")[2]


def _by_subscription(ids: pa.Table) -> Iterator[tuple[str, pa.Array]]:
    """Yield each subscription of ``ids`` with its ack ids; the rows are sorted once for all subscriptions."""
    names = ids.column("subscription").cast(pa.string()).combine_chunks().dictionary_encode()
    codes = names.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    ack_ids = ids.column("ack_id").combine_chunks().take(pa.array(order))
    ends = np.cumsum(np.bincount(codes, minlength=len(names.dictionary)))
    start = 0
    for name, end in zip(names.dictionary.to_pylist(), ends.tolist(), strict=True):
        yield name, ack_ids.slice(start, end - start)
        start = end
