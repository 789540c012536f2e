"""An event's attributes: ours, the facts of its request, and the caller's own, within Pub/Sub's limits."""

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple

from model.errors import RequestInvalidError, fault_at
from model.message import MAX_ATTRIBUTE_KEY_BYTES, MAX_ATTRIBUTE_VALUE_BYTES, MAX_ATTRIBUTES

# Names of the facts that a request can give, in the order in which they become attributes.
FACTS: Final = ("path", "query", "user_agent", "referer", "client_address")
_FACT_PREFIX: Final = "http_"
CUT_ATTRIBUTE: Final = "http_cut"
_SNS_PREFIX: Final = "sns_"
KINESIS_PREFIX: Final = "kinesis_"
_CALLER_PREFIX: Final = "caller_"
_OWN_NAMES: Final = frozenset({"topic", "source", "uuid", "timestamp", "content_type"})
# What Pub/Sub keeps for itself, and what Refeed does: nobody else's word may look like theirs.
_OWN_PREFIXES: Final = (_FACT_PREFIX, _SNS_PREFIX, KINESIS_PREFIX, _CALLER_PREFIX, "refeed_", "goog")
_NANOSECONDS: Final = 1_000_000_000
_FRACTION_BITS: Final = 12
_RANDOM_BITS: Final = 62


class Identity(NamedTuple):
    """The id and the moment that the collector gives an event."""

    uuid: str
    timestamp: str


def new_identity(now_ns: int | None = None, random: int | None = None) -> Identity:
    """Return a UUIDv7 and the RFC 3339 moment in it, with microseconds.

    RFC 9562, section 5.7: 48 bits of milliseconds, 4 of version, 12 (rand_a), 2 of variant, 62 (rand_b). Section
    6.2, method 3: rand_a holds the fraction of the millisecond, so that ids of one process sort by time.
    https://www.rfc-editor.org/rfc/rfc9562

    Example:
        >>> new_identity(1_645_557_742_000_500_000, 0)
        Identity(uuid='017f22e2-79b0-7800-8000-000000000000', timestamp='2022-02-22T19:22:22.000500Z')
    """
    at = time.time_ns() if now_ns is None else now_ns
    bits = int.from_bytes(os.urandom(8), "big") >> 2 if random is None else random
    milliseconds, rest = divmod(at, 1_000_000)
    high = milliseconds << 16 | 0x7000 | (rest << _FRACTION_BITS) // 1_000_000
    text = f"{high << 64 | 0b10 << _RANDOM_BITS | bits:032x}"
    seconds, rest = divmod(at, _NANOSECONDS)
    return Identity(
        f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}",
        f"{_render_second(seconds)}.{rest // 1000:06d}Z",
    )


@lru_cache(maxsize=8)
def _render_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def own_attributes(topic: str, source: str, content_type: str = "") -> dict[str, str]:
    """Return the attributes that every event has, from wherever it came; :class:`Identity` has the other two.

    Example:
        >>> own_attributes("orders", "shop-web", "application/json")
        {'topic': 'orders', 'source': 'shop-web', 'content_type': 'application/json'}
    """
    return {"topic": topic, "source": source} | ({"content_type": content_type} if content_type else {})


def caller_attributes(parameters: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return a caller's parameters as attributes; a name that is ours goes under ``caller_``.

    Raises:
        RequestInvalidError: a name comes twice, or Pub/Sub does not take one of them; all faults are named.

    Example:
        >>> caller_attributes([("uuid", "mine"), ("shop", "se")])
        {'caller_uuid': 'mine', 'shop': 'se'}
    """
    found: dict[str, str] = {}
    faults: list[dict[str, str]] = []
    for name, value in parameters:
        is_ours = name in _OWN_NAMES or name.startswith(_OWN_PREFIXES)
        key = f"{_CALLER_PREFIX}{name}" if is_ours else name
        if key in found:
            faults.append(_fault("parameter_repeated", name, "The parameter occurs twice."))
        elif not name:
            faults.append(_fault("parameter_unnamed", name, "A parameter needs a name."))
        elif len(key.encode()) > MAX_ATTRIBUTE_KEY_BYTES:
            text = f"A parameter's name can have at most {MAX_ATTRIBUTE_KEY_BYTES} bytes."
            faults.append(_fault("parameter_name_too_long", name[:40], text))
        elif len(value.encode()) > MAX_ATTRIBUTE_VALUE_BYTES:
            text = f"A parameter's value can have at most {MAX_ATTRIBUTE_VALUE_BYTES} bytes."
            faults.append(_fault("parameter_too_long", name, text))
        found[key] = value
    if faults:
        raise _refusal(faults)
    return found


def parameter_payload(parameters: Iterable[tuple[str, str]]) -> bytes:
    """Return a query's parameters as a JSON object of texts, in their order.

    Raises:
        RequestInvalidError: a name comes twice, so that one value would be lost; every such name is reported.

    Example:
        >>> parameter_payload([("event", "view"), ("page", "/å")]).decode()
        '{"event":"view","page":"/å"}'
    """
    found: dict[str, str] = {}
    faults: list[dict[str, str]] = []
    for name, value in parameters:
        if name in found:
            faults.append(_fault("parameter_repeated", name, "The parameter occurs twice."))
        found[name] = value
    if faults:
        raise _refusal(faults)
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()


def _refusal(faults: list[dict[str, str]]) -> RequestInvalidError:
    return RequestInvalidError(
        "; ".join(f"{each['pointer']}: {each['message']}" for each in faults), errors=faults
    )


def _fault(code: str, name: str, message: str) -> dict[str, str]:
    return fault_at(f"query:{name}", code, message)


def fact_attributes(facts: Mapping[str, str], chosen: Sequence[str]) -> dict[str, str]:
    """Return the chosen facts under ``http_``, cut to what Pub/Sub takes; ``http_cut`` names those that were cut.

    A fact that the request does not have gets no attribute.

    Example:
        >>> facts = {"path": "/orders", "query": "", "referer": "x" * 2000}
        >>> list(fact_attributes(facts, ["path", "query", "referer"]))
        ['http_path', 'http_referer', 'http_cut']
    """
    named = {f"{_FACT_PREFIX}{name}": value for name in chosen if (value := facts.get(name))}
    found, cut = cut_attributes(named)
    if cut:
        found[CUT_ATTRIBUTE] = ",".join(name.removeprefix(_FACT_PREFIX) for name in cut)
    return found


def cut_attributes(attributes: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return attributes whose values are cut to what Pub/Sub takes, and the names of those that were cut.

    Example:
        >>> cut_attributes({"a": "1", "b": "x" * 2000})[1]
        ['b']
    """
    found: dict[str, str] = {}
    cut: list[str] = []
    for name, value in attributes.items():
        raw = value.encode()
        if len(raw) > MAX_ATTRIBUTE_VALUE_BYTES:
            cut.append(name)
            found[name] = raw[:MAX_ATTRIBUTE_VALUE_BYTES].decode(errors="ignore")
        else:
            found[name] = value
    return found, cut


def check_room(attributes: Mapping[str, str]) -> None:
    """Raise when Pub/Sub takes fewer attributes than these and the three that each event gets.

    Raises:
        RequestInvalidError: the caller gave too many parameters.
    """
    too_many = len(attributes) + len(Identity._fields) - MAX_ATTRIBUTES
    if too_many > 0:
        message = f"A message can have at most {MAX_ATTRIBUTES} attributes. Leave out {too_many} parameters."
        raise RequestInvalidError.of("too_many_parameters", message, "query:")
