"""Every page of docs/reference, and the function that writes it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.guards.reference.commands import render_commands
from tests.guards.reference.errors import render_error_codes
from tests.guards.reference.events import render_events
from tests.guards.reference.functions import render_functions
from tests.guards.reference.http import render_http
from tests.guards.reference.manifests import render_manifest_fields
from tests.guards.reference.markdown import ROOT
from tests.guards.reference.monitoring import render_alerts, render_metrics
from tests.guards.reference.openapi import render_openapi
from tests.guards.reference.settings import render_settings

FOLDER: Final[Path] = ROOT / "docs" / "reference"
PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "commands.md": render_commands,
    "alerts.md": render_alerts,
    "error-codes.md": render_error_codes,
    "events.md": render_events,
    "http.md": render_http,
    "manifest-fields.md": render_manifest_fields,
    "metrics.md": render_metrics,
    "openapi.json": render_openapi,
    "settings.md": render_settings,
    "sql-functions.md": render_functions,
}
