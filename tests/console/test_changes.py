"""What waits for a decision: changes and held backfills on the page of each, over a real API."""

import re

import httpx
import pytest

from model.job import JobState
from model.principal import READ
from model.stream_options import StreamKind
from model.stream_record import Wanted
from tests.console.yard import EVIL, open_client, sign_in, token_of


@pytest.fixture
def bob(works):
    with open_client(works) as client:
        sign_in(client, works.bob)
        yield client


def decide(client: httpx.Client, job: str, verb: str, **fields: str) -> httpx.Response:
    page = client.get(f"/console/jobs/{job}/{verb}")
    return client.post(
        f"/console/jobs/{job}/{verb}", data={"form_token": token_of(page), "do": "perform", **fields}
    )


def test_who_asked_is_told_that_somebody_else_has_to_approve_and_may_take_it_back(works, ann, bob):
    asked = works.ask("drain", body={"timeout_seconds": 7})
    own = ann.get(f"/console/jobs/{asked}").text
    assert "Drain backup: the stream commits the messages that it has pulled, within 7 s, and then ends." in own
    assert "Somebody other than key:ann must approve this change." in own
    assert 'href="/console/streams/backup"' in own
    form = bob.get(f"/console/jobs/{asked}/approve").text
    assert "If you approve, Refeed carries out the action at once" in form
    assert "key:ann asks: Drain backup" in form
    refused = decide(ann, asked, "approve")
    assert (refused.status_code, "yourself" in refused.text) == (403, True)
    assert works.api.store.get_stream("backup").wanted is Wanted.RUNNING
    stale = decide(bob, asked, "approve", etag='"999"')
    assert (stale.status_code, "job_changed" in stale.text) == (412, True)
    done = decide(ann, asked, "reject", reason=f"not now {EVIL}")
    assert done.headers["location"] == f"/console/jobs/{asked}"
    listed = bob.get("/console/jobs", params={"kind": "change", "state": "CANCELLED"}).text
    assert (asked in listed, "Drain stream backup" in listed) == (True, True)
    everything = re.sub(r"<[^>]+>", "", bob.get("/console/jobs").text)
    assert ("0 messages published" in everything, "of unknown" in everything) == (True, False)
    rejected = bob.get(f"/console/jobs/{asked}").text
    assert (EVIL in rejected, "not now &lt;img" in rejected) == (False, True)
    assert f"/jobs/{asked}/approve" not in rejected


def test_what_can_not_be_undone_is_approved_with_its_name_alone(works, bob):
    works.api.store.launch_stream("pipeline-doomed", StreamKind.PIPELINE, actor="key:ann")
    asked = works.ask("cancel", "pipeline-doomed")
    assert 'data-typed="pipeline-doomed"' in bob.get(f"/console/jobs/{asked}/approve").text
    answer = decide(bob, asked, "approve", typed="pipeline")
    assert (answer.status_code, "Nothing was done" in answer.text) == (422, True)
    assert works.api.store.get(asked).state is JobState.PENDING
    assert decide(bob, asked, "approve", typed="pipeline-doomed").status_code == 303
    assert works.api.store.get_stream("pipeline-doomed").wanted is Wanted.CANCELLED
    assert asked not in bob.get("/console").text.split("Waits for a person")[1].split("</section>")[0]


def test_a_large_backfill_is_approved_by_another_person_and_a_canary_goes_on(works, ann, bob):
    waiting = bob.get("/console").text.split("Waits for a person")[1].split("</section>")[0]
    assert f'href="/console/jobs/{works.large}"' in waiting
    assert f'href="/console/jobs/{works.canary}"' in waiting
    assert "Somebody other than key:ann must approve this backfill" in ann.get(f"/console/jobs/{works.large}").text
    said = "The backfill continues to publish to orders. The backfill does not pause for a canary again."
    assert said in ann.get(f"/console/jobs/{works.canary}/resume").text
    form = bob.get(f"/console/jobs/{works.large}/approve").text
    assert "key:ann wants to publish 5,000 messages to orders." in form
    assert EVIL not in form
    approved = decide(bob, works.large, "approve")
    assert approved.headers.get("location") == f"/console/jobs/{works.large}", approved.text[-2000:]
    assert works.api.store.get(works.large).approval["by"] == "key:bob"
    assert works.api.store.get(works.canary).state is JobState.PAUSED


def test_a_reader_sees_which_scope_decides_and_gets_no_form(works):
    asked = works.ask("drain", body={"timeout_seconds": 7})
    with open_client(works) as client:
        sign_in(client, works.api.make_key(READ, name="reader"))
        page = client.get(f"/console/jobs/{asked}").text
    assert ("streams.operate" in page, f"{asked}/approve" in page) == (True, False)
