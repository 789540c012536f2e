"""The API as a patient caller uses it: what is not answered is asked again, what failed is retried."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import httpx

from jobs.store import JobStore
from tests.chaos.processes import StuckError
from tests.chaos.yard import ChaosYard

_PATIENCE_SECONDS: Final = 400.0
_POLL_SECONDS: Final = 0.2
_ENDED: Final = {"SUCCEEDED", "FAILED", "CANCELLED"}


class Service:
    """Jobs of the yard's API, which is started again whenever it does not run."""

    def __init__(self, yard: ChaosYard, over: threading.Event, say: Callable[[str], object]) -> None:
        self._yard = yard
        self._over = over
        self.say = say

    def create(self, collection: str, request: dict[str, Any], key: str, **environment: str) -> str:
        """Post a job until its id is known; ``key`` keeps it one job. ``environment`` is a starting API's."""

        def post() -> str:
            answer = self._yard.client.post(
                f"/{collection}", json=request, headers={"Idempotency-Key": key}, timeout=60
            )
            answer.raise_for_status()
            return answer.json()["id"]

        return str(self.keep_trying(post, httpx.HTTPError, f"takes one of {collection}", **environment))

    def wait(self, collection: str, job_id: str, is_there: Callable[[dict[str, Any]], bool], what: str) -> Any:
        """Return the job once ``is_there`` says so of it, or it has ended.

        Raises:
            StuckError: neither came.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        shown: dict[str, Any] = {}
        while time.monotonic() < deadline and not self._over.wait(_POLL_SECONDS):
            try:
                answer = self._yard.client.get(f"/jobs/{job_id}")
                answer.raise_for_status()
            except httpx.HTTPError:
                self._yard.api.ensure()
                continue
            shown = answer.json()
            if shown["state"] in _ENDED or is_there(shown):
                return shown
        log = self._yard.home / collection / job_id / "driver.log"
        tail = log.read_text()[-3000:] if log.exists() else ""
        raise StuckError(f"{job_id}: not within {_PATIENCE_SECONDS:.0f} s: {what}; {json.dumps(shown)}; {tail}")

    def finish(self, collection: str, job_id: str, *, fine: str = "") -> dict[str, Any]:
        """Retry a job until it has succeeded, or failed with the error code ``fine``, and return it."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            shown: dict[str, Any] = self.wait(collection, job_id, lambda _: False, "it ends")
            code = (shown["error"] or {}).get("code")
            if shown["state"] == "SUCCEEDED" or (fine and code == fine):
                return shown
            if time.monotonic() > deadline:
                raise StuckError(f"{job_id}: {shown}")
            self.say(f"{job_id} is {shown['state']}: {shown['error']}; retrying")
            self.keep_trying(lambda: self._retry(job_id), httpx.HTTPError, "retries")

    def keep_trying(self, act: Callable[[], Any], errors: type[Exception], what: str, **environment: str) -> Any:
        """Return what ``act`` returns; an error is one that passes while what was broken comes back.

        Raises:
            StuckError: it did not pass.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return act()
            except errors as exc:
                answer = exc.response if isinstance(exc, httpx.HTTPStatusError) else None
                # An operation that the API no longer has is no fault that passes.
                is_gone = answer is not None and answer.status_code == httpx.codes.METHOD_NOT_ALLOWED
                if is_gone or time.monotonic() > deadline or self._over.wait(_POLL_SECONDS):
                    text = str(exc) if answer is None else answer.text
                    raise StuckError(f"not {what}: {text}; {self._yard.api.last_words()}") from exc
                self._yard.api.ensure(**environment)

    def driver(self, job_id: str) -> Any:
        """Return the process of a job's driver, None when it has none."""
        store = JobStore(self._yard.home / "jobs.db")
        try:
            return store.get(job_id).driver
        finally:
            store.close()

    def _retry(self, job_id: str) -> None:
        answer = self._yard.client.post(f"/jobs/{job_id}:retry", timeout=60)
        # A conflict is a retry that was taken and whose answer was lost.
        if answer.status_code != httpx.codes.CONFLICT:
            answer.raise_for_status()
