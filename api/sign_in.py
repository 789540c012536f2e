"""Sign-in with an identity provider: started in a browser, completed once, by the same browser and in time."""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from connectors.oidc.provider import Provider
from jobs.store import JobStore, UserSession
from jobs.user_sessions import UserSessionDesk
from model.errors import SignInRefusedError

_LIFE: Final = timedelta(minutes=10)
_ID_BYTES: Final = 32
_ATTEMPT: Final = re.compile(
    r"(?P<signed>(?P<id>[A-Za-z0-9_-]{43})\.(?P<ends>\d{10}))\.(?P<mac>[A-Za-z0-9_-]{43})"
)
_SAID_CHARS: Final = 300
_MAX_CHARS: Final = 8192
_UNKNOWN: Final = "This sign-in was not started in this browser, has expired, or was already used. Start it again."


class StartedSignInOut(BaseModel):
    """A started sign-in. The browser must complete the sign-in within ten minutes."""

    attempt: str = Field(
        description="The id of this sign-in. The browser sends this id again to complete the sign-in."
    )
    state: str = Field(description="The value that the provider sends back. This value identifies the attempt.")
    authorization_url: str = Field(description="The address to which the browser goes to sign in.")
    expires_at: datetime = Field(description="The time after which the sign-in can't be completed.")


Given = Annotated[str | None, Field(max_length=_MAX_CHARS)]


class CompleteSignInIn(BaseModel):
    """The identity provider's answer to a sign-in."""

    # Parameters of RFC 6749, 4.1.2, and of RFC 9207.

    model_config = ConfigDict(extra="forbid", strict=True)

    attempt: Annotated[str, Field(max_length=_MAX_CHARS, description="The `attempt` that startSignIn returned.")]
    state: Given = Field(default=None, description="The parameter `state` in the provider's answer.")
    code: Given = Field(default=None, description="The parameter `code` in the provider's answer.")
    iss: Given = Field(default=None, description="The parameter `iss` in the provider's answer.")
    error: Given = Field(default=None, description="The parameter `error` in the provider's answer.")
    error_description: Given = Field(
        default=None, description="The parameter `error_description` of the provider's answer."
    )


class SignInDesk:
    """Starts and completes sign-ins; any replica with the same secret completes what another one started.

    Nothing is stored when one is started: state, nonce and code verifier are derived from its random id and the
    deployment's secret. What is stored is that one was used.
    """

    def __init__(
        self,
        store: JobStore,
        provider: Provider,
        sessions: UserSessionDesk,
        *,
        secret: str,
        signed_out_url: str,
    ) -> None:
        self._store = store
        self._provider = provider
        self._sessions = sessions
        self._secret = hmac.new(secret.encode(), b"refeed sign-in", hashlib.sha256).digest()
        self._signed_out_url = signed_out_url

    @property
    def issuer(self) -> str:
        """Whose tokens people sign in with."""
        return self._provider.issuer

    def start(self) -> StartedSignInOut:
        """Start a sign-in, which has to come back within ten minutes.

        Raises:
            IdentityUnavailableError: the provider does not answer.
        """
        ends = datetime.now(UTC).replace(microsecond=0) + _LIFE
        attempt_id = secrets.token_urlsafe(_ID_BYTES)
        signed = f"{attempt_id}.{int(ends.timestamp())}"
        state = self._derive("state", attempt_id)
        url = self._provider.authorization_url(
            state=state, nonce=self._derive("nonce", attempt_id), verifier=self._derive("verifier", attempt_id)
        )
        attempt = f"{signed}.{self._derive('attempt', signed)}"
        return StartedSignInOut(attempt=attempt, state=state, authorization_url=url, expires_at=ends)

    def complete(self, answer: CompleteSignInIn) -> tuple[UserSession, Mapping[str, Any], str]:
        """Open a session for who comes back; return it, the claims of its bearer token, and its own token.

        Raises:
            SignInRefusedError: the attempt is not this browser's, is over or was used, or the provider refuses.
            IdentityUnavailableError: the provider does not answer; the sign-in has to be started again.
        """
        attempt_id = self._use(answer.attempt, answer.state)
        # RFC 9207, 2.4: an answer of another issuer is for another client registration, its code too.
        if answer.iss != self.issuer and (answer.iss is not None or self._provider.names_issuer()):
            raise SignInRefusedError(
                "The answer came from another identity provider.", why=f"iss is {str(answer.iss)[:_SAID_CHARS]}"
            )
        if answer.error is not None:
            said = f": {answer.error_description[:_SAID_CHARS]}" if answer.error_description else ""
            raise SignInRefusedError(
                f"The identity provider refused the sign-in: {answer.error[:_SAID_CHARS]}{said}"
            )
        if not answer.code:
            raise SignInRefusedError("The identity provider's answer has no code.")
        issued = self._provider.redeem(answer.code, self._derive("verifier", attempt_id))
        return self._sessions.open(issued, nonce=self._derive("nonce", attempt_id))

    def sign_out_url(self, id_token: str) -> str | None:
        """Return where the browser ends the provider's own session too, None where it offers that nowhere.

        Raises:
            IdentityUnavailableError: the provider does not answer.
        """
        return self._provider.end_session_url(id_token, return_to=self._signed_out_url)

    def _use(self, attempt: str, state: str | None) -> str:
        """Return the id of an attempt that is used for the first time, in time, with its own state."""
        match = _ATTEMPT.fullmatch(attempt)
        if match is None or not _is_same(self._derive("attempt", match["signed"]), match["mac"]):
            raise SignInRefusedError(_UNKNOWN, why="the attempt is not one of this deployment")
        ends, now = datetime.fromtimestamp(int(match["ends"]), UTC), datetime.now(UTC)
        if ends <= now:
            raise SignInRefusedError(_UNKNOWN, why="the attempt has expired")
        if not _is_same(self._derive("state", match["id"]), state or ""):
            raise SignInRefusedError(_UNKNOWN, why="the state is another attempt's")
        digest = hashlib.sha256(match["id"].encode()).hexdigest()
        if not self._store.use_sign_in(digest, expires_at=ends):
            raise SignInRefusedError(_UNKNOWN, why="the attempt was used already")
        return match["id"]

    def _derive(self, label: str, text: str) -> str:
        """Return 256 bits as 43 characters, which RFC 7636 takes as a code verifier too."""
        found = hmac.new(self._secret, f"{label}:{text}".encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(found).decode().rstrip("=")


def _is_same(wanted: str, given: str) -> bool:
    return hmac.compare_digest(wanted.encode(), given.encode(errors="surrogatepass"))
