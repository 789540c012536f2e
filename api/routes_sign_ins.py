"""Sign-in with an identity provider: how people may sign in, a sign-in started, and one completed."""

from typing import Any, Final

from fastapi import APIRouter, Request, Response, status
from pydantic import BaseModel, Field

from api.answers import problems
from api.routes_sessions import OpenedSessionOut, show_caller
from api.sign_in import CompleteSignInIn, StartedSignInOut
from api.state import services_of

router: Final = APIRouter(tags=["sessions"])
_AWAY: Final = "The identity provider does not answer."


class SignInMethodsOut(BaseModel):
    """The identity provider with which people can sign in."""

    issuer: str | None = Field(
        description="The identity provider's issuer. Null if there is no identity provider."
    )


@router.get("/sign-ins", response_model=SignInMethodsOut)
def get_sign_in_methods(request: Request) -> Any:
    """Show the identity provider with which people can sign in to the console."""
    return {"issuer": services_of(request).gatekeeper.sign_in_issuer}


@router.post(
    "/sign-ins",
    status_code=status.HTTP_201_CREATED,
    response_model=StartedSignInOut,
    responses=problems(s403="The service has no identity provider.", s503=_AWAY),
)
def start_sign_in(request: Request) -> Any:
    """Start a sign-in with the identity provider: authorization code flow with PKCE, state and nonce."""
    # Anybody may start one, and it changes nothing: a flood of them must not fill the audit log.
    request.state.is_audited = True
    return services_of(request).gatekeeper.start_sign_in()


@router.post(
    "/sign-ins:complete",
    status_code=status.HTTP_201_CREATED,
    response_model=OpenedSessionOut,
    responses=problems(
        s403="The sign-in is not valid, or the provider refused it.",
        s422="The request is not valid.",
        s429="There were too many failed sign-ins from this address.",
        s503=_AWAY,
    ),
)
def complete_sign_in(request: Request, response: Response, body: CompleteSignInIn) -> Any:
    """Complete a sign-in with the provider's answer, and open a session.

    Each attempt can be completed only once.
    """
    gatekeeper = services_of(request).gatekeeper
    session, caller, token = gatekeeper.complete_sign_in(request, body)
    response.headers["Location"] = "/sessions/current"
    return {**show_caller(caller, gatekeeper), "expires_at": session.expires_at, "token": token}
