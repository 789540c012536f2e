"""Launches templates: each makes what its kind makes, by the service and with the scopes of that kind."""

from collections.abc import Callable, Mapping
from typing import Any

from backfill.steer.service import BackfillService
from model.principal import PLAN, READ, RUN, STREAMS_OPERATE, STREAMS_READ, Principal
from model.stream_options import StreamKind
from reporting.service import MergeService
from rollout.service import StreamService
from rollout.templates import BrokenTemplate, LaunchedTemplate, Template, Templates, parse_request


class TemplateService:
    """The templates of a deployment, and the services that launch them.

    Raises:
        ForbiddenError: any call whose ``principal`` lacks the scope.
        FolderUnavailableError: any call, when the folder of templates does not answer.
    """

    def __init__(
        self, templates: Templates, *, backfills: BackfillService, merges: MergeService, streams: StreamService
    ) -> None:
        def launch_stream(request: Any, principal: Principal, key: str | None) -> str:
            return streams.launch(request, principal=principal, idempotency_key=key).name

        self._templates = templates
        self._creators: Mapping[str, Callable[[Any, Principal, str | None], str]] = {
            "backfill": lambda request, principal, key: (
                backfills.create(request, principal=principal, idempotency_key=key).id
            ),
            "merge": lambda request, principal, key: (
                merges.create(request.parse(), principal=principal, idempotency_key=key).id
            ),
            **dict.fromkeys(StreamKind, launch_stream),
        }

    def list_templates(self, *, principal: Principal) -> list[Template | BrokenTemplate]:
        """Return all templates, by their names, also those with faults."""
        principal.require_any(READ, STREAMS_READ)
        return self._templates.list_templates()

    def get_template(self, name: str, *, principal: Principal) -> Template:
        """Return one template.

        Raises:
            TemplateNotFoundError: there is none of this name.
            TemplateInvalidError: it has faults; ``details["errors"]`` has all of them.
        """
        principal.require_any(READ, STREAMS_READ)
        return self._templates.get_template(name)

    def launch(
        self,
        name: str,
        parameters: Mapping[str, Any],
        *,
        principal: Principal,
        idempotency_key: str | None = None,
    ) -> LaunchedTemplate:
        """Launch what the template describes, as its kind is created without a template.

        Raises:
            TemplateNotFoundError, TemplateInvalidError: as :meth:`get_template`.
            RequestInvalidError: parameters are wrong, or what they make of the request; all of them are named.
            RefeedError: as creating it without a template.
        """
        # A caller who may create nothing learns no template's name.
        principal.require_any(PLAN, STREAMS_OPERATE, RUN)
        template = self._templates.get_template(name)
        made = self.create(template.kind, template.render(parameters), principal, idempotency_key)
        return LaunchedTemplate(template.name, template.kind, made)

    def create(self, kind: str, document: Mapping[str, Any], principal: Principal, key: str | None) -> str:
        """Create what the request of a kind describes, and return the id of a job, or the name of a stream.

        Raises:
            RequestInvalidError: it is no request of the kind; all faults are named.
            RefeedError: as the kind's service.
        """
        return self._creators[kind](parse_request(kind, document), principal, key)
