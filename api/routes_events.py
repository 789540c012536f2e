"""Who did what and when: to jobs, streams, manifests, topics, sources and keys, or to one of them."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request

from api.answers import INVALID, Caller, SlowCalls, problems
from api.listing import PageSize, PageToken, page_of
from api.schemas import Since
from api.schemas_events import EventPage
from api.state import services_of
from api.watching import After
from jobs.listing import DEFAULT_PAGE_SIZE
from jobs.page_tokens import parse_event_token, render_event_token
from jobs.store import JobStore
from jobs.store.events import SOURCE, TOPIC
from model.errors import (
    JobNotFoundError,
    KeyNotFoundError,
    ManifestNotFoundError,
    RefeedError,
    RequestInvalidError,
    StreamNotFoundError,
)
from model.principal import ADMIN, READ, STREAMS_READ

router: Final = APIRouter(tags=["status"])
_LONGEST: Final = timedelta(days=31)
_NO_OBJECT: Final = "There is no such object."
_FAILED: Final = "Pub/Sub or the registry returned an error."
# The names that people have for a kind of object, and the resource of its history; a job's id is enough.
_RESOURCES: Final[Mapping[str, str | None]] = {
    **dict.fromkeys(("manifest", "schedule", "template"), "manifest"),
    **dict.fromkeys(("job", "backfill", "merge", "compaction", "update", "rollout", "change"), None),
    **{each: each for each in ("stream", "topic", "source", "key")},
}
# By the resource of a history.
_NOT_FOUND: Final[Mapping[str | None, type[RefeedError]]] = {
    None: JobNotFoundError,
    "stream": StreamNotFoundError,
    "manifest": ManifestNotFoundError,
    "key": KeyNotFoundError,
}


@router.get("/events", response_model=EventPage, responses=problems(s404=_NO_OBJECT, s422=INVALID, s502=_FAILED))
def list_events(
    request: Request,
    caller: Caller,
    slow: SlowCalls,
    *,
    subject: Annotated[
        str | None,
        Query(
            alias="object",
            max_length=300,
            description="List only the history of this object: the id of a job, or `stream/NAME`, "
            "`schedule/NAME`, `manifest/NAME`, `topic/NAME`, `source/NAME` or `key/NAME`.",
        ),
    ] = None,
    since: Annotated[
        Since | None,
        Query(
            description="List only entries since this time (RFC 3339). For all objects, the default is one day "
            "ago, and the list covers at most 31 days. For one object, the default is its whole history."
        ),
    ] = None,
    after: After = 0,
    page_size: PageSize = DEFAULT_PAGE_SIZE,
    page_token: PageToken = None,
) -> Any:
    """List who did what and when, newest first: to jobs, streams, manifests, topics and sources, or to one object.

    With `backfills.admin`, the list includes the entries of keys.
    """
    of = None if subject is None else _parse_object(subject)
    caller.require_any(READ, STREAMS_READ)
    if not caller.may(READ):
        if of is not None and of[0] != "stream":
            caller.require(READ)
        of = of or ("stream", None)
    if of is not None and of[0] == "key":
        caller.require(ADMIN)
    store = services_of(request).store
    if subject is None:
        now = datetime.now(UTC)
        since = now - timedelta(days=1) if since is None else max(since, now - _LONGEST)
    found = store.list_last_events(
        since,
        limit=page_size + 1,
        of=of,
        before=parse_event_token(page_token),
        after=after,
        with_keys=caller.may(ADMIN),
    )
    resource, name = of or (None, None)
    if not found and name is not None and not store.list_last_events(limit=1, of=of, with_keys=True):
        # Topics and sources are not in the store, and may be older than their histories. All else has a line.
        services = services_of(request)
        if resource in {TOPIC, SOURCE}:
            with slow:
                (services.backups.check_topic if resource == TOPIC else services.sources.check_source)(name)
        else:
            raise _not_found(store, str(subject), resource, may_read=caller.may(READ))
    page, token = page_of(found, page_size, lambda last: render_event_token(last.at, last.number))
    return {"events": page, "next_page_token": token}


def _parse_object(subject: str) -> tuple[str | None, str | None]:
    """Return the resource and the id of an object; of a job no resource.

    Raises:
        RequestInvalidError: it is neither.
    """
    kind, _, name = subject.partition("/") if "/" in subject else ("job", "/", subject)
    if kind not in _RESOURCES or not name:
        names = "stream/NAME, schedule/NAME, manifest/NAME, topic/NAME, source/NAME"
        message = f"{subject[:80]!r} is no object. Write the id of a job, {names} or key/NAME."
        raise RequestInvalidError.of("object_invalid", message, "/object")
    return _RESOURCES[kind], name


def _not_found(store: JobStore, subject: str, resource: str | None, *, may_read: bool) -> RefeedError:
    """Return the error of an object without a history, with the stream or manifest that has its name."""
    kind, _, name = subject.rpartition("/")
    sentence = "No stream was ever launched as" if resource == "stream" else f"There is no {kind or 'job'}"
    kinds = ("stream", "manifest") if may_read else ("stream",)
    others = [each for each in kinds if store.list_last_events(limit=1, of=(each, name))]
    meant = f" Did you mean {others[0]}/{name[:80]}?" if others else ""
    return _NOT_FOUND[resource](f"{sentence} {name[:80]}.{meant}")
