"""Each operation takes the scopes that the OpenAPI document names, and no other."""

import pytest

from model.change import ChangeRequest
from model.job import new_job_id
from model.principal import (
    ADMIN,
    PLAN,
    READ,
    ROLLOUTS_APPLY,
    RUN,
    SCHEDULES_APPLY,
    SCOPES,
    STREAMS_OPERATE,
    STREAMS_READ,
    Principal,
)
from model.stream_options import StreamKind
from model.stream_update import UpdateRequest
from tests.document import openapi_document

DOCUMENT = openapi_document()
QUERY = {"query": "SELECT data FROM backup.messages", "topic": "replay"}
SCHEDULE = b"kind: Schedule\nname: x\ncron: 15 2 * * *\njob: {kind: merge}\n"
BODIES = {
    "createBackfill": QUERY,
    "checkQuery": {"query": "SELECT 1"},
    "changeJob": {"description": "x"},
    "launchStream": {"name": "x", "kind": "backup"},
    "changeStream": {"options": {"slots": 2}},
    "updateStream": {"options": {"slots": 2}},
    "rollBackStream": {"snapshot": "ss_01K0ABCDEFGHJKMNPQRSTVWXYZ"},
    "launchTemplate": {"parameters": {}},
}
MERGE = {"source": None, "since": None, "dry_run": False, "sources": ["orders"]}
# Which of the scopes they need depends on what is there: the change, the template, a dry run.
# The kind of job that a scope is for, by the beginning of its id: who may plan may steer a merge's dry run.
PREFIXES = {PLAN: "mg", STREAMS_READ: "up", STREAMS_OPERATE: "ch", SCHEDULES_APPLY: "ch", ROLLOUTS_APPLY: "ro"}
# Who has one of them alone may only validate: that of a schedule takes the scopes of its job too.
VALIDATE = {READ, PLAN, STREAMS_READ, SCHEDULES_APPLY, ROLLOUTS_APPLY}
DEPENDS = {"launchTemplate", "createMerge", "rejectJob"}


def operations():
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            if any(each["bearer"] for each in operation.get("security", ())):
                yield method, path, operation


@pytest.fixture(scope="module")
def api(start_api):
    return start_api(REFEED_RATE_LIMIT_PER_MINUTE="0")


def call(client, method, path, operation, prefix, *, only_validates):
    path = path.replace("{job_id}", f"{prefix}_00000000000000000000000000")
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
    body = {}
    if only_validates and any(each["name"] == "validate_only" for each in operation.get("parameters", ())):
        given["validate_only"] = "true"
    if operation["operationId"] == "applyManifests":
        body = {"content": SCHEDULE, "headers": {"Content-Type": "application/yaml"}}
    elif "requestBody" in operation:
        body = {"json": BODIES.get(operation["operationId"], {})}
    return client.request(method, path, params=given, **body)


def test_an_operation_refuses_every_other_scope_and_takes_each_of_its_own(api):
    wrong = []
    for method, path, operation in operations():
        name = operation["operationId"]
        own = [tuple(each["bearer"]) for each in operation["security"]]
        own_scopes = {scope for each in own for scope in each}
        others = set(SCOPES) - {ADMIN} - own_scopes
        with api.client(api.make_key(*others, name="other")) as client:
            for only_validates in (False, True):
                prefix = "mg" if PLAN in own_scopes else "bf"
                answer = call(client, method, path, operation, prefix, only_validates=only_validates)
                if answer.status_code != 403 and name not in DEPENDS:
                    wrong.append((name, "others", answer.status_code, answer.text[:200]))
        for scopes in own:
            with api.client(api.make_key(*scopes, name="own")) as client:
                prefix, only_validates = PREFIXES.get(scopes[0], "bf"), scopes[0] in VALIDATE
                answer = call(client, method, path, operation, prefix, only_validates=only_validates)
                if answer.status_code == 403 and name not in DEPENDS:
                    wrong.append((name, scopes, answer.status_code, answer.text[:200]))
    assert wrong == []


@pytest.mark.parametrize(
    ("path", "plans", "makes"), [("/backfills", PLAN, RUN), ("/streams/x:update", STREAMS_READ, STREAMS_OPERATE)]
)
def test_who_may_only_plan_makes_nothing_and_who_may_only_make_plans_nothing(api, path, plans, makes):
    body = QUERY if makes == RUN else {}
    for scope, params in ((plans, {}), (makes, {"validate_only": "true"})):
        with api.client(api.make_key(scope, name="one")) as client:
            assert client.post(path, json=body, params=params).status_code == 403


@pytest.mark.parametrize(
    ("scope", "method", "part", "prefixes"),
    [
        (PLAN, "POST", ":cancel", ("bf", "cp")),
        (PLAN, "POST", ":retry", ("bf", "cp")),
        (READ, "GET", "", ("up", "ro", "rs")),
        (READ, "GET", ":watch", ("up", "ro", "rs")),
        (STREAMS_READ, "GET", "", ("bf", "mg", "cp")),
        (STREAMS_READ, "GET", ":watch", ("bf", "mg", "cp")),
        (STREAMS_OPERATE, "POST", ":revert", ("bf",)),
        (STREAMS_OPERATE, "GET", "", ("bf", "mg", "cp", "up", "rs")),
        (STREAMS_OPERATE, "POST", ":approve", ("bf",)),
        (PLAN, "GET", "", ("ch", "ap")),
        (ROLLOUTS_APPLY, "POST", ":reject", ("ch", "ap")),
        (RUN, "POST", ":revert", ("up", "ro")),
    ],
)
def test_the_kind_of_a_job_decides_between_the_scopes(api, scope, method, part, prefixes):
    with api.client(api.make_key(scope, name="one")) as client:
        for prefix in prefixes:
            answer = client.request(method, f"/jobs/{prefix}_00000000000000000000000000{part}")
            assert (prefix, answer.status_code) == (prefix, 403)


def test_a_list_has_the_kinds_that_the_caller_may_see(api):
    earlier = {job.id for job in api.store.list_jobs(limit=1000)}

    def ids(client, **params):
        return [job["id"] for job in client.get("/jobs", params=params).json()["jobs"] if job["id"] not in earlier]

    api.store.launch_stream("backup", StreamKind.BACKUP, actor="ann")
    update = api.store.create_update("backup", UpdateRequest(None, {"slots": 8}, {}), actor="ann").id
    # That of a rollout is an update, too.
    rollout = api.store.insert(new_job_id("ro"), "update", api.store.get(update).request, actor="ann").id
    merge = api.store.insert(new_job_id("mg"), "merge", MERGE, actor="ann").id
    ann = Principal("key:ann", frozenset({STREAMS_OPERATE}))
    asked = ChangeRequest("stream", "backup", "cancel", {}, "Cancel backup.", 1, STREAMS_OPERATE, requester=ann)
    change = api.store.create_change(asked).id
    kinds = {READ: ("merge", [merge], "update"), STREAMS_READ: ("update", [rollout, update], "merge")}
    kinds |= {STREAMS_OPERATE: ("change", [], "merge"), SCHEDULES_APPLY: ("change", [], "update")}
    for scope, (kind, found, other) in kinds.items():
        with api.client(api.make_key(scope, name="one")) as client:
            assert (ids(client), ids(client, kind=kind)) == ([change, *found], found or [change])
            assert client.get("/jobs", params={"kind": [kind, other]}).status_code == 403
    with api.client(api.make_key(READ, STREAMS_READ, name="both")) as client:
        assert ids(client) == [change, merge, rollout, update]
