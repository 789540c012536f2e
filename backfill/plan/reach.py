"""Whether a replayed message could pass a subscription's filter."""

import re
from collections.abc import Iterable, Mapping
from itertools import islice, product
from typing import Any, Final, Literal

from pydantic import BaseModel, Field

from connectors.pubsub.client import SubscriptionInfo
from model.filters import FilterError, parse_filter
from model.message import BACKFILL_ID_ATTRIBUTE, BACKUP_SUBSCRIPTION_PREFIX, ROW_ATTRIBUTE, redact_tokens

_STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
_OTHER: Final = "\ufffdrefeed"
# Every replayed message has these tags, whatever their values are.
_PRESENT: Final = frozenset({BACKFILL_ID_ATTRIBUTE, ROW_ATTRIBUTE})
_MAX_TRIES: Final = 20_000


class PlanSubscription(BaseModel):
    """A subscription of the target, and whether replayed messages reach it."""

    name: str = Field(description="The subscription's id.")
    filter: str = Field(description="The subscription's filter. Empty if the subscription has no filter.")
    receives_replay: bool = Field(description="Whether replayed messages reach the subscription.")
    excluded_by: Literal["backup", "filter", "detached"] | None = Field(
        default=None,
        description="Why replays do not reach the subscription. `backup`: the filter of a backup subscription "
        "excludes replays. `filter`: another filter excludes replays. `detached`: the subscription "
        "receives no messages.",
    )


def render_subscriptions(
    subscriptions: Iterable[SubscriptionInfo], known: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return each subscription, and what keeps a replay with the ``known`` attributes from it."""
    found = []
    for subscription in subscriptions:
        excluded_by = _excluded_by(subscription, known)
        found.append(
            {
                "name": subscription.id,
                "filter": redact_tokens(subscription.filter),
                "receives_replay": excluded_by is None,
                "excluded_by": excluded_by,
            }
        )
    return found


def _excluded_by(subscription: SubscriptionInfo, known: Mapping[str, str]) -> str | None:
    if subscription.detached:
        return "detached"
    if receives_replay(subscription.filter, known):
        return None
    return "backup" if subscription.id.startswith(BACKUP_SUBSCRIPTION_PREFIX) else "filter"


def receives_replay(filter_text: str, known: Mapping[str, str]) -> bool:
    """Return whether some replayed message with the ``known`` attributes passes the filter.

    Its other attributes may have any value or be missing, but for the tags that every replayed message has.

    A filter that can't be read, or is too involved to try, may let messages pass.

    Example:
        >>> receives_replay('NOT attributes.refeed_replay = "t"', {"refeed_replay": "t"})
        False
        >>> receives_replay('attributes.region = "eu"', {"refeed_replay": "t"})
        True
    """
    try:
        message_filter = parse_filter(filter_text)
    except FilterError:
        return True
    open_keys = [name for key in message_filter.keys if (name := key.decode()) not in known]
    # The filter compares with its own texts: these, longer ones, another one and none are all it can tell apart.
    texts = dict.fromkeys(_STRING.findall(filter_text))
    values = [None, _OTHER, *texts, *(f"{text}{_OTHER}" for text in texts)]
    tries = product(
        *([value for value in values if name not in _PRESENT or value is not None] for name in open_keys)
    )
    for number, chosen in enumerate(islice(tries, _MAX_TRIES + 1)):
        if number == _MAX_TRIES:
            return True
        given = {name: value for name, value in zip(open_keys, chosen, strict=True) if value is not None}
        if message_filter.matches({**given, **known}):
            return True
    return False
