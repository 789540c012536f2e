"""Applies the template files of earlier releases as manifests, once."""

import json
from collections.abc import Mapping
from datetime import date
from typing import Any, Final

import structlog

from jobs.files import Files
from jobs.store import JobStore
from jobs.store.events import MANIFEST
from model.errors import RefeedError
from model.plain_yaml import YamlFaultsError, read_yaml
from model.principal import RUN, SCHEDULES_APPLY, STREAMS_OPERATE, Principal
from rollout.manifests.service import ManifestService
from rollout.manifests.template import KIND

_SUFFIX: Final = ".yaml"
# A person who can write to the home may do everything.
_APPLIER: Final = Principal("REFEED_TEMPLATES", frozenset({SCHEDULES_APPLY, RUN, STREAMS_OPERATE}))
_OF_LAUNCH: Final = ("kind", "release", "request")
# Errors of the storage, of the YAML or JSON, and of the resulting manifest.
_FAULTS: Final = (OSError, YamlFaultsError, ValueError, TypeError, RecursionError, RefeedError)
_LOG: Final = structlog.get_logger()


def take_over_templates(files: Files, store: JobStore, service: ManifestService) -> None:
    """Apply each template of the folder ``files`` whose name no manifest has ever had.

    After that only the manifest counts, and the file is not read again. A faulty file does not stop the others.
    """
    try:
        files_of_templates = [each for each in files.list() if each.endswith(_SUFFIX)]
    except OSError as exc:
        _LOG.warning("the folder of templates can't be read", folder=str(files), problem=str(exc))
        return
    for file in files_of_templates:
        name = file.removesuffix(_SUFFIX)
        if not store.list_last_events(limit=1, of=(MANIFEST, name)):
            try:
                service.apply(name, _convert(read_yaml(files.read(file)).value), principal=_APPLIER)
            except _FAULTS as exc:
                _LOG.warning("the template was not applied as a manifest", file=file, problem=str(exc))


def _convert(document: Any) -> bytes:
    """Convert a template file of an earlier release to a manifest; the service reports its faults."""
    if not isinstance(document, Mapping):
        return json.dumps(document, default=_iso_text).encode()
    rest = {name: value for name, value in document.items() if name not in _OF_LAUNCH and value is not None}
    launch = {name: document[name] for name in _OF_LAUNCH if document.get(name) is not None}
    return json.dumps({**rest, "kind": KIND, "launch": launch}, default=_iso_text).encode()


def _iso_text(value: Any) -> str:
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"{value!r} is not a plain value")
