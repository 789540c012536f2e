"""Sources and changes in Chromium: they fit both widths, run nothing of others, and are decided."""

import re

import pytest

from model.stream_record import Wanted
from tests.console.tab import calm
from tests.console.works import fill_sources, make_works

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def yard(start_api):
    works = make_works(start_api)
    works.api.pubsub.create_topic("hooks")
    fill_sources(works)
    return works


def test_chosen_dead_letters_are_planned_and_redriven(yard, open_tab):
    tab = open_tab()
    tab.sign_in(yard.key)
    tab.open("/sources/hooks")
    with calm(tab):
        tab.page.locator("tr", has_text="wrong_type").get_by_text("Choose some").click()
        tab.page.check("[name=id-1]")
        tab.page.click("text=Redrive the chosen messages")
        tab.page.wait_for_selector("text=A backfill publishes 1 message to hooks.")
        tab.page.wait_for_selector("button.danger:disabled")
        tab.page.fill("#typed", "hooks")
        tab.page.click("button.danger")
        tab.page.wait_for_url("**/console/jobs/bf_*")
    job = yard.api.store.get(tab.page.url.rpartition("/")[2])
    assert len(job.request["parameters"]["message_ids"]["value"]) == 1


def test_a_change_is_approved_on_its_page_by_the_second_person(yard, open_tab):
    asked = yard.ask("drain", body={"timeout_seconds": 7})
    tab = open_tab()
    with calm(tab):
        tab.sign_in(yard.key)
        tab.open(f"/jobs/{asked}")
        assert "Somebody other than key:ann must approve this change." in tab.page.inner_text("main")
    tab = open_tab()
    with calm(tab):
        tab.sign_in(yard.bob)
        tab.open("/jobs?kind=change")
        tab.page.get_by_role("link", name="Drain stream backup").first.click()
        tab.page.get_by_role("link", name="Approve ...").click()
        tab.page.get_by_role("button", name="Approve").click()
        tab.page.wait_for_url(re.compile(rf"/console/jobs/{asked}$"))
        tab.page.wait_for_selector("text=SUCCEEDED")
    assert yard.api.store.get_stream("backup").wanted is Wanted.DRAINED
