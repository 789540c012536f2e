"""The OpenAPI document of a service, made once a process: it takes a second."""

import functools
from typing import Any

from app.service import create_app
from model.settings import read_settings


@functools.cache
def openapi_document() -> dict[str, Any]:
    """Return the document that all tests share: copy it before a change."""
    return create_app(read_settings({"REFEED_HOME": "/nonexistent"})).openapi()
