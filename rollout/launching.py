"""Launches templates: each makes what its kind makes, by the service and with the scopes of that kind."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from backfill.steer.service import BackfillService
from jobs.store import JobStore
from model.errors import RequestInvalidError, fault_at
from model.principal import PLAN, RUN, STREAMS_OPERATE, Principal
from model.stream_options import StreamKind
from reporting.service import MergeService
from rollout.manifests.lookup import get_manifest
from rollout.manifests.slots import Slot
from rollout.manifests.template import KIND, LAUNCHES, TemplateManifest, read_template
from rollout.service import StreamService


class TemplateLaunchOut(BaseModel):
    """The launched job or stream."""

    template: str = Field(description="The template's name.")
    kind: str = Field(description="The kind of the job or stream.")
    id: str = Field(description="The job's id, or the stream's name.")


class TemplateService:
    """The manifests that are templates, and the services that launch what they describe."""

    def __init__(
        self, store: JobStore, *, backfills: BackfillService, merges: MergeService, streams: StreamService
    ) -> None:
        def launch_stream(request: Any, principal: Principal, key: str | None) -> str:
            return streams.launch(request, principal=principal, idempotency_key=key).name

        self._store = store
        self._creators: Mapping[str, Callable[[Any, Principal, str | None], str]] = {
            "backfill": lambda request, principal, key: (
                backfills.create(request, principal=principal, idempotency_key=key).id
            ),
            "merge": lambda request, principal, key: (
                merges.create(request.parse(), principal=principal, idempotency_key=key).id
            ),
            **dict.fromkeys(StreamKind, launch_stream),
        }

    def read(self, name: str) -> TemplateManifest:
        """Return the template of this name.

        Raises:
            ManifestNotFoundError: there is none.
            ManifestInvalidError: this release does not take it.
        """
        return read_template(get_manifest(self._store, name, KIND).document)

    def launch(
        self,
        name: str,
        parameters: Mapping[str, Any],
        *,
        principal: Principal,
        idempotency_key: str | None = None,
        slot: Slot | None = None,
    ) -> TemplateLaunchOut:
        """Launch what the template describes, as its kind is created without a template; ``slot`` is a schedule's.

        Raises:
            ForbiddenError: ``principal`` may create nothing, or not this.
            ManifestNotFoundError, ManifestInvalidError: as :meth:`read`.
            RequestInvalidError: parameters are wrong, or what they make of the request; all of them are named.
            RefeedError: as creating it without a template.
        """
        # A caller who may create nothing learns no template's name.
        principal.require_any(PLAN, STREAMS_OPERATE, RUN)
        template = self.read(name)
        kind = template.launch.kind
        request = template.render(parameters)
        if slot is not None and kind == "backfill":
            request = {**request, **slot.times(request)}
        made = self.create(kind, request, principal, idempotency_key)
        return TemplateLaunchOut(template=name, kind=kind, id=made)

    def create(self, kind: str, document: Mapping[str, Any], principal: Principal, key: str | None) -> str:
        """Create what the request of a kind describes, and return the id of a job, or the name of a stream.

        Raises:
            RequestInvalidError: it is no request of the kind; all faults are named.
            RefeedError: as the kind's service.
        """
        return self._creators[kind](parse_request(kind, document), principal, key)


def parse_request(kind: str, document: Mapping[str, Any]) -> Any:
    """Return the request of a job of this kind, as the API reads it from JSON.

    Raises:
        RequestInvalidError: it is none; ``details["errors"]`` has all that is wrong.
    """
    try:
        return TypeAdapter(LAUNCHES[kind]).validate_json(json.dumps(document))
    except ValidationError as exc:
        errors = [
            fault_at("/".join(("/request", *map(str, each["loc"]))), f"field_{each['type']}", each["msg"])
            for each in exc.errors()
        ]
        message = "; ".join(f"{error['pointer']}: {error['message']}" for error in errors)
        raise RequestInvalidError(message, errors=errors) from exc
