"""One stream's page: its rate over time, its log, and how often its process began."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape

import httpx
import pytest

from jobs.store.figures import stream_subject
from model.stream_options import StreamKind
from model.stream_record import StreamState
from model.stream_snapshot import DISCARD_EFFECT
from model.stream_update import UpdateRequest
from tests.console.yard import make_yard, token_of
from tests.contract.test_job_store_snapshots import complete


@pytest.fixture(scope="module")
def yard(start_api):
    yard = make_yard(start_api)
    yard.api.store.launch_stream("backup", StreamKind.BACKUP, actor="key:ann")
    return yard


def part(page: httpx.Response, title: str) -> str:
    assert page.status_code == 200
    return page.text.split(f"<h2>{title}")[1].split("</section>")[0]


def test_a_step_that_nobody_recorded_is_unknown_in_chart_and_table(yard, browser):
    assert "Nothing is recorded for this time yet" in part(browser.get("/console/streams/backup"), "Rate over")
    minute = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=2)
    figures = {"state": "RUNNING", "rate_messages_per_second": 1234.5, "lag_seconds": 0.5}
    yard.api.store.put_figures(minute, {stream_subject("backup"): figures})
    rates = part(browser.get("/console/streams/backup"), "Rate over the last hour")
    assert rates.count("<rect") == 60
    assert rates.count('class="count"') == 1
    assert "0 to 1,234.5 messages per second; a pale bar means that the rate is unknown</p>" in rates
    assert '<td data-label="Rate" class="figure">1,234.5/s</td>' in rates
    assert rates.count('<td data-label="Rate" class="figure"><span class="unknown">unknown</span></td>') == 59
    assert part(browser.get("/console/streams/backup?over=day"), "Rate over the last day").count("<rect") == 144


def test_totals_have_units_and_the_other_period_is_one_link(yard, browser):
    page = browser.get("/console/streams/backup")
    figures = part(page, "Figures")
    assert "<dt>Messages</dt><dd>120,000</dd>" in figures
    assert "<dt>Bytes</dt><dd>5.0 MB</dd>" in figures
    for over, other in (("hour", "day"), ("day", "hour")):
        rates = part(browser.get(f"/console/streams/backup?over={over}"), f"Rate over the last {over}")
        assert re.findall(r'<a href="[^"]+">([^<]+)', rates) == [f"the last {other}"]
    assert ">Cancel the stream</button>" in browser.get("/console/streams/backup/cancel").text


def test_the_end_of_the_log_is_shown_as_text(yard, browser):
    assert "The log is empty." in part(browser.get("/console/streams/backup"), "End of the log")
    logs = yard.api.home / "logs"
    logs.mkdir(exist_ok=True)
    (logs / "backup.log").write_text("batch_committed messages=7 <b>\n")
    log = part(browser.get("/console/streams/backup"), "End of the log")
    assert "batch_committed messages=7 &lt;b&gt;" in log
    assert "data-follow" in log


def test_the_starts_of_its_process_are_counted(yard, browser):
    store = yard.api.store
    page = browser.get("/console/streams/backup").text
    assert "Processes started</dt><dd>0</dd>" in page
    assert 'id="starts"' not in page
    store.take_streams("agent", limit=1, lease_seconds=60)
    for instance in ("in_1", "in_2"):
        store.report_stream("backup", "agent", StreamState.RUNNING, instance_id=instance)
    page = browser.get("/console/streams/backup").text
    assert "Processes started</dt><dd>2 " in page
    listed = page.split('<details id="starts">')[1].split("</details>")[0]
    assert listed.index("in_2") < listed.index("in_1")
    assert listed.count('<td data-label="Generation" class="figure">1</td>') == 2


@pytest.mark.parametrize("action", ["rollback", "update"])
def test_a_rollback_and_an_update_are_for_the_stream_as_their_page_showed_it(yard, browser, action):
    snapshot = complete(yard.api.store).id
    page = browser.get(f"/console/streams/backup/{action}")
    etag = unescape(re.search(r'name="etag" value="([^"]+)"', page.text)[1])
    yard.api.store.change_stream("backup", actor="key:bob", options={"batch_seconds": 2.0})
    fields = {"form_token": token_of(page), "do": "perform", "typed": "backup", "snapshot": snapshot, "etag": etag}
    answer = browser.post(f"/console/streams/backup/{action}", data=fields)
    assert (answer.status_code, "stream_changed" in answer.text) == (412, True)
    assert yard.api.store.list_restores("backup") == []
    assert yard.api.store.list_updates("backup") == []


def test_a_snapshot_is_rolled_back_to_or_deleted_from_its_row(yard, browser):
    snapshot = complete(yard.api.store).id
    row = part(browser.get("/console/streams/backup"), "Snapshots").split(f">{snapshot}<")[1].split("</tr>")[0]
    assert f'href="/console/streams/backup/rollback?snapshot={snapshot}"' in row
    chosen = browser.get(f"/console/streams/backup/rollback?snapshot={snapshot}").text
    assert DISCARD_EFFECT in chosen
    assert f'<option value="{snapshot}" selected>' in chosen
    path = f"/console/snapshots/{snapshot}/delete"
    assert f'href="{path}"' in row
    page = browser.get(path)
    assert "With the snapshot, its files and its Pub/Sub snapshots are deleted." in page.text
    taken = re.search(r"It was taken (\S+ \S+ \+09:00)\.", browser.get(f"{path}?zone=Asia/Tokyo").text)[1]
    assert f">{taken}, manual<" in browser.get("/console/streams/backup/rollback?zone=Asia/Tokyo").text
    fields = {"form_token": token_of(page), "do": "perform"}
    assert browser.post(path, data={**fields, "typed": "other"}).status_code == 422
    assert yard.api.store.get_snapshot(snapshot).state == "COMPLETED"
    answer = browser.post(path, data={**fields, "typed": "backup"})
    assert answer.headers.get("location") == "/console/streams/backup", answer.text
    assert yard.api.store.get_snapshot(snapshot).state == "DELETING"
    row = part(browser.get("/console/streams/backup"), "Snapshots").split(f">{snapshot}<")[1].split("</tr>")[0]
    assert path not in row


def test_a_stream_has_its_updates_and_rollbacks_in_one_list(yard, browser):
    store = yard.api.store
    request = UpdateRequest(release="1.2", options={}, mapping={})
    update = store.create_update("backup", request, actor="key:bob")
    jobs = part(browser.get("/console/streams/backup"), "Jobs")
    assert f'<a href="/console/jobs/{update.id}">Update of backup to 1.2</a>' in jobs
    assert ('<td data-label="By">key:bob</td>' in jobs, jobs.count("<tr>")) == (True, 2)
    # Whoever ends the stream fails the update.
    said = f"The update {update.id} is CHECKING. It fails (update_abandoned) when the stream ends"
    pages = [browser.get(f"/console/streams/backup/{action}").text for action in ("drain", "cancel", "snapshot")]
    assert [said in page for page in pages] == [True, True, False]
