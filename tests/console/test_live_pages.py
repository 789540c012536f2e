"""Open pages in Chromium while the API that they show stops and starts again."""

from contextlib import ExitStack

import pytest

from backfill.run.progress import Progress
from tests.api.conftest import serve_api
from tests.app.test_console import alone
from tests.console.tab import WIDE, Tab
from tests.console.yard import make_yard

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("place", ["beside", "alone"])
def test_an_open_page_goes_on_after_the_api_has_restarted_without_a_reload(tmp_path_factory, chromium, place):
    home = tmp_path_factory.mktemp("home")
    context = chromium.new_context(viewport={"width": WIDE[0], "height": 900})
    with ExitStack() as around:
        around.callback(context.close)
        with serve_api(home, {}) as api:
            yard = make_yard(lambda: api)
            url = yard.url
            if place == "alone":
                url = f"{around.enter_context(alone(api.url)).base_url}/console"
            tab = Tab(context.new_page(), url)
            tab.sign_in(yard.key)
            tab.open(f"/jobs/{yard.running}")
            tab.page.wait_for_selector("#as-of time")
            assert "25 %" in tab.text()
            tab.page.evaluate("window.isTheSame = true")
        tab.page.wait_for_selector("#away:not([hidden])")
        assert "does not answer" in tab.page.inner_text("#away")
        # The figures that were true stay, and say of what time they are.
        assert "25 %" in tab.text()
        assert tab.page.locator(".as-of.late").count() == 1
        with serve_api(home, {}, port=api.port) as again:
            again.store.set_progress(yard.running, Progress(selected=1000, published=500).to_json())
            tab.page.wait_for_selector("text=50 %")
            assert tab.page.evaluate("window.isTheSame")
            assert tab.page.locator(".as-of.late").count() == 0
            assert tab.page.is_hidden("#away")
            tab.page.click("nav >> text=Streams")
            tab.page.wait_for_url(f"{url}/streams")
            context.close()
