"""Every route against its own description, with good and bad values, by those who may and those who may not."""

import json
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from http import HTTPStatus

import jsonschema_rs
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection

from api.auth import is_public, is_sign_in
from api.routes_former import router as former
from api.server import MAX_HEAD_BYTES
from app.service import create_app
from connectors.lake.archive import LakeArchive
from model.job import new_job_id
from model.principal import ADMIN, APPROVE, READ
from model.settings import read_settings
from tests.archive import messages, write_commits
from tests.document import openapi_document
from tests.draws import equal_draws
from tests.waiting import wait_until
from tests.worlds.documented import CHECKS

__all__ = ["equal_draws"]
EXAMPLES = 12
# Connections are used again.
SESSION = requests.Session()
NOW = datetime.now(UTC)
PARAMETERS = {
    "from": {"type": "TIMESTAMP", "value": (NOW - timedelta(days=1)).isoformat()},
    "to": {"type": "TIMESTAMP", "value": (NOW + timedelta(days=1)).isoformat()},
}
QUERY = (
    "SELECT data, attributes, message_id FROM backup.messages "
    "WHERE _PARTITIONTIME >= @from AND _PARTITIONTIME < @to AND topic = 'orders'"
)
OF_RANGE = {"source_topic", "from", "to", "source_attributes", "where"}
# The ids of jobs that a path may have.
JOB_IDS = ("backfill_id", "job_id")
# What follows one that lives goes on for as long as that lives.
FOLLOWERS = ("watchJob", "readJobLogs")


def operations():
    """Every route of the document; the key is each test's own, so that none is made up for it."""
    document = deepcopy(DOCUMENT)
    for methods in document["paths"].values():
        for operation in methods.values():
            operation.pop("security", None)
    # Which fault of several is told first is not the document's to say; that bad values are refused is.
    config = schemathesis.Config.from_dict({"checks": {"negative_data_rejection": {"expected-statuses": ["4xx"]}}})
    found = schemathesis.openapi.from_dict(document, config=config)
    return [operation.ok() for operation in found.get_all_operations()]


DOCUMENT = openapi_document()
OPERATIONS = operations()


def test_a_version_s_etag_is_documented_where_the_resource_has_one_alone():
    described = [
        (operation["operationId"], status, response)
        for methods in DOCUMENT["paths"].values()
        for operation in methods.values()
        for status, response in operation["responses"].items()
        if "for If-Match" in response.get("headers", {}).get("ETag", {}).get("description", "")
    ]
    assert ("getBackfill", "200") in {(operation, status) for operation, status, _ in described}
    for operation, status, response in described:
        schema = response["content"]["application/json"]["schema"]
        for shape in shapes_of(schema):
            assert "etag" in shape["properties"], (operation, status)


# Actions about a version of nothing: they create, only look, or decide about what was asked for by its id.
NO_CHANGES = {"createSnapshot", "launchTemplate", "attachTopic", "detachTopic"}
NO_CHANGES |= {"approveApproval", "rejectApproval", "deleteSnapshot"}
# They answer 201 or 202 for a place of their own, or for what is asked of something that is there.
NO_CREATES = {"openSession", "startSignIn", "completeSignIn", "drainStream", "cancelStream", "deleteSnapshot"}


def test_each_change_takes_the_version_and_each_create_a_key():
    names = {"change": set(), "create": set()}
    lacks = set()
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            if method == "get":
                continue
            name = operation["operationId"]
            taken = {each["name"].lower() for each in operation.get("parameters", ())}
            if "{" in path and name not in NO_CHANGES:
                names["change"].add(name)
                lacks |= set() if "if-match" in taken and "412" in operation["responses"] else {("If-Match", name)}
            if {"201", "202"} & set(operation["responses"]) and name not in NO_CREATES:
                names["create"].add(name)
                lacks |= set() if "idempotency-key" in taken else {("Idempotency-Key", name)}
    assert lacks == set()
    assert {"changeJob", "changeStream", "pauseSchedule", "removeManifest"} <= names["change"]
    assert {"createBackfill", "createMerge", "launchStream", "createSnapshot"} <= names["create"]


def test_every_example_is_what_its_shape_says():
    shapes = DOCUMENT["components"]["schemas"]
    given = {name: shape["examples"] for name, shape in shapes.items() if "examples" in shape}
    assert {"Backfill", "Merge", "BackfillCreate"} <= set(given)
    for name, examples in given.items():
        whole = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
        validator = jsonschema_rs.validator_for(whole)
        wrong = [str(error.message) for example in examples for error in validator.iter_errors(example)]
        assert wrong == [], name


def shapes_of(schema):
    """The objects that a schema is one of."""
    if "$ref" in schema:
        return shapes_of(DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    either = schema.get("anyOf", schema.get("oneOf"))
    return [schema] if either is None else [shape for each in either for shape in shapes_of(each)]


@pytest.fixture(scope="module")
def api(start_api):
    api = start_api(REFEED_RATE_LIMIT_PER_MINUTE="0", REFEED_BODY_TIMEOUT_SECONDS="60")
    write_archive(api.home)
    write_registry(api.home)
    yield api
    SESSION.close()


@pytest.fixture(scope="module")
def keys(api):
    scopes = {"admin": ADMIN, "reader": READ, "approver": APPROVE}
    return {name: api.make_key(scope, name=name) for name, scope in scopes.items()}


@pytest.fixture(scope="module")
def jobs(api, keys):
    """Ids of backfills, and of jobs of every kind, by their name in a path: some have ended, and some live."""
    with api.client(keys["admin"]) as client:

        def make(path, body):
            response = client.post(path, json=body)
            assert response.status_code == 202, response.text
            return str(response.json()["id"])

        def backfill(**changes):
            body = {"query": QUERY, "parameters": PARAMETERS, "topic": "replay", "allow_overlap": True, **changes}
            return make("/backfills", body)

        paused = backfill(start_paused=True)
        ended = [backfill(), backfill(labels={"ticket": "42"})]
        merged = [make("/merges", {}), make("/merges", {"source": "orders", "dry_run": True})]
        compacted = [new_job_id("cp") for _ in range(2)]
        for job_id in compacted:
            # Schedules make them.
            api.store.insert(job_id, "compaction", {"tables": ["archive"]}, actor="schedule:compactions")
        every = [*ended, *merged, *compacted]
        wait_until(
            lambda: all(client.get(f"/jobs/{job_id}").json()["state"] == "FAILED" for job_id in every),
            "they fail, because nothing launches them",
            every_seconds=0.05,
        )
    return {"backfill_id": {"ended": ended, "living": [paused]}, "job_id": {"ended": every, "living": [paused]}}


def write_registry(home):
    (home / "registry").mkdir()
    source = "{topic: orders, schema: inferred, key: number}"
    (home / "registry" / "sources.yaml").write_text(f"sources: {{orders: {source}}}")


def write_archive(home):
    count = 20
    data = [f"data {n}".encode() for n in range(count)]
    rows = messages(count, data=data, publish_time=[NOW] * count, ordering_key=["key"] * count)
    write_commits(LakeArchive(str(home / "lake"), "backup.messages"), {"orders": rows})


def id_in(path):
    return next((name for name in JOB_IDS if f"{{{name}}}" in path), None)


def cases_of(operation, jobs):
    """Good and bad requests: about ids of all kinds, and around a query that the gate lets through."""
    modes = [(mode, {}) for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)]
    if name := id_in(operation.path):
        follows = operation.definition.raw["operationId"] in FOLLOWERS
        ids = jobs[name]["ended"] + ([] if follows else jobs[name]["living"])
        modes += [(mode, {"path_parameters": {name: job_id}}) for mode, _ in modes for job_id in ids]
    strategies = [operation.as_strategy(mode, **fixed) for mode, fixed in modes]
    return st.one_of([strategy for strategy in strategies if not strategy.is_empty])


def with_a_good_query(case):
    """Let what is drawn of a body come to the service, which the gate would keep from it."""
    if isinstance(case.body, dict):
        kept = {name: value for name, value in case.body.items() if name not in OF_RANGE}
        case.body = {"topic": "replay", **kept, "query": QUERY, "parameters": PARAMETERS}


def checks_of(case):
    """The checks of an answer; what is drawn as wrong has to be refused, if it is wrong in a URL too.

    There every value is a text: for a parameter that takes several texts, whatever is no list is one of them.
    """
    raw = case.operation.definition.raw
    several = {each["name"] for each in raw.get("parameters", ()) if '"array"' in json.dumps(each["schema"])}
    is_text = any(name in several and not isinstance(value, list) for name, value in (case.query or {}).items())
    return CHECKS if is_text else [*CHECKS, negative_data_rejection]


def check(strategy, examine):
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def run(case):
        examine(case)

    run()


def headers_of(key):
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_every_answer_is_as_documented(api, keys, jobs, operation):
    def examine(case):
        for key in (keys["admin"], keys["reader"]):
            answer = case.call(base_url=api.url, session=SESSION, headers=headers_of(key), timeout=30)
            if answer.status_code == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
                # The server's own answer, before there is an operation.
                assert len(answer.request.url) + len(str(answer.request.headers)) > MAX_HEAD_BYTES - 1024
                continue
            case.validate_response(answer, checks=checks_of(case))

    check(cases_of(operation, jobs), examine)


@pytest.mark.parametrize("status", [200, 202])
def test_every_answer_to_a_query_that_passes_is_as_documented(api, keys, status):
    (operation,) = [found for found in OPERATIONS if found.definition.raw["operationId"] == "createBackfill"]
    statuses = set()

    def examine(case):
        with_a_good_query(case)
        # The other parameters are only those of a plan.
        case.query = {**(case.query or {}), "validate_only": "true"} if status == 200 else {}
        # Those that earlier cases made have not ended.
        case.body = {**case.body, "allow_overlap": True, "plan_id": None}
        response = case.call(base_url=api.url, session=SESSION, headers=headers_of(keys["admin"]), timeout=30)
        case.validate_response(response, checks=CHECKS)
        statuses.add(response.status_code)

    check(operation.as_strategy(GenerationMode.POSITIVE), examine)
    assert status in statuses


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_nobody_gets_further_without_a_key(client, keys, operation):
    path = operation.path.replace("{topic}", "orders")
    for name in JOB_IDS:
        path = path.replace(f"{{{name}}}", "bf_00000000000000000000000000")
    response = client.request(operation.method, path)
    if is_sign_in(operation.path):
        # Where no provider is configured, and without an attempt.
        assert response.status_code == {"GET": 200}.get(operation.method.upper(), response.status_code)
        assert response.status_code in (200, 403, 422)
    elif is_public(operation.path):
        assert response.status_code in (200, 503)
    else:
        assert (response.status_code, response.json()["code"]) == (401, "unauthenticated")


def test_everything_that_is_served_is_described():
    app = create_app(read_settings({"REFEED_HOME": "/nonexistent"}))
    unlisted = {"/openapi.json", "/docs", "/docs/{name}", "/problems/{code}"}
    served = {getattr(route, "path", None) for route in app.routes if route not in former.routes}
    described = set(DOCUMENT["paths"])
    assert {path for path in served if isinstance(path, str)} - described - unlisted == set()


def test_the_document_is_valid_and_names_what_a_client_needs(client):
    document = client.get("/openapi.json").json()
    assert document == DOCUMENT
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    assert "HTTPValidationError" not in document["components"]["schemas"]
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(set(names)) == len(names) >= 9
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert operation.get("summary") or operation.get("description"), path
            assert bool(operation["security"]) is not is_public(path)
            for status in ("401",) if is_sign_in(path) else ("401", "429"):
                assert (status in operation["responses"]) is not is_public(path)
            assert "500" in operation["responses"], path
            for status, response in operation["responses"].items():
                if int(status) >= 400 and (path, status) != ("/readyz", "503"):
                    assert list(response["content"]) == ["application/problem+json"], (path, status)
