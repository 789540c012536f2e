"""The process of ``refeed api``: the HTTP app over one deployment."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

import structlog
from fastapi import FastAPI

from api.app import make_app
from api.audit import AuditTrail
from api.auth import ClaimReader, Gatekeeper
from api.sign_in import SignInDesk
from api.state import Services, state_of
from app.closing import ClosingStep
from app.console import BesideConsole, find_own_api, find_stranger
from app.deployment import Deployment
from connectors.oidc.jwks import SigningKeys
from connectors.oidc.provider import Provider, ProviderClient
from connectors.oidc.tokens import IdTokenVerifier, TokenVerifier
from console.app import Console
from inventory.backups import TopicBackups
from jobs.sessions import SessionDesk
from jobs.user_sessions import UserSessionDesk
from model.settings import Settings
from rollout.manifests.schedules import ScheduleService

_LOG: Final = structlog.get_logger()


def create_app(
    settings: Settings, *, deployment: Deployment | None = None, interrupt_at_exit: bool = False
) -> FastAPI:
    """Return the service; api.server serves it, on loopback alone while it has neither a key nor an issuer.

    Running backfills go on when it ends and are found again when it starts, unless ``interrupt_at_exit``: then
    they are FAILED as interrupted, and a retry goes on from there. ``deployment`` is for callers that have opened
    one; it is closed with the app.
    """

    @contextmanager
    def open_whole() -> Iterator[Services]:
        # One that is closed is not opened again: an app that is served a second time gets a new one.
        whole = deployment or Deployment(settings, interrupt_at_exit=interrupt_at_exit)
        with closing(console), open_services(whole) as services:
            yield services

    app = make_app(settings, open_whole)
    console = Console(find_own_api, find_stranger=find_stranger, is_stopping=lambda: state_of(app).is_stopping)
    app.add_middleware(BesideConsole, console=console)
    return app


@contextmanager
def open_services(deployment: Deployment) -> Iterator[Services]:
    """Open and start what the API answers from; leaving the block closes the deployment.

    Raises:
        JavaNotFoundError: there is no Java for Spark.
        PubSubError: there are no credentials for Pub/Sub.
        StoreUnavailableError: the job store does not answer.
    """
    with deployment:
        gatekeeper = open_gatekeeper(deployment)
        if gatekeeper.is_open():
            _LOG.warning("there is no key and no issuer: only programs on this machine may call the API")
        audit = AuditTrail(deployment.store)
        deployment.closers.add(ClosingStep.AUDIT, audit.close)
        services = Services(
            backfills=deployment.backfills,
            merges=deployment.merges,
            compactions=deployment.compactions,
            inventory=deployment.inventory,
            backups=_assemble_backups(deployment),
            sources=deployment.sources,
            streams=deployment.streams,
            snapshots=deployment.snapshots,
            updates=deployment.updates,
            releases=deployment.known_releases,
            checks=deployment.checks,
            templates=deployment.templates,
            manifests=deployment.manifests,
            schedules=ScheduleService(deployment.store),
            uploads=deployment.upload_status,
            changes=deployment.changes,
            stream_changes=deployment.stream_changes,
            store=deployment.store,
            gatekeeper=gatekeeper,
            audit=audit,
            prepare=deployment.launcher.prepare,
            background_problems=deployment.background_problems,
        )
        deployment.start()
        yield services


def _assemble_backups(deployment: Deployment) -> TopicBackups:
    """Return what begins and ends the backup of topics."""
    settings = deployment.settings
    return TopicBackups(
        deployment.pubsub,
        secret=settings.replay_secret(),
        ack_deadline_seconds=settings.ack_deadline_seconds,
        creates_topics=settings.is_embedded,
        note=deployment.store.note_event,
    )


def open_gatekeeper(deployment: Deployment) -> Gatekeeper:
    """Return what authenticates callers: by the deployment's keys, and by tokens where it has an issuer."""
    settings = deployment.settings
    verifier = user_sessions = sign_ins = None
    if settings.oidc_issuer is not None:
        keys = SigningKeys(settings.oidc_issuer, settings.oidc_jwks_url)
        verifier = TokenVerifier(settings.oidc_issuer, settings.oidc_audience, keys)
        if settings.sign_in.client_id is not None:
            user_sessions, sign_ins = _open_sign_in(deployment, settings.oidc_issuer, keys, verifier)
    return Gatekeeper(
        deployment.keyring,
        sessions=SessionDesk(deployment.store, deployment.keyring),
        verifier=verifier,
        claims=ClaimReader(settings.oidc_scopes_claim, settings.oidc_grants),
        per_minute=settings.rate_limit_per_minute,
        user_sessions=user_sessions,
        sign_ins=sign_ins,
    )


def _open_sign_in(
    deployment: Deployment, issuer: str, keys: SigningKeys, verifier: TokenVerifier
) -> tuple[UserSessionDesk, SignInDesk]:
    """Return what signs people in with the issuer's provider, and keeps their sessions."""
    wanted = deployment.settings.sign_in
    assert wanted.client_id is not None, "the settings are whole"
    assert wanted.console_url is not None, "the settings are whole"
    client = ProviderClient(
        id=wanted.client_id,
        secret=wanted.client_secret,
        redirect_uri=f"{wanted.console_url}/sign-in/callback",
        scopes=wanted.scopes,
        parameters=wanted.parameters,
    )
    provider = Provider(issuer, client)
    sessions = UserSessionDesk(
        deployment.store,
        provider,
        verifier=verifier,
        id_verifier=IdTokenVerifier(TokenVerifier(issuer, [wanted.client_id], keys), wanted.client_id),
        bearer=wanted.session_token,
    )
    sign_ins = SignInDesk(
        deployment.store,
        provider,
        sessions,
        secret=deployment.settings.replay_secret(),
        signed_out_url=f"{wanted.console_url}/sign-in",
    )
    return sessions, sign_ins
