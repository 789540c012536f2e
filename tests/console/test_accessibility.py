"""Every page of the console by axe-core's rules, in both colour schemes and widths, and by the keyboard alone."""

import json

import pytest

from console.pages import PAGES
from tests.console.places import LAST_DAYS, find_places
from tests.console.tab import NARROW, WIDE
from tests.npm import install_packages

pytestmark = pytest.mark.browser

SERIOUS = {"serious", "critical"}
CHECK = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations.map((each) => ({
  impact: each.impact, rule: each.id, help: each.help, at: each.nodes.map((node) => node.html.slice(0, 200)),
}))"""

# WCAG 1.4.12: a reader may spread text so far. It also stands for wider fonts than this machine's.
SPREAD = """() => Object.assign(document.documentElement.style,
  {lineHeight: 1.5, letterSpacing: "0.12em", wordSpacing: "0.16em"})"""


@pytest.fixture(scope="session")
def axe() -> str:
    """The rules' own script, which runs in the page but is no part of it."""
    return (install_packages() / "node_modules" / "axe-core" / "axe.min.js").read_text()


@pytest.mark.parametrize("look", [WIDE, NARROW], ids=["wide-light", "narrow-dark"])
def test_no_page_breaks_a_serious_rule_or_scrolls_sideways(yard, open_tab, axe, look):
    tab = open_tab(look)
    tab.sign_in(yard.key)
    places = list(find_places(yard))
    assert len(places) > len(PAGES)
    broken, wide = {}, {}
    for place in places:
        tab.open(place)
        if found := tab.find_overflow():
            wide[place] = found
        tab.page.evaluate(axe)
        found = [each for each in tab.page.evaluate(CHECK) if each["impact"] in SERIOUS]
        if found:
            broken[place] = found
        tab.page.evaluate(SPREAD)
        if found := tab.find_overflow():
            wide[f"{place}, with spread text"] = found
    assert broken == {}, json.dumps(broken, indent=1)
    assert wide == {}, json.dumps(wide, indent=1)


def test_the_keyboard_alone_goes_from_a_topic_to_a_launched_replay(yard, open_tab):
    tab = open_tab()
    keys = tab.page.keyboard
    tab.sign_in(yard.key)
    tab.open("/topics/orders")
    for name in ("from", "to"):
        tab.press_until(at=f"input[name={name}]")
        keys.press("Control+A")
        keys.type(LAST_DAYS[name])
    tab.press_until("Replay this range ...")
    keys.press("Enter")
    tab.page.wait_for_url("**/console/backfills/new?*")
    # The editor lets the tabulator through.
    tab.press_until(at="#query")
    tab.press_until(at="#topic")
    keys.press("Control+A")
    keys.type("replay")
    tab.press_until("Plan: show what the backfill would do")
    keys.press("Enter")
    tab.page.wait_for_selector("#plan")
    tab.press_until("Launch: publish 30 messages")
    keys.press("Enter")
    tab.page.wait_for_url("**/console/jobs/bf_*")
    assert yard.api.store.get(tab.page.url.rpartition("/")[2]).request["topic"] == "replay"
