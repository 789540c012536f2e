"""The pages: where each is, and what it reads of the API."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from console.backfill import read_letters, read_missing
from console.home import read_home, read_lines
from console.jobs import read_job, read_jobs
from console.manifests import read_manifest, read_manifests
from console.messages import read_message
from console.schedules import read_schedule, read_schedules
from console.sources import read_source, read_source_letters, read_sources
from console.stream import read_stream
from console.topic import read_topic, read_topics
from console.visit import Visit


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
    template: str = "live.html"


def _read_streams(visit: Visit) -> dict[str, Any]:
    return {"title": "Streams", "streams": visit.read("streams", visit.api.list_streams), **read_lines(visit)}


PAGES: Final = (
    Page("", "home", "home_live.html", read_home),
    Page("/topics", "topics", "topics_live.html", read_topics, 60.0),
    Page("/topics/{topic}", "topics", "topic_live.html", read_topic, None, template="topic.html"),
    Page("/topics/{topic}/message", "topics", "message_live.html", read_message, None),
    Page("/streams", "streams", "streams_live.html", _read_streams),
    Page("/streams/{name}", "streams", "stream_live.html", read_stream),
    Page("/schedules", "schedules", "schedules_live.html", read_schedules),
    Page("/schedules/{name}", "schedules", "schedule_live.html", read_schedule),
    Page("/manifests", "manifests", "manifests_live.html", read_manifests),
    Page("/manifests/{name}", "manifests", "manifest_live.html", read_manifest),
    Page("/sources", "sources", "sources_live.html", read_sources, 60.0),
    # What these two read costs queries, as a topic's own page does.
    Page("/sources/{name}", "sources", "source_live.html", read_source, None),
    Page("/sources/{name}/dead-letters", "sources", "letters_live.html", read_source_letters, None),
    Page("/jobs", "jobs", "jobs_live.html", read_jobs, template="jobs.html"),
    Page("/jobs/{id}", "jobs", "job_live.html", read_job),
    Page("/jobs/{id}/dead-letters", "jobs", "dead_letters_live.html", read_letters, None),
    Page("/jobs/{id}/missing", "jobs", "missing_live.html", read_missing, None),
)
