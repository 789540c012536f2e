"""What every answer of a service has to be like, by its own document."""

from typing import Final

from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

CHECKS: Final = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
