"""The pages: where each is, and what it reads of the API."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from console.approvals import read_approvals
from console.backfill import read_backfill, read_letters, read_missing
from console.home import read_home, read_lines
from console.messages import read_message
from console.sources import read_source, read_source_letters, read_sources
from console.stream import read_stream
from console.topic import read_topic, read_topics
from console.visit import Visit

_PAGE_SIZE: Final = 50
_JOB_STATES: Final = ("PENDING", "RUNNING", "PAUSED", "CANCELLING", "CANCELLED", "SUCCEEDED", "FAILED")


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its path below /console, its place in the menu, its templates, and what fills them.

    ``live`` is the part that is kept up to date, and is rendered from the same context as ``template`` around it.
    """

    path: str
    menu: str
    live: str
    read: Callable[[Visit], dict[str, Any]]
    # Of a warehouse that bills by the byte no page asks again and again by itself: None is never.
    every_seconds: float | None = 3.0
    # Its part depends on who the caller is, or has a token of one browser; others are shared by equal rights.
    is_personal: bool = False
    template: str = "live.html"


def _read_streams(visit: Visit) -> dict[str, Any]:
    return {"title": "Streams", "streams": visit.read("streams", visit.api.list_streams), **read_lines(visit)}


def _read_approval(visit: Visit) -> dict[str, Any]:
    name = visit.path_params["id"]
    found = visit.read(f"approval {name}", lambda: visit.api.read_approval(name))
    return {"title": name, "id": name, "found": found, "approval": found.data}


def _read_backfills(visit: Visit) -> dict[str, Any]:
    names = ("state", "topic", "label", "since", "page_token")
    filters: dict[str, Any] = {name: visit.params.get(name) or None for name in names}
    found = visit.read(
        f"backfills {sorted(filters.items(), key=str)}",
        lambda: visit.api.jobs.list(page_size=_PAGE_SIZE, kind="backfill", **filters),
    )
    return {"title": "Backfills", "found": found, "filters": filters, "states": _JOB_STATES}


PAGES: Final = (
    Page("", "home", "home_live.html", read_home),
    Page("/topics", "topics", "topics_live.html", read_topics, 60.0),
    Page("/topics/{topic}", "topics", "topic_live.html", read_topic, None, template="topic.html"),
    Page("/topics/{topic}/message", "topics", "message_live.html", read_message, None),
    Page("/streams", "streams", "streams_live.html", _read_streams),
    Page("/streams/{name}", "streams", "stream_live.html", read_stream),
    Page("/sources", "sources", "sources_live.html", read_sources, 60.0),
    # What these two read costs queries, as a topic's own page does.
    Page("/sources/{name}", "sources", "source_live.html", read_source, None),
    Page("/sources/{name}/dead-letters", "sources", "letters_live.html", read_source_letters, None),
    Page("/approvals", "approvals", "approvals_live.html", read_approvals, 10.0, is_personal=True),
    Page("/approvals/{id}", "approvals", "approval_live.html", _read_approval),
    Page("/backfills", "backfills", "backfills_live.html", _read_backfills, template="backfills.html"),
    Page("/backfills/{id}", "backfills", "backfill_live.html", read_backfill),
    Page("/backfills/{id}/dead-letters", "backfills", "dead_letters_live.html", read_letters, None),
    Page("/backfills/{id}/missing", "backfills", "missing_live.html", read_missing, None),
)
