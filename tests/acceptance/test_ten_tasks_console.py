"""Ten tasks of an operator at 3 a.m. by the console alone, with the steps that each takes.

A step is a click or a field that is filled in. Each task begins at the console's first page, signed in, and what
is read costs no step. A task that needs another number of steps fails here. test_ten_tasks.py has them by
commands and by HTTP.
"""

import pytest

from model.job import JobState
from tests.acceptance.test_ten_tasks import (
    ANN,
    IN_HOUR,
    api,
    assert_added,
    assert_ran_now,
    assert_snapshot,
    assert_stopped,
    assert_taken_back,
    failed_merge,
    late,
    night,
    paused_schedule,
    plain_log,
    running,
    sources_with,
    updated,
    with_dead_letters,
)
from tests.console.tab import WIDE, Tab, calm, start_chromium
from tests.waiting import wait_until
from tests.worlds.night import IN_THE_HOUR, SCHEDULE, STREAM_NAME

# The fixtures of the same tasks by other means.
__all__ = [
    "api",
    "failed_merge",
    "late",
    "night",
    "paused_schedule",
    "plain_log",
    "running",
    "updated",
    "with_dead_letters",
]
pytestmark = pytest.mark.browser


class Hand:
    """A person at the console; ``steps`` counts what they click and fill in."""

    def __init__(self, tab: Tab) -> None:
        self.tab = tab
        self.steps = 0

    def click(self, text: str, *, within: str = "body") -> None:
        """Click a link or a button by its whole text, or by its beginning with * at its end."""
        quoted = text.rstrip("*").replace('"', '\\"')
        said = f'has-text("{quoted}")' if text.endswith("*") else f'text-is("{quoted}")'
        self._click(f"{within} :is(a, button, summary):{said} >> nth=0")

    def click_link(self, path: str) -> None:
        """Click the first link to a page."""
        self._click(f'a[href="/console{path}"] >> nth=0')

    def fill(self, field: str, text: str) -> None:
        self.steps += 1
        self.tab.page.fill(f"main [name={field}]", text)

    def sees(self, text: str) -> None:
        """Wait until the page shows a text, also by itself."""
        self.tab.page.wait_for_selector(f"main :text({text!r}) >> nth=0")

    def _click(self, selector: str) -> None:
        self.steps += 1
        self.tab.page.click(selector)

    @property
    def job(self) -> str:
        """The id of the job whose page this is."""
        self.tab.page.wait_for_selector("main .id code")
        return str(self.tab.page.inner_text("main .id code"))


@pytest.fixture(scope="module")
def chromium():
    with start_chromium() as browser:
        yield browser


@pytest.fixture
def hand(night, chromium):
    context = chromium.new_context(viewport={"width": WIDE[0], "height": 900})
    tab = Tab(context.new_page(), f"{night.api.url}/console")
    with calm(tab):
        tab.sign_in(night.key)
        yield Hand(tab)
    context.close()


def test_what_is_wrong(failed_merge, hand):
    """The first page has what is wrong and what waits for a person, each with a link to its page."""
    hand.tab.open("")
    assert "wrong" in hand.tab.page.inner_text("#verdict")
    assert hand.tab.page.locator(f'main a[href="/console/jobs/{failed_merge}"]').count() >= 1
    assert hand.steps == 0


def test_replay_an_hour_of_orders(night, hand):
    """A topic and two times of day are planned and launched; no SQL is written."""
    receive = night.listen("orders")
    hand.click("Jobs")
    hand.click("New backfill")
    hand.fill("source", "orders")
    hand.fill("from", f"{night.start:%H:%M}")
    hand.fill("to", f"{night.end:%H:%M}")
    hand.click("Plan: show what the backfill would do")
    hand.click(f"Launch: publish {IN_THE_HOUR} messages")
    hand.sees("SUCCEEDED")
    assert {message.attributes["refeed_message_id"] for message in receive()} == IN_HOUR
    assert (ANN, "created") in night.actors(hand.job)
    assert hand.steps == 7


def test_stop_it(night, running, hand):
    """The first page has the running job; its page says how much is out before it is cancelled."""
    hand.tab.open("")
    hand.click_link(f"/jobs/{running}")
    hand.click("Cancel ...")
    hand.sees(f"of {IN_THE_HOUR} messages are published.")
    hand.fill("typed", "orders")
    hand.click("Cancel the backfill")
    hand.sees("CANCELLED")
    assert_stopped(night, running)
    assert hand.steps == 4


def test_why_the_pipeline_is_late(late, hand):
    """The stream's page has its state and its log, and its past figures in a table."""
    hand.click_link(f"/streams/{STREAM_NAME}")
    hand.sees("RUNNING")
    hand.click("Show as a table", within="#rates")
    hand.sees("12 min 34 s")
    assert "begins" in hand.tab.page.inner_text("#log")
    assert hand.steps == 2


def test_take_back_the_last_update(night, updated, hand):
    """The stream's page has its updates; the newest one can be reverted."""
    hand.click_link(f"/streams/{STREAM_NAME}")
    hand.click_link(f"/jobs/{updated}")
    hand.click("Revert ...")
    hand.sees("A new update returns the stream to its earlier release and options.")
    hand.fill("typed", STREAM_NAME)
    hand.click("Revert", within="main")
    hand.sees("STABLE")
    assert_taken_back(night, updated)
    assert hand.steps == 5


def test_snapshot_before_a_risky_change(night, hand):
    """A snapshot includes those of Pub/Sub unless its box is cleared, and the page says when it is there."""
    before = {each.id for each in night.store.list_snapshots(stream=STREAM_NAME)}
    hand.click_link(f"/streams/{STREAM_NAME}")
    hand.click("Snapshot ...")
    hand.click("Snapshot the stream", within="main")
    hand.sees("COMPLETED")
    (made,) = {each.id for each in night.store.list_snapshots(stream=STREAM_NAME)} - before
    # An earlier snapshot may be complete already.
    hand.tab.page.wait_for_selector(f"main tr:has-text('{made}'):has-text('COMPLETED')")
    assert_snapshot(night, made)
    assert hand.steps == 3


def test_run_last_nights_merge_again(night, failed_merge, hand):
    """The schedule runs now, a merge that failed goes on, and one that has ended is made again."""
    hand.click("Schedules")
    hand.click(SCHEDULE)
    hand.click("Run now ...")
    hand.click("Run now", within="main")
    assert_ran_now(night)
    assert hand.steps == 4
    hand.click("Jobs")
    hand.click_link(f"/jobs/{failed_merge}")
    hand.click("Retry ...")
    hand.click("Retry", within="main")
    hand.sees("SUCCEEDED")
    assert night.store.get(failed_merge).state is JobState.SUCCEEDED
    assert hand.steps == 8
    hand.click("Run again ...")
    hand.click("Run again", within="main")
    hand.sees("SUCCEEDED")
    again = night.store.get(hand.job)
    assert (again.id != failed_merge, again.request["source"], again.created_by) == (True, "orders", ANN)
    assert hand.steps == 10


def test_messages_that_failed_again(night, with_dead_letters, hand):
    """A backfill sends its dead letters again, and a source's page makes a backfill of those of the pipeline."""
    receive, receive_orders = night.listen("other"), night.listen("orders")
    hand.tab.open("")
    hand.click_link(f"/jobs/{with_dead_letters}")
    hand.click("Send all of them again ...")
    hand.click("Retry", within="main")
    hand.sees("SUCCEEDED")
    assert {message.attributes["refeed_message_id"] for message in receive()} == {"m0", "m1"}
    assert hand.steps == 3
    night.lose_orders("lost-1", "lost-2")
    hand.click("Sources")
    hand.click("orders", within="h2")
    hand.click("All of these ...")
    hand.sees("2 messages")
    hand.fill("typed", "orders")
    hand.click("Redrive", within="main")
    hand.sees("SUCCEEDED")
    assert {message.attributes["refeed_message_id"] for message in receive_orders()} == {"lost-1", "lost-2"}
    assert night.store.get(hand.job).created_by == ANN
    assert hand.steps == 8


def test_who_changed_this_schedule(paused_schedule, hand):
    """The schedule's page has its history, newest first."""
    hand.click("Schedules")
    hand.click(SCHEDULE)
    hand.tab.page.wait_for_url(f"**/schedules/{SCHEDULE}")
    assert "paused by key:bob" in hand.tab.page.inner_text("h2:text-is('History') + ol li >> nth=0")
    assert hand.steps == 2


def test_add_a_source(night, hand):
    """The registry is files, which a deployment copies; the console shows the source, and attaches its topic."""
    (night.api.home / "registry" / "sources.yaml").write_text(sources_with("visits"))
    hand.click("Sources")
    hand.click("visits", within="h2")
    hand.click("Back up its topic ...")
    hand.sees("Refeed creates the subscription")
    hand.click("Back it up")
    wait_until(lambda: "visits" in hand.tab.page.inner_text("main"), "the topic is in the list")
    assert_added(night, "visits")
    assert hand.steps == 4
