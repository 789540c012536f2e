"""A web shop's messages, made from a seed: orders, products, members, and pictures that are no text."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

from model.message import REPLAY_ATTRIBUTE, ROW_ATTRIBUTE, Message

ORDERS: Final = "shop.orders"
PRODUCTS: Final = "shop.products"
MEMBERS: Final = "shop.members"
PICTURES: Final = "shop.pictures"

_NOUNS: Final = ("Lampe", "Stuhl", "Krug", "Décke", "机", "Båt", "Regal", "Uhr", "🪑", "Teppich")
_CITIES: Final = ("Göteborg", "Berlin", "Malmö", "Zürich", "København", "Łódź", "東京")
_FIRST_EVENT: Final = datetime(2024, 3, 1, 8, tzinfo=UTC)

# Of 100 messages: how many go to each topic.
_SHARES: Final = ((ORDERS, 50), (PRODUCTS, 25), (MEMBERS, 20), (PICTURES, 5))


def generate_messages(count: int, seed: int) -> Iterator[tuple[str, Message]]:
    """Yield ``count`` (topic, message), the same for the same seed.

    Among them are payloads that are no UTF-8, empty ones with an attribute (Pub/Sub takes no message without
    both), and some that carry ``refeed_*`` attributes of their own, as a service that copies attributes does.
    """
    random = Random(seed)  # noqa: S311  an example's data, no secret
    topics = [topic for topic, _ in _SHARES]
    shares = [share for _, share in _SHARES]
    for number in range(count):
        topic = random.choices(topics, shares)[0]
        at = _FIRST_EVENT + timedelta(milliseconds=number * 137)
        yield topic, make_message(topic, random, number, at)


def make_message(topic: str, random: Random, number: int, at: datetime) -> Message:
    """Return message ``number`` of one of the shop's topics, whose event happened at ``at``."""
    return _MAKERS[topic](random, number, at)


def _order(random: Random, number: int, at: datetime) -> Message:
    items: list[dict[str, Any]] = []
    for _ in range(random.randint(1, 6)):
        price = random.randrange(1, 90000) / 100
        items.append({"sku": f"P-{random.randrange(5000):05d}", "quantity": random.randint(1, 4), "price": price})
    status = random.choice(("placed", "paid", "shipped", "returned"))
    order = {
        "order_id": f"O-{number:08d}",
        "member_id": f"M-{random.randrange(20000):06d}",
        "status": status,
        "ordered_at": _render_time(at),
        "city": random.choice(_CITIES),
        "items": items,
        "total": round(sum(item["quantity"] * item["price"] for item in items), 2),
    }
    attributes = {"event": f"order_{status}", "source": "webshop", "version": "3"}
    if number % 97 == 0:
        # A service that copied what a replay of another deployment once carried: archived like any other.
        attributes |= {
            REPLAY_ATTRIBUTE: f"{random.getrandbits(128):032x}",
            ROW_ATTRIBUTE: str(number),
            "refeed_note": "mine",
        }
    return Message(_compact(order), attributes)


def _product(random: Random, number: int, at: datetime) -> Message:
    sku = f"P-{random.randrange(5000):05d}"
    if number % 50 == 0:
        return Message(b"", {"event": "product_deleted", "sku": sku, "source": "assortment"})
    product = {
        "sku": sku,
        "name": f"{random.choice(_NOUNS)} {number}",
        "price": random.randrange(100, 90000) / 100,
        "stock": random.randrange(500),
        "changed_at": _render_time(at),
        "text": "".join(random.choices("abcdefghijklmnopqrstuvwxyzåäö .", k=random.randint(20, 400))),
    }
    return Message(_compact(product), {"event": "product_changed", "source": "assortment"})


def _member(random: Random, number: int, at: datetime) -> Message:
    member = {
        "member_id": f"M-{random.randrange(20000):06d}",
        "city": random.choice(_CITIES),
        "consents": {"mail": random.choice((True, False)), "sms": None},
        "points": random.randrange(100000),
        "changed_at": _render_time(at),
    }
    attributes = {"event": random.choice(("member_joined", "member_changed")), "source": "crm"}
    if number % 31 == 0:
        attributes["empty"] = ""
    return Message(_compact(member), attributes)


def _picture(random: Random, number: int, at: datetime) -> Message:
    del number, at
    content = b"\x89PNG\r\n\x1a\n" + random.randbytes(random.randint(1, 4000))
    return Message(content, {"content_type": "image/png"} if random.choice((True, False)) else {})


_MAKERS: Final = {ORDERS: _order, PRODUCTS: _product, MEMBERS: _member, PICTURES: _picture}


def _render_time(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _compact(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
