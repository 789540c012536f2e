"""The OpenAPI document, as programs read it."""

import json

from tests.document import openapi_document


def render_openapi() -> str:
    """Return the document as it is served, by lines that a review can follow."""
    return json.dumps(openapi_document(), indent=1, ensure_ascii=False) + "\n"
