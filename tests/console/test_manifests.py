"""Manifests over a real API: their list, the page of one, and how they are planned, applied, launched, removed."""

import json
import re
from html import unescape

import httpx
import pytest

from model.plain_yaml import read_yaml
from model.principal import READ, SCHEDULES_APPLY
from model.stream_options import StreamKind
from model.stream_record import StreamState
from tests.console.test_schedules import facts
from tests.console.yard import EVIL, make_yard, open_client, sign_in, token_of

SCHEDULE = {
    "kind": "Schedule",
    "name": "yearly",
    "description": f"Once a year {EVIL}",
    "cron": "15 0 1 1 *",
    "job": {"kind": "snapshot", "request": {"stream": "backup"}},
}
TEMPLATE = {
    "kind": "Template",
    "name": "again",
    "description": "Merge a source again",
    "parameters": {
        "source": {"required": True, "help": "The source."},
        "dry": {"type": "BOOL", "default": True},
        "since": {"type": "TIMESTAMP"},
    },
    "launch": {"kind": "merge", "request": {"source": "${source}", "dry_run": "${dry}", "since": "${since}"}},
}


@pytest.fixture(scope="module")
def yard(start_api):
    yard = make_yard(start_api)
    yard.api.store.launch_stream("backup", StreamKind.BACKUP, actor="key:ann")
    return yard


def send(client: httpx.Client, path: str, **fields: str) -> httpx.Response:
    return client.post(path, data={"form_token": token_of(client.get(path)), "do": "perform", **fields})


def hidden(page: httpx.Response, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]+)"', page.text)
    assert found is not None, page.text[-3000:]
    return unescape(found[1])


def test_a_manifest_is_planned_then_applied_and_changed_from_its_page(yard, browser):
    path = "/console/manifests:apply"
    text = json.dumps(SCHEDULE, indent=1)
    planned = send(browser, path, do="plan", document=text)
    assert "The schedule yearly would be created" in planned.text
    assert "The schedule starts its jobs at its times, with your permissions." in planned.text
    assert "<code>/cron</code> set to &#34;15 0 1 1 *&#34;" in planned.text
    assert "yearly" not in browser.get("/console/manifests").text
    applied = send(browser, path, document=text, plan=hidden(planned, "plan"))
    assert applied.headers.get("location") == "/console/manifests/yearly", applied.text[-2000:]
    row = (
        facts(browser.get("/console/manifests")).split('<a href="/console/manifests/yearly">')[1].split("</tr>")[0]
    )
    for said in ('<td data-label="Kind">Schedule</td>', ">1</td>", ">api</td>", ">key:ann</td>", "&lt;img"):
        assert said in row, said
    page = browser.get("/console/manifests/yearly")
    assert (EVIL in page.text, '<a class="button" href="/console/schedules/yearly">' in page.text) == (False, True)
    assert "The manifest has no jobs yet." in page.text
    document = page.text.split("<h2>Document</h2>")[1].split(">", 1)[1].split("</pre>")[0]
    assert read_yaml(unescape(document)).value == SCHEDULE
    # The page's own text is what is changed, and the history says from what to what.
    form = browser.get(path, params={"name": "yearly"})
    again = unescape(re.search(r"<textarea[^>]*>\n(.*?)</textarea>", form.text, re.DOTALL)[1])
    same = send(browser, path, do="plan", document=again)
    assert "The schedule yearly would not change" in same.text
    assert '<button name="do" value="perform">' not in same.text
    changed = again.replace("15 0 1 1", "30 0 1 1")
    planned = send(browser, path, do="plan", document=changed)
    assert "&#34;15 0 1 1 *&#34; &rarr; &#34;30 0 1 1 *&#34;" in planned.text
    first = hidden(planned, "plan")
    assert send(browser, path, document=changed, plan=first).status_code == 303
    # What was planned against another version is not applied.
    stale = send(browser, path, document=again, plan=first)
    assert (stale.status_code, "manifest_changed" in stale.text) == (412, True)
    history = browser.get("/console/manifests/yearly").text.split("<h2>History</h2>")[1]
    assert "<code>/cron</code> &#34;15 0 1 1 *&#34; &rarr; &#34;30 0 1 1 *&#34;" in history


def test_several_manifests_of_one_text_are_planned_and_applied_together(yard, browser):
    path = "/console/manifests:apply"
    both = [{**SCHEDULE, "name": "first"}, {**SCHEDULE, "name": "second"}]
    wrong = json.dumps([*both, {**SCHEDULE, "name": "nightly-merge"}])
    assert "belongs to REFEED_MERGE_AT" in send(browser, path, do="plan", document=wrong).text
    planned = send(browser, path, do="plan", document=json.dumps(both))
    for said in ("The schedule first would be created", "The schedule second would be", ">Apply 2 manifests<"):
        assert said in planned.text
    applied = send(browser, path, document=json.dumps(both), plan=hidden(planned, "plan"))
    assert applied.headers.get("location") == "/console/manifests", applied.text[-2000:]
    assert browser.get("/console/manifests/second").status_code == 200


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("a: [", "line 1, column"),
        ("kind: Schedule", "name: Field required in a Schedule."),
        ("[1]", "line 1, column 2: It: Input should be an object."),
        ("kind: Schedule\nname: x\ncrom: 1", "line 3, column 1"),
        ("", "The text contains no manifest."),
    ],
)
def test_every_fault_of_a_text_is_said_and_the_text_stays(browser, document, said):
    for do in ("plan", "perform"):
        page = send(browser, "/console/manifests:apply", do=do, document=document)
        assert (said in page.text, f"\n{document}</textarea>" in page.text) == (True, True), page.text[-3000:]


def test_a_removal_says_what_it_does_asks_for_the_name_and_is_bound_to_its_page(yard, browser):
    with yard.api.client(yard.key) as client:
        client.post("/manifests:apply", content=json.dumps({**SCHEDULE, "name": "gone"})).raise_for_status()
    path = "/console/manifests/gone/remove"
    page = browser.get(path)
    assert "The schedule starts no more jobs. Running jobs continue." in page.text
    etag = hidden(page, "etag")
    assert send(browser, path, etag=etag, typed="yearly").status_code == 422
    with yard.api.client(yard.key) as client:
        other = json.dumps({**SCHEDULE, "name": "gone", "cron": "0 1 1 1 *"})
        client.post("/manifests:apply", content=other).raise_for_status()
    assert send(browser, path, etag=etag, typed="gone").status_code == 412
    removed = send(browser, path, etag=hidden(browser.get(path), "etag"), typed="gone")
    assert removed.headers.get("location") == "/console/manifests", removed.text
    assert browser.get("/console/manifests/gone").status_code == 404


def test_a_template_is_launched_from_a_form_of_its_parameters(yard, browser):
    registry = b"sources:\n  hooks: {topic: hooks, schema: inferred, key: [id]}\n"
    (yard.api.home / "registry").mkdir(exist_ok=True)
    (yard.api.home / "registry" / "sources.yaml").write_bytes(registry)
    with yard.api.client(yard.key) as client:
        client.post("/manifests:apply", content=json.dumps(TEMPLATE)).raise_for_status()
    assert "/console/manifests/again/launch" in browser.get("/console/manifests/again").text
    path = "/console/manifests/again/launch"
    page = browser.get(path)
    for said in (
        "A new merge is launched with these parameters.",
        "The source. It is required.",
        "since (TIMESTAMP)",
    ):
        assert said in page.text
    assert 'name="parameter.dry" value="true"' in page.text
    missing = send(browser, path, **{"parameter.dry": "true"})
    assert (missing.status_code, "source is missing. It is a STRING: The source." in missing.text) == (422, True)
    wrong = send(browser, path, **{"parameter.source": "hooks", "parameter.dry": "maybe"})
    assert (wrong.status_code, 'value="maybe"' in wrong.text) == (422, True)
    sent = {"parameter.source": "hooks", "parameter.dry": "true", "key": hidden(page, "key")}
    first, second = (send(browser, path, **sent) for _ in range(2))
    assert first.status_code == 303, first.text[-3000:]
    assert second.headers["location"] == first.headers["location"]
    made = yard.api.store.get(first.headers["location"].removeprefix("/console/jobs/"))
    assert (made.kind, made.request["source"], made.request["dry_run"]) == ("merge", "hooks", True)


def test_the_backfills_that_a_template_launched_are_on_its_page(yard, browser):
    request = {"source_topic": "orders", "from": "2026-01-01", "to": "2026-01-02", "topic": "other"}
    template = {"kind": "Template", "name": "hole", "launch": {"kind": "backfill", "request": request}}
    with yard.api.client(yard.key) as client:
        client.post("/manifests:apply", content=json.dumps(template)).raise_for_status()
        made = client.post("/manifests/hole:launch", json={"parameters": {}}).raise_for_status().json()["id"]
        listed = client.get("/jobs", params={"label": "manifest:hole"}).json()["jobs"]
    assert [job["id"] for job in listed] == [made]
    page = browser.get("/console/manifests/hole").text
    assert f"/console/jobs/{made}" in page
    assert "/console/manifests/hole" in browser.get("/console/manifests").text
    asked = " ".join(browser.get("/console/manifests/hole/launch").text.split())
    assert "To see its plan first, use &#39;refeed launch template/hole --dry-run&#39;." in asked


def test_the_update_that_a_rollout_began_is_on_its_page(yard, browser):
    yard.api.store.take_streams("agent", limit=1, lease_seconds=600)
    yard.api.store.report_stream("backup", "agent", StreamState.RUNNING, instance_id="in_1")
    changes = {"from": {}, "to": {"options": {"slots": 4}}, "strategy": "restart", "validate": {"min_messages": 0}}
    with yard.api.client(yard.key) as client:
        rollout = {"kind": "Rollout", "name": "faster", "stream": "backup", **changes}
        client.post("/manifests:apply", content=json.dumps(rollout)).raise_for_status()
        (update,) = client.get("/jobs", params={"kind": "update"}).json()["jobs"]
    assert f"/console/jobs/{update['id']}" in browser.get("/console/manifests/faster").text


def test_what_is_no_template_is_not_launched(yard, browser):
    with yard.api.client(yard.key) as client:
        client.post("/manifests:apply", content=json.dumps({**SCHEDULE, "name": "other"})).raise_for_status()
    page = browser.get("/console/manifests/other/launch")
    assert "other is a Schedule, and only a template can be launched." in page.text
    assert 'name="form_token"' not in page.text.split("<main")[1]


def test_who_may_only_look_is_told_which_scope_a_change_needs(yard):
    with yard.api.client(yard.key) as client:
        client.post("/manifests:apply", content=json.dumps({**SCHEDULE, "name": "seen"})).raise_for_status()
    with open_client(yard) as client:
        sign_in(client, yard.api.make_key(READ, name="reader"))
        page = client.get("/console/manifests/seen").text
        assert f"you need the scope <code>{SCHEDULES_APPLY}</code>" in page
        assert "/console/manifests/seen/remove" not in page


def test_a_fault_of_an_uploaded_file_is_said_above_the_list(start_api, tmp_path):
    (tmp_path / "broken.yaml").write_text("kind: Schedule\nname: broken\ncrom: 1\n")
    yard = make_yard(start_api, REFEED_MANIFESTS=str(tmp_path))
    with open_client(yard) as client:
        sign_in(client, yard.key)
        text = ""
        with client.stream("GET", "/console/live/manifests") as live:
            for line in live.iter_lines():
                if "broken.yaml" in (text := line):
                    break
    assert "is not applied" in text
