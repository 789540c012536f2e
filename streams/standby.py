"""A standby: an instance that is ready to run, and owns the stream only after an order."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, TypeVar

import structlog

from model.errors import LeaseHeldError, RefeedError
from model.failure import safe_message
from streams.folder import STANDBY
from streams.orders import Orders
from streams.queries import StreamQueries
from streams.status import StatusFile

_log = structlog.get_logger(__name__)

# Time that a standby waits until another process releases the stream, if its order has no timeout.
TAKE_OVER_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.02
# The lease of another home's stream is read from the warehouse.
_LEASE_POLL_SECONDS: Final = 0.25
_TELL_SECONDS: Final = 1.0

Owned = TypeVar("Owned")


def wait_as_standby(orders: Orders, status: StatusFile, queries: StreamQueries) -> bool:
    """Keep a query ready that pulls nothing, until the order ``run``; return False after an order to end.

    The status is ``standby`` as soon as the stream can begin at once.
    """
    orders.follow_signals()
    looked_at = 0.0
    is_told = False
    while orders.is_standing_by and not orders.is_ending:
        is_warm = queries.is_warm.is_set()
        if is_warm != is_told or time.monotonic() - looked_at >= _TELL_SECONDS:
            queries.hold(orders.newest.pace)
            status.write(**({"state": STANDBY} if is_warm else {}))
            looked_at, is_told = time.monotonic(), is_warm
        time.sleep(_POLL_SECONDS)
    return not orders.is_ending


def take_over(
    own: Callable[[ExitStack], Owned], owned: ExitStack, orders: Orders, status: StatusFile
) -> Owned | None:
    """Own the stream by ``own`` as soon as no other process owns it; return None after an order to end.

    Meanwhile the status is written every second as a heartbeat: an agent kills a process without one. After
    ``own`` succeeds, its contexts are moved to ``owned``.

    Raises:
        LeaseHeldError: another process owned the stream until the order's timeout.
        RefeedError: the stream can't be owned for another reason.
    """
    bound = orders.newest.timeout_seconds
    ends_at = time.monotonic() + (TAKE_OVER_SECONDS if bound is None else bound)
    told_at = 0.0
    try:
        while not orders.is_ending:
            if time.monotonic() - told_at >= _TELL_SECONDS:
                status.write()
                told_at = time.monotonic()
            try:
                with ExitStack() as attempt:
                    found = own(attempt)
                    owned.push(attempt.pop_all())
                    return found
            except LeaseHeldError as exc:
                if time.monotonic() >= ends_at:
                    raise
                is_lease = "lease" in exc.details
            time.sleep(_LEASE_POLL_SECONDS if is_lease else _POLL_SECONDS)
    except RefeedError as exc:
        status.write(state="failed", error={"code": exc.code, "message": safe_message(exc.code, exc.message)})
        raise
    return None
