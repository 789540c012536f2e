"""Sessions: who calls, and a key's stand-in for a browser, opened and ended."""

from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request, Response, status
from pydantic import BaseModel, Field

from api.answers import Caller, problems
from api.auth import Gatekeeper
from api.state import services_of
from model.principal import SCOPES, Principal

router: Final = APIRouter(tags=["sessions"])


class SessionOut(BaseModel):
    """The caller and its permissions."""

    name: str = Field(description="The caller: `key:NAME`, `user:NAME`, or `local` if nobody needs a key.")
    scopes: list[str] = Field(description="The caller's scopes. backfills.admin includes all scopes.")
    topics: list[str] | None = Field(
        description="Topics to which the caller's backfills may publish. Null means every topic."
    )
    is_open: bool = Field(
        description="Whether the deployment has no keys and no issuer, so that nobody needs to sign in."
    )
    expires_at: datetime | None = Field(description="When the session expires. Null without a session.")


class OpenedSessionOut(SessionOut):
    """A new session. The session's token is never shown again."""

    token: Annotated[
        str,
        Field(
            description="The session's token. Send the token as a bearer token, like a key.", examples=["rs_..."]
        ),
    ]


class EndedSessionOut(SessionOut):
    """The caller whose session was ended."""

    provider_sign_out_url: str | None = Field(
        description="The address of the identity provider's sign-out page. On this page, the browser ends its "
        "session at the provider too. Null if the provider has no such page."
    )


@router.post(
    "/sessions",
    status_code=status.HTTP_201_CREATED,
    response_model=OpenedSessionOut,
    responses=problems(s403="The caller sent no key. A token or a session can't open a new session."),
)
def open_session(request: Request, response: Response, caller: Caller) -> Any:
    """Open a session with the caller's key.

    The session ends after 12 hours, or when the key expires or is revoked.
    """
    gatekeeper = services_of(request).gatekeeper
    session, token = gatekeeper.open_session(request)
    response.headers["Location"] = "/sessions/current"
    return {**show_caller(caller, gatekeeper), "expires_at": session.expires_at, "token": token}


@router.get("/sessions/current", response_model=SessionOut)
def get_current_session(request: Request, caller: Caller) -> Any:
    """Show the name and the scopes of the key, token or session that the caller sends."""
    gatekeeper = services_of(request).gatekeeper
    session = gatekeeper.find_session(request)
    return {**show_caller(caller, gatekeeper), "expires_at": None if session is None else session.expires_at}


@router.delete("/sessions/current", response_model=EndedSessionOut)
def end_current_session(request: Request, caller: Caller) -> Any:
    """End the caller's session. The key stays valid."""
    gatekeeper = services_of(request).gatekeeper
    shown = {**show_caller(caller, gatekeeper), "expires_at": None}
    return {**shown, "provider_sign_out_url": gatekeeper.end_session(request)}


def show_caller(caller: Principal, gatekeeper: Gatekeeper) -> dict[str, Any]:
    """Return who calls, and what they may do, in the API's shape."""
    return {
        "name": caller.name,
        "scopes": [scope for scope in SCOPES if caller.may(scope)],
        "topics": None if caller.topics is None else list(caller.topics),
        "is_open": gatekeeper.is_open(),
    }
