"""The operator's night of test_story.py by the console: a hole is found, brushed, tried, repaired and verified."""

from contextlib import closing
from typing import Any

import pytest

from rollout.child import Children
from tests.acceptance.test_story import (
    ARCHIVED,
    CANARY,
    FIRST,
    HOLE,
    LAST,
    ORDERS,
    REPAIR,
    REPAIRED,
    STRAYED,
    WRONG,
    StoryHouse,
    moment_of,
    render,
)
from tests.console.tab import WIDE, Tab, calm, start_chromium

pytestmark = [pytest.mark.java, pytest.mark.browser, pytest.mark.timeout(300)]

# Slow enough to be paused between the canary and the end.
RATE = 5
MILLISECONDS = 60_000
DAYTIME = f"step=hour&from={render(FIRST)}&to={render(LAST)}"


@pytest.fixture
def house(tmp_path):
    with Children() as children, closing(StoryHouse(tmp_path / "home", children)) as house:
        yield house


@pytest.fixture
def tab(house):
    with start_chromium() as browser:
        page = browser.new_page(viewport={"width": WIDE[0], "height": 900})
        tab = Tab(page, f"http://127.0.0.1:{house.api_port}/console")
        page.set_default_timeout(MILLISECONDS)
        yield tab


def find(tab: Tab) -> None:
    """An hour of orders is empty, and another topic has that many, half of them of another version."""
    tab.open(f"/topics/orders?{DAYTIME}")
    assert f"{sum(ARCHIVED.values())} messages, by hour" in tab.text()
    gap = tab.page.locator("rect.gap")
    assert (gap.count(), moment_of(gap.get_attribute("data-start"))) == (1, HOLE)
    assert "1 hour without messages, although messages came before and after" in tab.text()
    assert tab.page.inner_text("#elsewhere tbody td >> nth=0") == "orders-next"

    tab.open(f"/topics/orders-next?{DAYTIME}")
    assert f"{STRAYED} messages, by hour" in tab.text()
    tab.page.fill("[name=attribute]", "version=2")
    tab.page.click("text=Show the messages")
    tab.page.locator("article.message").nth(len(WRONG) - 1).wait_for()
    shown = {each.inner_text() for each in tab.page.locator("article.message h3").all()}
    assert shown == {order.message_id for order in WRONG}
    assert '"currency":"SEK"' in tab.page.inner_text("article.message pre >> nth=0")


def brush(tab: Tab) -> None:
    """Drag over the empty hour, which the range's fields then name."""
    tab.open(f"/topics/orders?{DAYTIME}")
    bar = tab.page.locator("rect.gap").bounding_box()
    tab.page.mouse.move(bar["x"] + 0.3 * bar["width"], bar["y"] + 5)
    tab.page.mouse.down()
    tab.page.mouse.move(bar["x"] + 0.7 * bar["width"], bar["y"] + 5)
    tab.page.mouse.up()
    assert brushed(tab, "[data-from]", "[data-to]") == [HOLE, HOLE.replace(hour=HOLE.hour + 1)]


def brushed(tab: Tab, *fields: str) -> list[Any]:
    return [moment_of(tab.page.input_value(field)) for field in fields]


def plan_nothing(tab: Tab) -> None:
    """A replay of the empty hour can't be launched, and names the topic that has its messages."""
    tab.page.click("text=Replay this range ...")
    with tab.page.expect_navigation():
        tab.page.click("text=Plan: show what the backfill would do")
    tab.page.wait_for_selector("#plan")
    assert "The backfill would publish 0 messages to orders" in tab.text()
    assert tab.page.is_disabled("button:text-is('Launch: publish 0 messages')")
    named = tab.page.locator("#elsewhere tbody tr").all_inner_texts()
    assert [row.split("\t")[:3] for row in named] == [["orders-next", str(STRAYED), "0"]]
    with tab.page.expect_navigation():
        tab.page.click("text=orders-next to orders ...")
    assert "topic = 'orders-next'" in tab.page.input_value("#query")
    assert tab.page.input_value("#topic") == "orders"
    assert brushed(tab, "#from", "#to") == [HOLE, HOLE.replace(hour=HOLE.hour + 1)]


def plan(tab: Tab) -> None:
    # As it stands, the query already selects the hour and nothing else.
    with tab.page.expect_navigation():
        tab.page.click("text=Plan: show what the backfill would do")
    tab.page.wait_for_selector("#plan")
    assert f"The backfill would publish {STRAYED} messages to orders" in tab.text()
    tab.page.fill("#query", REPAIR)
    tab.page.wait_for_selector("text=The query is allowed.")
    tab.page.fill("#canary", str(CANARY))
    tab.page.fill("#rate", str(RATE))
    tab.page.fill("#description", "The hour that went to orders-next")
    with tab.page.expect_navigation():
        tab.page.click("text=Plan: show what the backfill would do")
    tab.page.wait_for_selector("#plan >> text=data_rewritten")
    said = tab.text()
    assert f"The backfill would publish {STRAYED} messages to orders" in said
    receivers = [row.split("\t")[:2] for row in tab.page.locator("#receivers tbody tr").all_inner_texts()]
    assert receivers == [
        ["refeed-backup.orders", "is kept out of the archive"],
        ["refeed-pipeline.orders", "reaches it"],
    ]


def act(tab: Tab, verb: str) -> None:
    tab.page.click(f"text={verb} ...")
    press(tab, verb)


def press(tab: Tab, button: str) -> None:
    """Press a button that leads to the backfill's page."""
    tab.page.click(f"main button:text-is('{button}')")
    tab.page.wait_for_selector("#live, main .problem")
    assert tab.page.locator("#live").count() == 1, tab.text()


def wait_for_verdict(tab: Tab, **figures: Any) -> None:
    for name, value in figures.items():
        tab.page.wait_for_selector(f".verdicts li:has-text('{name}'):has-text('{value}')")


def test_a_hole_in_one_hour_is_found_brushed_tried_paused_repaired_and_verified(house, tab):
    house.start_pipeline()
    with calm(tab):
        find(tab)
        brush(tab)
        plan_nothing(tab)
        plan(tab)

        # Tried: ten go out, and it waits.
        press(tab, f"Launch: publish {STRAYED} messages")
        job = tab.page.url.rpartition("/")[2]
        tab.page.wait_for_selector(f"text=The canary of {CANARY} messages is published.")
        house.stage(CANARY)
        assert len(house.staged()) == CANARY
        assert {row["_backfill_id"] for row in house.staged()} == {job}
        tab.open("")
        assert f"{CANARY} of {STRAYED} messages are published" in tab.text()
        tab.page.click(f"a[href$='/jobs/{job}'] >> nth=0")

        # It goes on, is paused, and goes on to its end.
        act(tab, "Resume")
        tab.page.wait_for_selector(".badge:text-is('RUNNING')")
        act(tab, "Pause")
        tab.page.wait_for_selector(".badge:text-is('PAUSED')")
        assert CANARY <= house.show(job)["progress"]["published"] < STRAYED
        act(tab, "Resume")
        tab.page.wait_for_selector(".badge:text-is('SUCCEEDED')")

        # Verified, by itself on the open page.
        house.stage(STRAYED - CANARY)
        wait_for_verdict(tab, selected=STRAYED, published=STRAYED, landed=STRAYED, missing=0, verdict="complete")
    assert {row["_message_id"]: {"id": row["id"], "amount": row["amount"]} for row in house.staged()} == REPAIRED
    assert len(house.staged()) == len(ORDERS)
