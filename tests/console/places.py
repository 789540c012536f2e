"""Every page of the console at an address that shows something."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from console.actions import ACTIONS
from console.pages import PAGES
from tests.console.yard import Yard

LAST_DAYS = {
    name: (datetime.now(UTC) + days * timedelta(days=1)).isoformat() for name, days in (("from", -2), ("to", 1))
}
# What stands after a path by itself would be a page without its main part.
_SHOWN = {
    "/topics/{topic}": "?show=messages&step=minute",
    "/backfills/new": "?source=orders",
}


def find_places(yard: Yard) -> Iterator[str]:
    """Yield an address below /console for each page and each action that the yard has something for."""
    known = {
        "/topics/{topic}": "/topics/orders",
        "/streams/{name}": "/streams/backup",
        "/backfills/{id}": f"/backfills/{yard.failed}",
    }
    yield "/sign-in"
    yield "/nowhere"
    yield f"/topics/orders/message?{urlencode({'id': 'm0', 'at': LAST_DAYS['from']})}"
    yield f"/backfills/new?{urlencode({'source': 'orders', 'topic': 'replay', 'do': 'plan', **LAST_DAYS})}"
    for path in (*(page.path for page in PAGES), *(action.path for action in ACTIONS)):
        place = path
        for pattern, address in known.items():
            if path == pattern or path.startswith(f"{pattern}/"):
                place = address + path.removeprefix(pattern)
        if "{" not in place:
            yield place + _SHOWN.get(path, "")
