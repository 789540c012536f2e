"""A topic is attached and detached by a click."""

import re
from html import unescape

from model.principal import READ
from tests.console.yard import open_client, sign_in, token_of


def hidden_of(page):
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', page.text)
    return {name: unescape(value) for name, value in found}


def rows_of(page, label):
    """Return the text of each row's first cell and of its cell with the label."""
    found = {}
    for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL):
        texts = re.findall(r'<td data-label="([^"]+)"[^>]*>(.*?)</td>', row, re.DOTALL)
        cells = {name: re.sub(r"<[^>]+>", "", text).strip() for name, text in texts}
        if label in cells:
            found[next(iter(cells.values()))] = cells[label]
    return found


def test_a_topic_is_attached_by_a_click_that_says_what_it_creates(yard, browser):
    path = "/console/topics/orders/attach"
    assert path in browser.get("/console/topics").text
    page = browser.get(path)
    for wanted in ("Refeed creates the subscription refeed-backup.orders.", "&lt;token&gt;", "deadline is 60 s"):
        assert wanted in page.text
    assert yard.api.pubsub.list_subscriptions("orders") == []
    yard.api.pubsub.create_subscription("shop", "orders")
    before = browser.get("/console/topics/orders").text
    assert path in before
    assert rows_of(before, "A replay") == {"shop": "reaches it"}
    before = browser.get("/console/topics").text
    assert rows_of(before, "Replays reach")["orders"] == "1 of 1"
    sent = {**hidden_of(page), "form_token": token_of(page), "do": "perform"}
    assert browser.post(path, data=sent).headers["location"] == "/console/topics"
    after = browser.get("/console/topics/orders").text
    assert path not in after
    reach = {"shop": "reaches it", "refeed-backup.orders": "is kept out of the archive"}
    assert rows_of(after, "A replay") == reach
    assert "NOT attributes.refeed_replay = &#34;&lt;token&gt;&#34;" in after
    listed = browser.get("/console/topics").text
    assert rows_of(listed, "Replays reach")["orders"] == "1 of 2"
    assert float(rows_of(listed, "Messages/s")["orders"]) > 0
    assert rows_of(listed, "Messages/s")["replay"] == "unknown"
    yard.api.pubsub.delete_subscription("shop")
    (made,) = yard.api.pubsub.list_subscriptions("orders")
    assert made.id == "refeed-backup.orders"
    late = browser.post(path, data=sent)
    assert (late.status_code, "topic_backup_changed" in late.text) == (409, True)
    assert "is already backed up" in browser.get(path).text


def test_a_detach_asks_for_the_name_and_says_what_is_lost(yard, browser):
    with yard.api.client(yard.key) as client:
        assert client.post("/topics/other:attach").status_code == 200
    path = "/console/topics/other/detach"
    page = browser.get(path)
    assert "0 messages wait in the subscription. These messages are lost." in page.text
    sent = {**hidden_of(page), "form_token": token_of(page), "do": "perform"}
    assert browser.post(path, data={**sent, "typed": "oth"}).status_code == 422
    assert len(yard.api.pubsub.list_subscriptions("other")) == 1
    assert browser.post(path, data={**sent, "typed": "other"}).status_code == 303
    assert yard.api.pubsub.list_subscriptions("other") == []


def test_who_may_not_attach_is_offered_nothing(yard):
    with open_client(yard) as client:
        sign_in(client, yard.api.make_key(READ, name="reader"))
        page = client.get("/console/topics").text
        assert ("Attach ..." in page, "Detach ..." in page) == (False, False)
        assert "streams.operate" in client.get("/console/topics/replay/attach").text
