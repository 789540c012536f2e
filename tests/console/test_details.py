"""Messages, samples, dead letters and the log in Chromium: searched, copied, saved and followed."""

from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import pytest

from model.stream_options import StreamKind
from tests.console.past import run_backfill
from tests.console.tab import NARROW, calm
from tests.console.yard import BIG

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def past(yard):
    return run_backfill(yard)


def search(text: str, *, days: int) -> str:
    now = datetime.now(UTC)
    bounds = {"from": (now - timedelta(days=days)).isoformat(), "to": (now + timedelta(days=1)).isoformat()}
    return f"/topics/orders?{urlencode({'show': 'messages', 'text': text, 'step': 'day', **bounds})}"


def test_a_message_is_found_opened_copied_and_replayed_with_its_own_numbers(yard, open_tab, tmp_path):
    tab = open_tab()
    tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.sign_in(yard.key)
    with calm(tab):
        tab.open(search("740993", days=1))
        tab.page.wait_for_selector("text=The search has read all messages")
        assert tab.page.locator("#scan article").count() == 1
        tab.page.click("#scan article h3 a")
        tab.page.wait_for_selector("text=Copy the payload")
        assert '"id": 9007199254740993,' in tab.page.inner_text("pre.payload >> nth=0")
        tab.page.click("text=Copy the payload")
        tab.page.wait_for_selector("text=Copied")
        assert tab.page.evaluate("navigator.clipboard.readText()") == BIG.decode()
        with tab.page.expect_download() as downloading:
            tab.page.click("text=Download the payload")
        downloading.value.save_as(tmp_path / "payload")
        assert (tmp_path / "payload").read_bytes() == BIG
        tab.page.click("text=Replay only this message")
        tab.page.fill("#topic", "replay")
        tab.page.click("text=Plan: show what the backfill would do")
        tab.page.wait_for_selector("text=This message is the same as in the archive.")
        assert "The backfill would publish 1 message to replay" in tab.text()
        with tab.page.expect_download() as downloading:
            tab.page.click("#plan a:text-is('Download')")
        downloading.value.save_as(tmp_path / "sample")
        assert (tmp_path / "sample").read_bytes() == BIG


def test_a_search_is_stopped_and_says_how_far_it_came(yard, open_tab):
    tab = open_tab(NARROW)
    tab.sign_in(yard.key)
    with calm(tab):
        tab.open(search("nowhere", days=900))
        tab.page.wait_for_selector("text=/The search has read .* to .*Reading/")
        tab.page.click("#scan [data-stop]")
        assert tab.page.inner_text("#scan [data-status]").startswith("Stopped. 0 messages found. The search ")
        assert tab.page.is_hidden("#scan [data-stop]")
        assert tab.find_overflow() == []


@pytest.mark.parametrize("of", ["a backfill", "a stream"])
def test_the_log_follows_while_it_is_at_its_end(yard, past, open_tab, of):
    place, log = f"/jobs/{past}", yard.api.home / "backfills" / past / "driver.log"
    if of == "a stream":
        yard.api.store.launch_stream("backup", StreamKind.BACKUP, actor="key:ann")
        place, log = "/streams/backup?over=day", yard.api.home / "logs" / "backup.log"
        log.parent.mkdir(exist_ok=True)
        log.write_text("an old line\n" * 50)
    tab = open_tab()
    tab.sign_in(yard.key)
    is_at_end = """() => {
      const log = document.getElementById("log");
      return log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
    }"""
    with calm(tab):
        tab.open(place)
        tab.page.wait_for_selector("#as-of time")
        assert tab.page.evaluate(is_at_end)
        with log.open("a") as file:
            file.write("the newest line\n" * 30)
        tab.page.wait_for_selector("#log:has-text('the newest line')")
        assert tab.page.evaluate(is_at_end)
        tab.page.evaluate("document.getElementById('log').scrollTop = 5")
        with log.open("a") as file:
            file.write("one more\n")
        tab.page.wait_for_selector("#log:has-text('one more')")
        assert tab.page.evaluate("document.getElementById('log').scrollTop") == 5
        # What is pushed is of the time that the address names.
        assert ("Rate over the last day" in tab.text()) is (of == "a stream")
