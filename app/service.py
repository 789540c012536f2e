"""The process of ``refeed api``: the HTTP app over one deployment."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import structlog
from fastapi import FastAPI

from api.app import make_app
from api.audit import AuditTrail
from api.auth import ClaimReader, Gatekeeper
from api.state import Services
from app.closing import ClosingStep
from app.deployment import Deployment
from connectors.oidc.jwks import SigningKeys
from connectors.oidc.tokens import TokenVerifier
from model.settings import Settings

_LOG: Final = structlog.get_logger()


def create_app(
    settings: Settings, *, deployment: Deployment | None = None, interrupt_at_exit: bool = False
) -> FastAPI:
    """Return the service; api.server serves it, on loopback alone while it has neither a key nor an issuer.

    Running backfills go on when it ends and are found again when it starts, unless ``interrupt_at_exit``: then
    they are FAILED as interrupted, and a retry goes on from there. ``deployment`` is for callers that have opened
    one; it is closed with the app.
    """

    def open_whole() -> AbstractContextManager[Services]:
        # One that is closed is not opened again: an app that is served a second time gets a new one.
        return open_services(deployment or Deployment(settings, interrupt_at_exit=interrupt_at_exit))

    return make_app(settings, open_whole)


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
            _LOG.warning("there is no key and no issuer: every program on this machine may call, and nothing else")
        audit = AuditTrail(deployment.store)
        deployment.closers.add(ClosingStep.AUDIT, audit.close)
        services = Services(
            backfills=deployment.backfills,
            merges=deployment.merges,
            inventory=deployment.inventory,
            streams=deployment.streams,
            snapshots=deployment.snapshots,
            updates=deployment.updates,
            releases=deployment.known_releases,
            checks=deployment.checks,
            templates=deployment.templates,
            manifests=deployment.manifests,
            store=deployment.store,
            gatekeeper=gatekeeper,
            audit=audit,
            prepare=deployment.launcher.prepare,
        )
        deployment.start()
        yield services


def open_gatekeeper(deployment: Deployment) -> Gatekeeper:
    """Return what tells callers apart: by the deployment's keys, and by tokens where it has an issuer."""
    settings = deployment.settings
    verifier = None
    if settings.oidc_issuer is not None:
        keys = SigningKeys(settings.oidc_issuer, settings.oidc_jwks_url)
        verifier = TokenVerifier(settings.oidc_issuer, settings.oidc_audience, keys)
    return Gatekeeper(
        deployment.keyring,
        verifier=verifier,
        claims=ClaimReader(settings.oidc_scopes_claim, settings.oidc_grants),
        per_minute=settings.rate_limit_per_minute,
    )
