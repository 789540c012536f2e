"""The page at /docs: Swagger UI, whose files this service serves itself, so that it works without the internet."""

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

router: Final = APIRouter()

# swagger-ui-dist's own files, unchanged; of the package that brings them only these are used.
_PACKAGE: Final = "fastapi_swagger.resources"
_MEDIA_TYPES: Final = {
    "swagger-ui.css": "text/css",
    "swagger-ui-bundle.js": "text/javascript",
    "favicon-32x32.png": "image/png",
}
PUBLIC_PATHS: Final = frozenset({"/docs", *(f"/docs/{name}" for name in _MEDIA_TYPES)})
# Without a validator: Swagger UI would send the document to its maker's.
_SCRIPT: Final = """
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
  deepLinking: true,
  validatorUrl: null,
})
"""
# Relative addresses: a proxy may serve the API under a path of its own.
_PAGE: Final = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1.0">
<title>Refeed - Swagger UI</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
<link rel="icon" href="docs/favicon-32x32.png">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script>{_SCRIPT}</script>
</body>
</html>
"""
_SCRIPT_HASH: Final = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        f"script-src 'self' 'sha256-{_SCRIPT_HASH}'",
        # Swagger UI sets styles in its elements, and its pictures are data in its style sheet.
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)


@router.get("/docs", include_in_schema=False)
async def get_docs() -> HTMLResponse:
    """Show every operation and try it, from the OpenAPI document."""
    return HTMLResponse(_PAGE, headers={"Content-Security-Policy": _POLICY})


@router.get("/docs/{name}", include_in_schema=False)
def get_docs_file(name: str) -> Response:
    """Return one file of the page, which browsers may cache for an hour because it is the same for everybody."""
    if name not in _MEDIA_TYPES:
        raise HTTPException(404, "The page has no such file.")
    return Response(_read(name), media_type=_MEDIA_TYPES[name], headers={"Cache-Control": "public, max-age=3600"})


@cache
def _read(name: str) -> bytes:
    return files(_PACKAGE).joinpath(name).read_bytes()
