"""Compactions are created over HTTP, and an ended one runs again by a command."""

import json


def test_a_compaction_is_created_once_a_key_and_runs_again(client, api, refeed):
    sent = {"json": {"tables": ["archive"]}, "headers": {"Idempotency-Key": "k"}}
    first, second = (client.post("/compactions", **sent) for _ in range(2))
    assert (first.status_code, first.headers["Location"]) == (202, f"/jobs/{first.json()['id']}")
    assert second.json()["id"] == first.json()["id"]
    other = client.post("/compactions", json={"tables": ["staging.a"]}, headers=sent["headers"])
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    wrong = client.post("/compactions", json={"tables": ["a b"]})
    assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (422, "/tables/0")

    job = first.json()["id"]
    # No driver of this service can be started.
    assert refeed("watch", job)[0] != 0
    code, shown, said = refeed("rerun", job, "--json")
    assert code == 0, said
    again = json.loads(shown)
    assert (again["id"] != job, again["tables"]) == (True, ["archive"])
