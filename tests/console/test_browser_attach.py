"""A topic is attached and detached by clicks in Chromium, and the page of the topics shows both."""

import pytest

from tests.console.tab import NARROW, WIDE, calm

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("look", [WIDE, NARROW], ids=["wide-light", "narrow-dark"])
def test_a_topic_is_attached_by_clicks_and_detached_by_its_name(yard, open_tab, look):
    pubsub, tab = yard.api.pubsub, open_tab(look)
    row = tab.page.locator("tr", has=tab.page.locator("a:text-is('replay')"))
    backed_up = row.locator("[data-label='Backed up']")
    with calm(tab):
        tab.sign_in(yard.key)
        tab.page.click("nav a:text-is('Topics')")
        assert backed_up.locator(".badge").inner_text() == "no"
        assert pubsub.list_subscriptions("replay") == []
        row.locator("a:text-is('replay')").click()
        tab.page.wait_for_selector("h2:text-is('Backup and subscriptions')")
        assert "replay has no subscription." in tab.text()
        tab.page.get_by_text("Attach ...").click()
        tab.page.wait_for_selector("h1:text-is('Back up: replay')")
        assert "Refeed creates the subscription refeed-backup.replay." in tab.text()
        assert pubsub.list_subscriptions("replay") == []
        tab.page.click("button:text-is('Back it up')")
        tab.page.wait_for_url("**/console/topics")
        assert backed_up.locator(".badge").inner_text() == "yes"
        assert [each.id for each in pubsub.list_subscriptions("replay")] == ["refeed-backup.replay"]
        row.locator("a:text-is('replay')").click()
        receiver = tab.page.locator("tr", has_text="refeed-backup.replay")
        receiver.get_by_text("is kept out of the archive").wait_for()
        assert "reaches it" not in tab.text()
        assert tab.find_overflow() == []
        tab.page.go_back()
        backed_up.get_by_text("Detach ...").click()
        tab.page.wait_for_selector("h1:text-is('Stop backing up: replay')")
        assert "These messages are lost" in tab.text()
        tab.page.wait_for_selector("button.danger:disabled")
        tab.page.fill("#typed", "repla")
        assert tab.page.is_disabled("button.danger")
        tab.page.fill("#typed", "replay")
        tab.page.click("button.danger")
        tab.page.wait_for_url("**/console/topics")
        assert backed_up.locator(".badge").inner_text() == "no"
        assert pubsub.list_subscriptions("replay") == []
