"""Each operation takes the scopes that the OpenAPI document names, and no other."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from model.principal import ADMIN, PLAN, SCOPES
from tests.document import openapi_document

DOCUMENT = openapi_document()
QUERY = {"query": "SELECT data FROM backup.messages", "topic": "replay"}
SCHEDULE = b"kind: Schedule\nname: x\ncron: 15 2 * * *\njob: {kind: merge}\n"
BODIES = {
    "planBackfill": QUERY,
    "createBackfill": QUERY,
    "checkQuery": {"query": "SELECT 1"},
    "changeJob": {"description": "x"},
    "launchStream": {"name": "x", "kind": "backup"},
    "changeStream": {"options": {"slots": 2}},
    "checkStream": {"options": {"slots": 2}},
    "updateStream": {"options": {"slots": 2}},
    "rollBackStream": {"snapshot": "ss_01K0ABCDEFGHJKMNPQRSTVWXYZ"},
    "launchTemplate": {"parameters": {}},
    "pruneManifests": {"keep": ["x"]},
}
# Which of the scopes they need depends on what is there: the approval's action, the template, a dry run.
# Who may plan may steer a dry run.
DRY_RUNS = {"cancelJob", "retryJob"}
DEPENDS = {"launchTemplate", "approveApproval", "rejectApproval", "createMerge"}


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            if any(each["bearer"] for each in operation.get("security", ())):
                yield method, path, operation


@pytest.fixture(scope="module")
def api(start_api: Callable[..., Any]) -> Any:
    return start_api(REFEED_RATE_LIMIT_PER_MINUTE="0")


def call(api: Any, client: Any, method: str, path: str, operation: dict[str, Any]) -> Any:
    if operation["operationId"] in DRY_RUNS:
        path = path.replace("{job_id}", "mg_00000000000000000000000000")
    for each in operation.get("parameters", ()):
        if each["in"] == "path":
            examples = each["schema"].get("examples", ["1" if each["schema"].get("type") == "integer" else "x"])
            path = path.replace(f"{{{each['name']}}}", str(examples[0]))
    named = {"topic": "orders", "source": "orders", "from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}
    given = {
        each["name"]: named.get(each["name"], "x")
        for each in operation.get("parameters", ())
        if each["in"] == "query" and each["required"]
    }
    body: dict[str, Any] = {}
    if operation["operationId"] in {"applyManifest", "planManifest"}:
        body = {"content": SCHEDULE, "headers": {"Content-Type": "application/yaml"}}
    elif "requestBody" in operation:
        body = {"json": BODIES.get(operation["operationId"], {})}
    return client.request(method, path, params=given, **body)


def test_an_operation_refuses_every_other_scope_and_takes_each_of_its_own(api: Any) -> None:
    wrong = []
    for method, path, operation in operations():
        name = operation["operationId"]
        own = [tuple(each["bearer"]) for each in operation["security"]]
        others = set(SCOPES) - {ADMIN} - {scope for each in own for scope in each}
        with api.client(api.make_key(*others, name="other")) as client:
            answer = call(api, client, method, path, operation)
            if answer.status_code != 403 and name not in DEPENDS:
                wrong.append((name, "others", answer.status_code, answer.text[:200]))
        for scopes in own:
            with api.client(api.make_key(*scopes, name="own")) as client:
                answer = call(api, client, method, path, operation)
                if answer.status_code == 403 and name not in DEPENDS:
                    wrong.append((name, scopes, answer.status_code, answer.text[:200]))
    assert wrong == []


@pytest.mark.parametrize("verb", ["cancel", "retry"])
@pytest.mark.parametrize("prefix", ["bf", "cp"])
def test_who_may_plan_steers_dry_runs_alone(api: Any, verb: str, prefix: str) -> None:
    with api.client(api.make_key(PLAN, name="planner")) as client:
        assert client.post(f"/jobs/{prefix}_00000000000000000000000000:{verb}").status_code == 403
