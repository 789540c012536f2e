"""The list of all that waits for a decision, over a real API."""

import re
from collections.abc import Iterator

import httpx
import pytest

from model.job import JobState
from model.principal import READ
from model.stream_options import StreamKind
from model.stream_record import Wanted
from tests.console.works import Works
from tests.console.yard import EVIL, open_client, sign_in, token_of


@pytest.fixture
def bob(works: Works) -> Iterator[httpx.Client]:
    with open_client(works) as client:
        sign_in(client, works.bob)
        yield client


def card_of(page: httpx.Response, name: str) -> str:
    found = re.search(rf'<article class="card" id="{name}">.*?</article>', page.text, re.DOTALL)
    assert found is not None, page.text[-3000:]
    return found[0]


def decide(client: httpx.Client, path: str, **fields: str) -> httpx.Response:
    page = client.get("/console/approvals")
    sent = {"form_token": token_of(page), "from_list": "yes", "do": "perform", **fields}
    return client.post(f"/console{path}", data=sent)


def test_who_asked_is_told_that_somebody_else_has_to_approve_and_may_take_it_back(works, ann, bob):
    asked = works.ask("drain", body={"timeout_seconds": 7})
    own, other = (card_of(client.get("/console/approvals"), asked) for client in (ann, bob))
    assert "Drain backup: the stream commits the messages that it has pulled, within 7 s, and then ends." in own
    assert ("You requested this action yourself" in own, f"/approvals/{asked}/approve" in own) == (True, False)
    assert ("Withdraw" in own, "You requested" in other) == (True, False)
    assert "If you approve, Refeed carries out the action at once" in other
    refused = decide(ann, f"/approvals/{asked}/approve")
    assert (refused.status_code, "yourself" in refused.text) == (403, True)
    assert works.api.store.get_stream("backup").wanted is Wanted.RUNNING
    done = decide(ann, f"/approvals/{asked}/reject", reason=f"not now {EVIL}")
    assert done.headers["location"] == "/console/approvals"
    rejected = bob.get("/console/approvals", params={"state": "REJECTED"})
    assert "Rejected by key:ann" in card_of(rejected, asked)
    assert (EVIL in rejected.text, "not now &lt;img" in rejected.text) == (False, True)


def test_what_can_not_be_undone_is_approved_with_its_name_alone(works: Works, bob: httpx.Client) -> None:
    works.api.store.launch_stream("pipeline-doomed", StreamKind.PIPELINE, actor="key:ann")
    asked = works.ask("cancel", "pipeline-doomed")
    assert 'data-typed="pipeline-doomed"' in card_of(bob.get("/console/approvals"), asked)
    answer = decide(bob, f"/approvals/{asked}/approve", typed="pipeline")
    assert (answer.status_code, "Nothing was done" in answer.text) == (422, True)
    assert works.api.store.get_approval(asked).state == "WAITING"
    assert decide(bob, f"/approvals/{asked}/approve", typed="pipeline-doomed").status_code == 303
    assert works.api.store.get_stream("pipeline-doomed").wanted is Wanted.CANCELLED
    assert asked not in bob.get("/console/approvals").text


def test_a_large_backfill_is_approved_by_another_person_and_a_canary_goes_on(works, ann, bob):
    page = ann.get("/console/approvals")
    assert "You created this backfill yourself" in card_of(page, works.large)
    assert (
        "The backfill continues to publish to orders. The backfill does not pause for a canary again."
        in card_of(page, works.canary)
    )
    card = card_of(bob.get("/console/approvals"), works.large)
    assert "key:ann wants to publish 5,000 messages to orders." in card
    assert EVIL not in card
    etag = re.search(r'name="etag" value="([^"]+)"', card)[1].replace("&#34;", '"')
    stale = decide(bob, f"/jobs/{works.large}/approve", etag='"999"')
    assert (stale.status_code, "job_changed" in stale.text) == (412, True)
    approved = decide(bob, f"/jobs/{works.large}/approve", etag=etag)
    assert approved.headers.get("location") == "/console/approvals", approved.text[-2000:]
    assert works.api.store.get(works.large).approval["by"] == "key:bob"
    assert works.api.store.get(works.canary).state is JobState.PAUSED


def test_a_reader_sees_which_scope_decides_and_gets_no_form(works: Works) -> None:
    asked = works.ask("drain", body={"timeout_seconds": 7})
    with open_client(works) as client:
        sign_in(client, works.api.make_key(READ, name="reader"))
        page = client.get("/console/approvals")
    card = card_of(page, asked)
    assert ("streams.operate" in card, "<form" in card) == (True, False)
