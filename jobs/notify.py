"""Sends signed webhooks (Standard Webhooks) of jobs' ends and of waits for a person, with retries."""

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime
from typing import Any, Final

import httpx
import structlog

from jobs.kinds import JobKind
from jobs.loop import BackgroundLoop
from jobs.store import Job, JobStore
from model.failure import fixed_sentence
from model.moment import render_moment

_LOG: Final = structlog.get_logger()
_LOOK_SECONDS: Final = 2.0
# Each takes one call, so a batch is done before the store gives its jobs to another replica.
_BATCH: Final = 4
_HOLD_SECONDS: Final = 120.0
_CALL_SECONDS: Final = 10.0
_MARK: Final = "whsec_"


class Notifier:
    """POSTs the news of every job of ``kind`` to ``url``; :meth:`stop` ends it.

    News are a job's end, and its wait for a person. Each is delivered at least once, in no particular order: after
    an answer other than 2xx any replica sends it again, for as long as the store lists it as due. News from before
    the first :meth:`start` with ``url`` are not sent. Redirects are not followed, and only the status of an answer
    is read. ``secret`` is ``whsec_`` and base64.
    """

    def __init__(self, store: JobStore, kind: JobKind, url: str, secret: str) -> None:
        self._store = store
        self._kind = kind
        self._url = url
        self._secret = secret
        self._since: datetime | None = None
        self._client = httpx.Client(timeout=_CALL_SECONDS, follow_redirects=False)
        self.loop = BackgroundLoop(f"{kind.name}-webhooks", self._tell_all, every_seconds=_LOOK_SECONDS)

    def start(self) -> None:
        """Begin to send, also news that an earlier service with the same URL left.

        Raises:
            StoreUnavailableError: the store does not return since when this URL gets news.
        """
        self._since = self._store.open_webhook(hashlib.sha256(self._url.encode()).hexdigest())
        self.loop.start()

    def stop(self) -> None:
        """Stop within the time of one call; the next service sends the rest."""
        self.loop.stop(_CALL_SECONDS)
        self._client.close()

    def _tell_all(self) -> None:
        kind, since = self._kind.name, self._since
        waiting = self._store.list_unnotified(kind, _BATCH, since=since, hold_seconds=_HOLD_SECONDS)
        for job in waiting:
            if self.loop.is_stopping:
                return
            error = self._tell(job)
            self._store.mark_notified(job.id, datetime.now(UTC), news_at=job.news_at, was_told=error is None)
            if error is None:
                _LOG.info("webhook sent", job_id=job.id, state=job.state.value)
            else:
                _LOG.warning("webhook not sent", job_id=job.id, state=job.state.value, problem=error)

    def _tell(self, job: Job) -> str | None:
        """Send one webhook; return None after a 2xx answer, else the problem."""
        body = json.dumps(describe_news(job, self._kind)).encode()
        headers = sign(self._secret, message_id=_message_id(job), at=datetime.now(UTC), body=body)
        headers["Content-Type"] = "application/json"
        try:
            with self._client.stream("POST", self._url, content=body, headers=headers) as response:
                status = response.status_code
                return None if response.is_success else f"HTTP {status}"
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            return f"{type(exc).__name__}: {exc}"[:500]


def describe_news(job: Job, kind: JobKind) -> dict[str, Any]:
    """Return the body of a webhook: no query, no parameters, and nothing of any message."""
    happened = job.state.value.lower() if job.state.is_final else "waiting"
    return {
        "type": f"{job.kind}.{happened}",
        "timestamp": render_moment(job.news_at),
        "data": {
            "id": job.id,
            "state": job.state.value,
            "waits_for": None if job.state.is_final else kind.waits_for(job),
            "created_by": job.created_by,
            "created_at": render_moment(job.created_at),
            "started_at": render_moment(job.started_at),
            "finished_at": render_moment(job.finished_at),
            **kind.describe(job),
            # The code's fixed sentence: a webhook goes to another system, so it must not quote a message.
            "error": job.error and {"code": job.error.code, "message": fixed_sentence(job.error.code)},
        },
    }


def sign(secret: str, *, message_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """Return the headers of Standard Webhooks: id, time in seconds, and HMAC-SHA256 of both and the body.

    Example:
        >>> at = datetime(2026, 1, 1, tzinfo=UTC)
        >>> headers = sign("whsec_" + "A" * 32, message_id="m1", at=at, body=b"{}")
        >>> headers["webhook-id"], headers["webhook-timestamp"], headers["webhook-signature"][:3]
        ('m1', '1767225600', 'v1,')
    """
    seconds = str(int(at.timestamp()))
    key = base64.b64decode(secret.removeprefix(_MARK))
    digest = hmac.new(key, f"{message_id}.{seconds}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": seconds,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def _message_id(job: Job) -> str:
    """Return the webhook's id: the same for each delivery of the news, another one after a retry of the job."""
    happened_at = job.news_at or job.created_at
    return f"{job.id}.{int(happened_at.timestamp() * 1000)}"
