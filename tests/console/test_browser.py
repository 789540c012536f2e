"""The console in Chromium, as people see it: both widths, both colour schemes, the keyboard, and live updates."""

import pytest

from backfill.run.progress import Progress
from jobs.keys import Keyring
from tests.console.places import apply_schedule
from tests.console.tab import NARROW, calm

pytestmark = pytest.mark.browser


def test_figures_change_without_a_reload_and_the_focus_stays(yard, open_tab):
    tab = open_tab()
    with calm(tab):
        tab.sign_in(yard.key)
        tab.open(f"/jobs/{yard.running}")
        assert "25 %" in tab.text()
        tab.page.evaluate("window.isTheSame = true")
        tab.page.focus("text=Resume ...")
        yard.api.store.set_progress(yard.running, Progress(selected=1000, published=500).to_json())
        tab.page.wait_for_selector("text=50 %")
        assert tab.page.evaluate("window.isTheSame")
        assert tab.page.evaluate("document.activeElement.textContent") == "Resume ..."
        # What comes or goes beside it takes no focus away either.
        moved = tab.page.evaluate("""() => {
          const fresh = document.createElement("p");
          fresh.className = "warning";
          document.querySelector("#live .actions").before(fresh);
          return document.querySelectorAll("#live .warning").length;
        }""")
        yard.api.store.set_progress(yard.running, Progress(selected=1000, published=250).to_json())
        tab.page.wait_for_selector("text=25 %")
        assert tab.page.evaluate("document.querySelectorAll('#live .warning').length") == moved - 1
        assert tab.page.evaluate("document.activeElement.textContent") == "Resume ..."


def test_a_document_can_be_copied_also_after_its_page_has_been_refreshed(yard, open_tab):
    tab = open_tab()
    with calm(tab):
        tab.sign_in(yard.key)
        tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        tab.open(f"/manifests/{apply_schedule(yard)}")
        # The server's own button, which is disabled, has come once more.
        tab.page.wait_for_selector("#as-of time")
        tab.page.click("text=Copy the document")
        tab.page.wait_for_selector("text=Copied")
        assert tab.page.evaluate("navigator.clipboard.readText()").startswith("kind: Schedule\nname: yearly\n")


def test_a_page_ages_by_its_own_clock_while_the_api_is_frozen(yard, open_tab):
    tab = open_tab()
    tab.sign_in(yard.key)
    tab.page.clock.install()
    # Connected, and never answered: what a process that hangs does.
    tab.page.route("**/console/live/**", lambda route: None)
    tab.open("/streams")
    tab.page.clock.run_for(17_000)
    assert tab.page.is_hidden("#away")
    tab.page.clock.run_for(2_000)
    assert "The figures are 1" in tab.page.inner_text("#away")
    assert "s old. The API or the console does not answer." in tab.page.inner_text("#away")
    assert tab.page.locator(".as-of.late").count() == 1
    # A topic's page is read once, and says so nowhere.
    tab.open("/topics/orders")
    tab.page.clock.run_for(60_000)
    assert tab.page.is_hidden("#away")


def test_a_revoked_key_takes_an_open_page_to_the_sign_in(yard, open_tab):
    keyring = Keyring(yard.api.store)
    made, key = keyring.create("leaver", ["backfills.admin"])
    tab = open_tab()
    tab.sign_in(key)
    tab.open("/streams?zone=Asia%2FTokyo")
    keyring.revoke(made.id)
    tab.page.wait_for_url("**/console/sign-in?return=*")
    tab.page.fill("#key", yard.key)
    tab.page.click("main button")
    tab.page.wait_for_url(f"{yard.url}/streams?zone=Asia%2FTokyo")
    tab.page.wait_for_selector("#as-of time")
    assert tab.page.inner_text("#as-of").endswith("+09:00")


def test_the_keyboard_alone_signs_in_moves_about_and_acts(yard, open_tab):
    tab = open_tab()
    keys = tab.page.keyboard
    tab.open("/sign-in")
    keys.type(yard.key)
    keys.press("Enter")
    tab.page.wait_for_url(yard.url)
    keys.press("Tab")
    assert tab.page.evaluate("document.activeElement.className") == "skip"
    seen = []
    while tab.page.evaluate("document.activeElement.textContent") != "Jobs":
        keys.press("Tab")
        seen.append(tab.page.evaluate("document.activeElement.textContent"))
        assert len(seen) < 20, seen
    keys.press("Enter")
    tab.page.wait_for_url("**/console/jobs")
    tab.open(f"/jobs/{yard.running}/cancel")
    tab.page.wait_for_selector("button.danger:disabled")
    tab.page.focus("#typed")
    keys.type("orders")
    assert tab.page.is_enabled("button.danger")


def test_from_the_hole_to_the_launch_in_four_actions(yard, open_tab):
    tab = open_tab()
    tab.sign_in(yard.key)
    tab.open("/topics/orders?step=hour")
    chart = tab.page.locator("[data-brush] svg").bounding_box()
    y = chart["y"] + chart["height"] / 2
    tab.page.mouse.move(chart["x"] + 2, y)
    tab.page.mouse.down()
    tab.page.mouse.move(chart["x"] + chart["width"] - 2, y)
    tab.page.mouse.up()
    begin = tab.page.input_value("[data-from]")
    assert begin == tab.page.locator("[data-brush] rect[data-start]").first.get_attribute("data-start")
    with calm(tab):
        tab.page.click("text=Replay this range ...")
        assert tab.page.input_value("#from") == begin
        # The archive of this topic goes to another one, which has no backup subscription to refuse it.
        tab.page.fill("#topic", "replay")
        tab.page.click("text=Plan: show what the backfill would do")
        tab.page.wait_for_selector("#plan")
        assert "The backfill would publish 30 messages to replay" in tab.text()
        # A plan can be opened again, and Back leads to the editor: nothing is posted twice.
        tab.page.wait_for_url("**/console/backfills/new?plan=pl_*")
        tab.page.reload()
        assert "The backfill would publish 30 messages to replay" in tab.text()
        tab.page.go_back()
        assert tab.page.input_value("#from") == begin
        tab.page.go_forward()
        tab.page.wait_for_selector("#plan")
        tab.page.click("text=Launch: publish 30 messages")
        tab.page.wait_for_url("**/console/jobs/bf_*")
    assert yard.api.store.get(tab.page.url.rpartition("/")[2]).request["topic"] == "replay"


def test_names_and_times_stay_whole_on_a_narrow_screen(yard, open_tab):
    tab = open_tab(NARROW)
    tab.sign_in(yard.key)
    tab.open("/topics/orders?show=messages&step=hour")
    tab.page.wait_for_selector("text=The search has read all messages")
    lines = """(each) => {
      const range = document.createRange();
      range.selectNodeContents(each);
      return range.getClientRects().length;
    }"""
    assert tab.page.locator(".message dt").first.evaluate(lines) == 1
    first, middle, last = (each.bounding_box() for each in tab.page.locator(".axis span").all())
    assert first["y"] == middle["y"] == last["y"]
    assert first["x"] < middle["x"] < last["x"]
    tab.open("/topics/orders/attach")
    label = tab.page.locator("label.check")
    box = label.locator("input").bounding_box()
    assert label.evaluate("(each) => getComputedStyle(each).display") == "flex"
    assert box["width"] < 30


def test_a_query_has_no_findings_before_its_range_is_written(yard, open_tab):
    tab = open_tab()
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    tab.sign_in(yard.key)
    tab.open("/backfills/new?source=orders")
    tab.page.wait_for_load_state("networkidle")
    assert not [url for url in asked if url.endswith("/queries/check")]
    tab.page.fill("#from", "2026-01-01T00:00:00Z")
    tab.page.wait_for_selector("#findings:has-text('No value is given for @to.')")


def test_what_the_gate_finds_is_underlined_while_one_types_and_mended_by_a_click(yard, open_tab):
    tab = open_tab()
    tab.sign_in(yard.key)
    tab.open("/backfills/new?topic=replay&from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z")
    with calm(tab):
        tab.page.wait_for_selector("text=The query is allowed.")
        tab.page.fill("#query", "SELECT data, '\U0001f600' AS note FROM backup.messages")
        tab.page.wait_for_selector(".under mark")
        marks = tab.page.eval_on_selector_all(".under mark", "marks => marks.map((each) => each.textContent)")
        assert "backup" in marks
        assert tab.page.inner_text("#findings").count("column") >= 1
        tab.page.click("text=Correct it")
        tab.page.wait_for_selector("text=The query is allowed.")
        assert "_PARTITION" in tab.page.input_value("#query")
        assert tab.page.locator(".under mark").count() == 0


def test_a_time_is_copied_as_utc_in_whatever_zone_it_is_shown(yard, open_tab):
    tab = open_tab()
    tab.sign_in(yard.key)
    tab.open(f"/jobs/{yard.done}?zone=Asia%2FTokyo")
    shown, copied = tab.page.evaluate("""() => {
      const time = document.querySelector("dd time");
      const range = document.createRange();
      range.selectNodeContents(time);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      const event = new ClipboardEvent("copy", {clipboardData: new DataTransfer(), bubbles: true});
      time.dispatchEvent(event);
      return [time.title, event.clipboardData.getData("text/plain")];
    }""")
    assert shown.endswith("+09:00")
    assert copied.endswith("Z")
    assert copied[:10] <= shown[:10]
