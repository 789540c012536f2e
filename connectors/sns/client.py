"""Calls SNS: fetches signing certificates, which are kept for a day, and confirms subscriptions."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Final
from urllib.parse import parse_qs, urlsplit

import httpx
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from connectors.sns.names import sns_host
from connectors.sns.signature import load_signing_key
from model.errors import ForbiddenError, SnsUncheckedError

# SNS waits 15 s for an answer: https://docs.aws.amazon.com/sns/latest/dg/SendMessageToHttp.prepare.html
_FETCH_SECONDS: Final = 5.0
_MAX_BYTES: Final = 64 * 1024
# A certificate of another name comes with its rotation; one that AWS withdraws stops counting after this.
_KEEP_SECONDS: Final = 86_400.0
# Anybody can name a certificate that is not there: such calls must not pile up, and are not made again at once.
_FAILED_SECONDS: Final = 30.0
_MAX_CALLS: Final = 8
_MAX_KNOWN: Final = 1_000


class SnsClient:
    """Calls the hosts of SNS alone, over TLS, and follows no redirect; every method belongs to one event loop."""

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._transport = transport
        self._http: httpx.AsyncClient | None = None
        self._calls = asyncio.Semaphore(_MAX_CALLS)
        # url -> (key, or why there is none; until when that counts)
        self._known: dict[str, tuple[RSAPublicKey | str, float]] = {}
        self._fetching: dict[str, asyncio.Task[RSAPublicKey | str]] = {}

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def signing_key(self, topic_arn: str, url: str) -> RSAPublicKey:
        """Return the key of the certificate at ``url``, which a message of the topic names.

        Raises:
            ForbiddenError: the URL is not one of SNS in the topic's region; nothing was fetched.
            SnsUncheckedError: the certificate can't be fetched, or is none that counts.
        """
        host = sns_host(topic_arn)
        path = _path_at(host, url)
        if path is None or not path.endswith(".pem") or "?" in path:
            raise ForbiddenError("SigningCertURL is not the address of an SNS certificate in the topic's region.")
        known = self._known.get(url)
        if known is None or time.monotonic() >= known[1]:
            task = self._fetching.get(url)
            if task is None:
                task = self._fetching[url] = asyncio.create_task(self._fetch_key(host, url))
                task.add_done_callback(lambda _: self._fetching.pop(url, None))
            # A caller that goes away takes nobody else's certificate with it.
            found = await asyncio.shield(task)
        else:
            found = known[0]
        if isinstance(found, str):
            raise SnsUncheckedError(f"The certificate of the SNS message can't be used now: {found}.")
        return found

    async def confirm(self, topic_arn: str, url: str) -> None:
        """Confirm the subscription by calling ``url``, which the topic's confirmation names.

        Raises:
            ForbiddenError: the URL confirms no subscription to this topic at SNS; nothing was called.
            SnsUncheckedError: SNS does not confirm it.
        """
        path = _path_at(sns_host(topic_arn), url)
        query = parse_qs(urlsplit(url).query) if path is not None else {}
        if query.get("Action") != ["ConfirmSubscription"] or query.get("TopicArn") != [topic_arn]:
            raise ForbiddenError(
                "SubscribeURL is not the address at which SNS confirms a subscription to the topic."
            )
        try:
            await self._get(url)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError) as exc:
            raise SnsUncheckedError(f"SNS does not confirm the subscription: {_text(exc)}.") from exc

    async def _fetch_key(self, host: str, url: str) -> RSAPublicKey | str:
        found: RSAPublicKey | str
        try:
            found = load_signing_key(await self._get(url), host, datetime.now(UTC))
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError) as exc:
            found = _text(exc)
        if len(self._known) >= _MAX_KNOWN:
            # Callers make URLs up; those that matter are fetched again.
            self._known.clear()
        seconds = _FAILED_SECONDS if isinstance(found, str) else _KEEP_SECONDS
        self._known[url] = (found, time.monotonic() + seconds)
        return found

    async def _get(self, url: str) -> bytes:
        """Return what ``url`` answers, of 64 KiB at most.

        Raises:
            httpx.HTTPError: it does not answer.
            TimeoutError: it was not whole within five seconds.
            ValueError: it answers with another status than 200, or too much.
        """
        if self._http is None:
            self._http = httpx.AsyncClient(
                transport=self._transport, timeout=_FETCH_SECONDS, follow_redirects=False
            )
        async with asyncio.timeout(_FETCH_SECONDS), self._calls, self._http.stream("GET", url) as response:
            if response.status_code != httpx.codes.OK:
                raise ValueError(f"the answer has status {response.status_code}")
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise ValueError("the answer is too large")
            return bytes(body)


def _path_at(host: str, url: str) -> str | None:
    """Return the path and the query of ``url`` when it is one of ``host`` over TLS, else None.

    Compared as text, with what every parser would make of it: user names, ports and other spellings are refused.
    """
    head = f"https://{host}/"
    is_plain = url.isascii() and url.isprintable() and not set(url) & set(" \\#")
    return url.removeprefix(f"https://{host}") if is_plain and url.startswith(head) else None


def _text(exc: Exception) -> str:
    return str(exc)[:200] or type(exc).__name__
