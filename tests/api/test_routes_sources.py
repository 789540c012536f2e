"""``GET /sources`` and below, as it is served: in the shapes that OpenAPI shows, for those who may."""

from model.settings import read_settings
from pipeline.registry import Registry
from streams.status import StatusFile
from tests.inventory.test_sources import NARROW, WIDE, World

SOURCES = b"sources: {hooks: {topic: hooks, schema: inferred}, odd: {topic: odd, schema: inferred, message: m}}"


def test_sources_are_listed_and_shown_with_their_counts(start_api):
    api = start_api()
    with api.client() as client:
        assert client.get("/sources").json() == {"sources": []}
        Registry(str(api.home / "registry")).publish({"sources.yaml": SOURCES})
        path = api.home / "streams" / "pipeline-default" / "status.json"
        path.parent.mkdir(parents=True)
        counts = {"hooks": {"rows": {"staged": 3}, "unknown": {"a.b": 2}}}
        StatusFile(path).write(state="running", sources=counts)
        listed = client.get("/sources").json()["sources"]
        hooks = client.get("/sources/hooks").json()
        versions = client.get("/sources/hooks/versions", params={"event_type": ""})
        unknown = client.get("/sources/hoks")
        refused = client.get("/sources/hooks/versions", params={"from": 1})
    assert [(each["name"], each["fault"] is None) for each in listed] == [("hooks", True), ("odd", False)]
    assert listed[0] == hooks
    assert hooks["staged"]["rows"] == 3
    assert hooks["staged"]["unknown_fields"]["largest"] == [{"what": "a.b", "count": 2}]
    assert (hooks["archived"]["messages"], hooks["merged"]) == (0, None)
    assert set(hooks["archived"]) == {"from", "to", "messages"}
    assert (unknown.status_code, unknown.json()["code"]) == (404, "source_not_found")
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "query:from")
    assert (versions.status_code, versions.json()["code"]) == (422, "request_invalid")


def test_the_terminal_lists_sources_and_shows_one(api, refeed):
    assert "The registry has no sources." in refeed("get", "sources")[1]
    Registry(str(api.home / "registry")).publish({"sources.yaml": SOURCES})
    path = api.home / "streams" / "pipeline-default" / "status.json"
    path.parent.mkdir(parents=True)
    counts = {"hooks": {"rows": {"staged": 3}, "unknown": {"a.b": 2}, "refused": {"wrong_type": 4}}}
    StatusFile(path).write(state="running", sources=counts, started_at=97_440.0)
    world = World(read_settings({}, home=api.home))
    world.note("hooks", "", 1, NARROW, "staging.hooks")
    world.note("hooks", "", 2, WIDE, "staging.hooks")
    code, listed, _ = refeed("get", "sources")
    hooks = next(line for line in listed.splitlines() if line.startswith("hooks"))
    assert (code, hooks.split()) == (0, ["hooks", "hooks", "0", "3", "2", "4", "-"])
    wide = next(
        line for line in refeed("get", "sources", "-o", "wide")[1].splitlines() if line.startswith("hooks")
    )
    assert wide.split() == ["hooks", "hooks", "default", "0", "3", "2", "4", "-"]
    since = "1970-01-02 03:04"
    assert f"Group default: STAGED, UNKNOWN and DEAD LETTERS since {since}, when its stream's process" in listed
    assert "odd: " in listed, "its fault is named"
    code, shown, _ = refeed("describe", "source/hooks")
    assert (code, "schema: inferred" in shown) == (0, True)
    assert f"staged: 3 rows since {since}, when the stream's process started" in shown
    assert "unknown fields and enum values: a.b, 2 times since then" in shown
    assert "refused: wrong_type, 4 times since then" in shown
    assert "stream: pipeline-default is RUNNING, lag unknown, backlog unknown" in shown
    with api.client() as client:
        noted = client.get("/sources/hooks").json()["last_type_change"]["noted_at"]
    change = "version 2 of staging.hooks: id was INT64 and is STRING\n"
    assert f"last type change: {noted[:10]} {noted[11:16]}, {change}" in shown
    odd = refeed("describe", "source/odd")[1]
    assert ("fault: " in odd, "last type change" in odd) == (True, False)
    code, _, said = refeed("describe", "source/hoks")
    assert (code, "source_not_found" in said) == (4, True)
