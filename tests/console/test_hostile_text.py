"""Markup in every text that others write, as Chromium shows it: it stays text, and runs nothing."""

from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import quote, urlencode

import pytest

from backfill.plan.request import BackfillRequest
from backfill.run.progress import Progress
from connectors.lake.archive import LakeArchive
from model.fault import FaultRecord
from model.job import JobState, new_job_id
from tests.archive import entries, messages, write_commits
from tests.console.places import LAST_DAYS, find_places
from tests.console.yard import Yard, make_yard

pytestmark = pytest.mark.browser

# Ends what it may stand in: a text, an attribute of either quote, a script, a comment.
EVIL = """'"--></script></pre></textarea><img src=x onerror="window.ran=1"><script>window.ran=2</script>"""
LINK = "javascript:window.ran=3"
TOPIC = f"evil{EVIL}"


@pytest.fixture(scope="module")
def yard(start_api):
    yard = make_yard(start_api)
    _archive_evil(yard)
    request = BackfillRequest(
        query=f"SELECT data FROM `{EVIL}`",
        topic=TOPIC,
        parameters={EVIL: {"type": "STRING", "value": EVIL}},
        description=EVIL,
        labels={"link": LINK, EVIL: EVIL},
    )
    window = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}
    asked = {**request.to_json(), "window": window, "source_topics": None}
    store = yard.api.store
    job = store.insert(new_job_id("bf"), "backfill", asked, actor=EVIL, state=JobState.PAUSED).id
    store.set_progress(job, Progress(selected=2, published=1, failed=1).to_json())
    store.move(job, JobState.FAILED, actor=EVIL, error=FaultRecord(EVIL, EVIL))
    yard.failed = job
    yard.report("backup", state=EVIL, totals={"messages": 1}, error={"code": EVIL, "message": EVIL})
    return yard


def _archive_evil(yard: Yard) -> None:
    rows = messages(
        2,
        data=[f'{{"a": "{LINK}"}}'.encode(), EVIL.encode()],
        attributes=[entries({EVIL: EVIL})] * 2,
        message_id=[EVIL, LINK],
        publish_time=[datetime.now(UTC)] * 2,
        ordering_key=[EVIL] * 2,
    )
    archive = LakeArchive(str(yard.api.home / "lake"), "backup.messages")
    write_commits(archive, dict.fromkeys((TOPIC, "orders"), rows))


def _hostile_places(yard: Yard) -> Iterator[str]:
    yield from find_places(yard)
    evil, name = urlencode({"show": "messages", "attribute": EVIL, **LAST_DAYS}), quote(TOPIC, safe="")
    yield f"/topics/{name}?{evil}"
    yield f"/topics/orders?{urlencode({'show': 'messages', 'zone': EVIL, **LAST_DAYS})}"
    yield f"/jobs?{urlencode({'topic': EVIL, 'label': EVIL, 'since': EVIL})}"
    yield f"/jobs?{urlencode({'kind': EVIL, 'state': EVIL})}"
    yield f"/backfills/new?{urlencode({'source': TOPIC, 'message_id': EVIL, 'labels': EVIL, 'topic': EVIL})}"
    yield f"/streams/{name}"
    yield f"/sign-in?{urlencode({'return': LINK})}"
    yield f"/{name}"


def test_no_text_of_others_runs_or_becomes_markup(yard, open_tab):
    tab = open_tab()
    tab.sign_in(yard.key)
    shown = 0
    for place in _hostile_places(yard):
        # open() also sees a handler or a script that the page's policy stopped.
        tab.open(place)
        assert tab.page.evaluate("window.ran") is None, place
        found = tab.page.evaluate("""() => [
          document.querySelectorAll("img, script:not([src]), [onerror]").length,
          [...document.links].filter((each) => !each.protocol.startsWith("http")).length,
        ]""")
        assert found == [0, 0], place
        assert tab.page.title() not in {"1", "2", "3"}, place
        shown += any(sign in tab.text() for sign in ("window.ran=1", "document.title=1"))
    # The texts did come to the browser, on most pages.
    assert shown >= 15
    tab.open("/sign-in?" + urlencode({"return": LINK}))
    assert tab.page.input_value("input[name=return]") == "/console"


def test_nor_does_it_when_a_page_changes_by_itself_or_the_gate_answers(yard, open_tab):
    tab = open_tab()
    tab.sign_in(yard.key)
    tab.open(f"/jobs/{yard.failed}")
    tab.page.wait_for_selector("#as-of time")
    yard.api.store.set_progress(yard.failed, Progress(selected=4, published=2, failed=1).to_json())
    tab.page.wait_for_selector("text=50 %")
    assert (tab.page.evaluate("window.ran"), tab.page.evaluate("window.refused")) == (None, [])
    tab.open("/backfills/new?topic=replay")
    tab.page.fill("#query", f"SELECT `{EVIL}` FROM `{EVIL}` WHERE x = '''{EVIL}'''")
    tab.page.wait_for_selector("#findings li")
    assert tab.page.locator("#findings img, .under img").count() == 0
    assert (tab.page.evaluate("window.ran"), tab.page.evaluate("window.refused")) == (None, [])
