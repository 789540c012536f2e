"""The heat map in Chromium: a hole is seen however narrow its cell is, and each cell leads to its hour."""

from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.console.past import archive_past
from tests.console.tab import NARROW, WIDE, calm
from tests.console.yard import make_yard

pytestmark = pytest.mark.browser

HOUR = timedelta(hours=1)
TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
HOLE = TODAY - timedelta(days=2) + 14 * HOUR


@pytest.fixture(scope="module")
def yard(start_api):
    """Five days of sales at two o'clock, one of which is missing."""
    yard = make_yard(start_api, with_key=False)
    days = [HOLE + timedelta(days=days) for days in (-4, -3, -2, -1, 1)]
    archive_past(yard, [("sales", day, 40) for day in days])
    return yard


@pytest.mark.parametrize("look", [WIDE, NARROW], ids=["wide-light", "narrow-dark"])
def test_a_hole_is_three_pixels_wide_at_least(yard, open_tab, look):
    tab = open_tab(look)
    with calm(tab):
        tab.open("/topics")
        row = tab.page.locator("tr:has(a:text-is('sales')) svg")
        assert row.bounding_box()["width"] / 336 < 3
        width = tab.page.evaluate(
            "(line) => getComputedStyle(line).strokeWidth + ' ' + getComputedStyle(line).vectorEffect",
            row.locator(".hole-line").element_handle(),
        )
        assert width == "3px non-scaling-stroke"
        first = datetime.fromisoformat(tab.page.locator("table.heat").get_attribute("data-start"))
        assert f"M{(HOLE - first) // HOUR}.5 0v1" in row.locator(".hole-line").get_attribute("d")
        assert tab.find_overflow() == []


def test_each_cell_says_its_hour_and_leads_to_it(yard, open_tab):
    tab = open_tab()
    # Columns move on with the hours.
    tab.page.route("**/console/live/**", lambda route: None)
    with calm(tab):
        tab.open("/topics?zone=Asia%2FTokyo")
        first = datetime.fromisoformat(tab.page.locator("table.heat").get_attribute("data-start"))
        # The first day stands at the left, in the page's zone.
        assert tab.page.locator(".days span").first.inner_text() == f"{first + 9 * HOUR:%Y-%m-%d}"
        row = tab.page.locator("tr:has(a:text-is('sales')) svg")
        box = row.bounding_box()
        for at, said in ((HOLE, "0 messages"), (HOLE + timedelta(days=1), "40 messages")):
            place = (at - first) // HOUR
            tab.page.mouse.move(box["x"] + (place + 0.5) * box["width"] / 336, box["y"] + box["height"] / 2)
            tab.page.wait_for_selector(f"[data-heat-says]:has-text('{said}')")
            assert f"{at + 9 * HOUR:%Y-%m-%d %H}:00:00 +09:00" in tab.page.inner_text("[data-heat-says]")
            address = urlsplit(row.locator("a").get_attribute("href"))
            query = parse_qs(address.query)
            assert address.path == "/console/topics/sales"
            assert (query["step"], query["zone"]) == (["minute"], ["Asia/Tokyo"])
            assert [datetime.fromisoformat(query[name][0]) for name in ("from", "to")] == [at, at + HOUR]
        with tab.page.expect_navigation():
            tab.page.mouse.down()
            tab.page.mouse.up()
        assert "40 messages, by minute" in tab.text()
