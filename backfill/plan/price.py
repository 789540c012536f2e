"""What a replay costs at Google's list prices: each thing that is billed, and the sum of what is known before."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, Field

from connectors.pubsub.client import SubscriptionInfo
from warehouse.figures import SELECTION_KEPT_DAYS, QueryFigures

# List prices in US dollars, noted in November 2026, of the multi-region US where it matters; docs/cost.md has the
# same and an example. https://cloud.google.com/pubsub/pricing: published and delivered bytes, filtered ones too.
PUBSUB_USD_PER_TIB: Final = 40.0
# https://cloud.google.com/bigquery/pricing: Storage Read and Write API, active logical storage.
STORAGE_READ_USD_PER_TIB: Final = 1.10
STORAGE_WRITE_USD_PER_GIB: Final = 0.025
STORAGE_USD_PER_GIB_MONTH: Final = 0.02
# What the tags add to a message.
TAGS_BYTES: Final = 250
_GIB: Final = 2**30
_TIB: Final = 2**40
_MONTH_DAYS: Final = 30


class PlanPricePart(BaseModel):
    """One part of a replay's price."""

    what: str = Field(description="The name of the part.")
    bytes: int | None = Field(
        description="The billed bytes. Null if the number is unknown, or if the price does not depend on bytes."
    )
    usd: float | None = Field(description="The price at list prices. Null means unknown.")


class PlanPrice(BaseModel):
    """The price of a replay, including its query, at the list prices in docs/cost.md."""

    usd: float | None = Field(description="The whole price. Null if a part is unknown.")
    at_least_usd: float = Field(description="The sum of the known parts of the price.")
    parts: list[PlanPricePart] = Field(description="The parts of the price.")


@dataclass(frozen=True, slots=True)
class Billing:
    """What somebody pays for in a deployment.

    Without ``query_usd_per_tib`` the price of a query is unknown: it may be one of slots.
    """

    query_usd_per_tib: float | None = None
    is_pubsub_billed: bool = False
    runs_on_dataproc: bool = False


def price_replay(
    figures: QueryFigures, subscriptions: Sequence[SubscriptionInfo], billing: Billing
) -> PlanPrice | None:
    """Return what a replay of a query's rows costs, None where nothing of it is billed.

    Every attached subscription of the target is paid for, also where its filter drops the messages: "Filtered
    messages costs", https://cloud.google.com/pubsub/pricing. What the pipeline writes is counted as the messages'
    own bytes, and how long a batch takes is not known before.

    Example:
        >>> rows = QueryFigures(bytes_scanned=0, rows=2, message_bytes=2**40 - 500)
        >>> backup = SubscriptionInfo("refeed-backup.orders", "orders", "", 60)
        >>> price_replay(rows, [backup], Billing(is_pubsub_billed=True)).usd
        80.0
    """
    parts = list(_parts(figures, subscriptions, billing))
    if not parts:
        return None
    known = [part.usd for part in parts if part.usd is not None]
    whole = sum(known) if len(known) == len(parts) else None
    return PlanPrice(usd=whole, at_least_usd=sum(known), parts=parts)


def price_of(size_bytes: int | None, usd_per_tib: float | None) -> float | None:
    """Return what some bytes cost in US dollars, None when the price or the bytes are unknown.

    Example:
        >>> price_of(2**39, 6.25), price_of(2**39, None)
        (3.125, None)
    """
    if size_bytes is None or usd_per_tib is None:
        return None
    return size_bytes / _TIB * usd_per_tib


def _parts(
    figures: QueryFigures, subscriptions: Sequence[SubscriptionInfo], billing: Billing
) -> Iterator[PlanPricePart]:
    size = figures.message_bytes
    if figures.bytes_billed is not None:
        yield _part("query", figures.bytes_billed, billing.query_usd_per_tib)
        kept_usd_per_gib = STORAGE_USD_PER_GIB_MONTH * SELECTION_KEPT_DAYS / _MONTH_DAYS
        yield _part("selection storage", size, kept_usd_per_gib * _TIB / _GIB)
        yield _part("selection read", size, STORAGE_READ_USD_PER_TIB)
        yield _part("staging write", size, STORAGE_WRITE_USD_PER_GIB * _TIB / _GIB)
    if billing.is_pubsub_billed:
        tagged = None if size is None or figures.rows is None else size + figures.rows * TAGS_BYTES
        yield _part("publish", tagged, PUBSUB_USD_PER_TIB)
        for subscription in subscriptions:
            if not subscription.detached:
                yield _part(f"delivery to {subscription.id}", tagged, PUBSUB_USD_PER_TIB)
    if billing.runs_on_dataproc:
        yield PlanPricePart(what="Dataproc batch", bytes=None, usd=None)


def _part(what: str, size_bytes: int | None, usd_per_tib: float | None) -> PlanPricePart:
    return PlanPricePart(what=what, bytes=size_bytes, usd=price_of(size_bytes, usd_per_tib))
