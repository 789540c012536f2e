"""What a create checks, keeps and refuses."""

from contextlib import closing
from dataclasses import asdict, replace

import pytest

from backfill.plan.request import YieldTo
from backfill.run.progress import Progress
from backfill.steer.verification import Verification, VerificationState
from jobs.store import JobStore, StoredPlan
from model.errors import (
    BackfillOverlapsError,
    ForbiddenError,
    PlanExpiredError,
    PlanMismatchError,
    ReplayArchivedError,
    RequestInvalidError,
    SubscriptionNotFoundError,
    TargetSubscriptionError,
    TopicNotFoundError,
)
from model.job import JobState, is_job_id
from model.message import replay_token
from model.principal import MESSAGES, PLAN, READ, RUN, Principal

ANN = Principal("key:ann", frozenset({READ, PLAN, RUN}))


def test_a_backfill_is_kept_pending_with_all_that_its_driver_needs(service, deployment, request_of, folder_of):
    request = request_of(description="why", labels={"ticket": "42"}, max_failed=3, attributes={"a": "b"})
    made = service.create(request, principal=ANN)
    assert is_job_id(made.id)
    assert (made.state, made.topic, made.created_by) == (JobState.PENDING, "replay", "key:ann")
    assert (made.description, made.labels, made.parameters) == ("why", {"ticket": "42"}, request.parameters)
    assert made.to_json()["window"]["from"].endswith("T00:00:00Z")
    assert made.to_json()["max_failed"] == 3
    assert made.verification.state == "pending"
    assert service.get(made.id, principal=ANN) == made
    specification = folder_of(made.id).read_specification()
    assert specification["target"] == {
        "backfill_id": made.id,
        "topic_path": "projects/shop/topics/replay",
        "emulator_host": deployment.emulator_host,
        "replay_token": replay_token("secret", "replay"),
    }
    assert (specification["run"]["max_failed"], specification["run"]["attributes"]) == (3, {"a": "b"})
    assert specification["run"] == {
        **request.to_json(),
        "approval_rows": None,
        "bounds": {"max_rows": None, "max_bytes": None, "min_free_bytes": 0},
        "only": "all",
    }


def test_only_topics_that_the_caller_may_publish_to_are_named_as_close(service, request_of):
    narrow = Principal("key:narrow", frozenset({RUN}), ("repaly", "elsewhere"))
    with pytest.raises(TopicNotFoundError) as refused:
        service.create(request_of(topic="repaly"), principal=narrow)
    assert "Did you mean" not in refused.value.message


def test_a_topic_is_created_when_that_is_asked_for_and_by_no_plan(service, pubsub, request_of, archive):
    request = request_of(topic="brand-new", create_topic=True)
    assert [warning["code"] for warning in service.plan(request, principal=ANN)["warnings"]] == ["nobody_receives"]
    assert not pubsub.topic_exists("brand-new")
    made = service.create(request, principal=ANN)
    assert pubsub.topic_exists("brand-new")
    assert [warning.code for warning in made.warnings] == ["nobody_receives"]
    assert made.to_json()["create_topic"] is True


def test_a_create_warns_that_nobody_receives_what_it_publishes_until_it_is_received(
    service, pubsub, request_of, store
):
    pubsub.attach_backup("replay", token=replay_token("secret", "replay"), ack_deadline_seconds=10)
    pubsub.create_subscription("originals", "replay", message_filter="NOT attributes:refeed_backfill_id")
    made = service.create(request_of(start_paused=True), principal=ANN)
    assert [warning.code for warning in made.warnings] == ["nobody_receives"]
    assert service.get(made.id, principal=ANN).warnings == made.warnings
    service.cancel(made.id, principal=ANN)
    for counts, codes in (
        ({"landed": 0, "waiting": 0}, ["nobody_receives"]),
        ({"landed": 0, "waiting": 2}, []),
        ({"landed": 2, "waiting": 0}, []),
    ):
        verdict = asdict(Verification(VerificationState.PENDING, selected=2, published=2, **counts))
        store.set_verification(made.id, verdict, actor="refeed", epoch=0, again_seconds=None)
        assert [warning.code for warning in service.get(made.id, principal=ANN).warnings] == codes
    pubsub.create_subscription("billing", "replay")
    assert service.create(request_of(allow_overlap=True), principal=ANN).warnings == []


def test_a_backfill_warns_that_nothing_is_selected_once_that_is_known(service, pubsub, request_of, archive, store):
    pubsub.create_subscription("billing", "replay")
    nothing = request_of(query=request_of().query.replace("'orders'", "'nobody'"))
    unplanned = service.create(nothing, principal=ANN)
    assert unplanned.warnings == []
    store.set_progress(unplanned.id, Progress(selected=0).to_json())
    found = service.get(unplanned.id, principal=ANN)
    assert [warning.code for warning in found.warnings] == ["nothing_selected"]
    plan_id = service.plan(nothing, principal=ANN)["plan_id"]
    asked = replace(nothing, plan_id=plan_id, allow_overlap=True, allow_empty=True)
    planned = service.create(asked, principal=ANN)
    assert [warning.code for warning in planned.warnings] == ["nothing_selected"]
    # The archive has grown since the plan.
    store.set_progress(planned.id, Progress(selected=3).to_json())
    assert service.get(planned.id, principal=ANN).warnings == []


def test_a_plan_without_rows_is_refused_when_empty_is_to_fail(service, request_of, archive):
    nothing = request_of(query=request_of().query.replace("'orders'", "'nobody'"), fail_if_empty=True)
    plan = service.plan(nothing, principal=ANN)
    with pytest.raises(RequestInvalidError, match="selects nothing") as refused:
        service.create(replace(nothing, plan_id=plan["plan_id"]), principal=ANN)
    assert [error["code"] for error in refused.value.details["errors"]] == ["nothing_selected"]
    assert service.create(nothing, principal=ANN).to_json()["fail_if_empty"] is True


def test_a_plan_without_rows_is_launched_only_where_the_request_says_that_it_is_meant(
    service, request_of, archive
):
    nothing = request_of(query=request_of().query.replace("'orders'", "'nobody'"))
    planned = replace(nothing, plan_id=service.plan(nothing, principal=ANN)["plan_id"])
    with pytest.raises(RequestInvalidError, match="allow_empty") as refused:
        service.create(planned, principal=ANN, idempotency_key="k")
    (error,) = refused.value.details["errors"]
    assert (error["code"], error["pointer"]) == ("nothing_selected", "/allow_empty")
    # The key of the refused call is free for the one that means it.
    meant = service.create(replace(planned, allow_empty=True), principal=ANN, idempotency_key="k")
    assert meant.to_json()["allow_empty"] is True
    # Nobody has counted the rows of one without a plan, such as a schedule's.
    assert service.create(replace(nothing, allow_overlap=True), principal=ANN).state is JobState.PENDING
    with pytest.raises(RequestInvalidError, match="fail_if_empty"):
        service.create(replace(planned, allow_empty=True, fail_if_empty=True), principal=ANN)


def test_what_overlaps_an_active_backfill_is_refused_unless_it_is_asked_for(service, request_of, tmp_path):
    first = service.create(request_of((0, 1)), principal=ANN)
    with pytest.raises(BackfillOverlapsError, match=first.id) as caught:
        service.create(request_of((-1, 1)), principal=ANN)
    assert [error["code"] for error in caught.value.details["errors"]] == ["backfill_overlaps"]
    assert [path.name for path in (tmp_path / "backfills").iterdir()] == [first.id]
    allowed = [{"days": (1, 2)}, {"topic": "elsewhere"}, {"days": (-1, 1), "allow_overlap": True}]
    for changes in allowed:
        service.create(request_of(**changes), principal=ANN)
    service.cancel(first.id, principal=ANN)
    with pytest.raises(BackfillOverlapsError):
        service.create(request_of((0, 1)), principal=ANN)


def test_a_plan_over_a_lake_is_exact_whether_that_is_asked_for_or_not(service, request_of, archive):
    plans = [service.plan(request_of(), principal=ANN, exact=exact) for exact in (False, True)]
    for plan in plans:
        del plan["plan_id"], plan["expires_at"]
    assert plans[0] == plans[1]
    assert plans[0]["rows"] == 30


def test_backfills_of_known_and_different_source_topics_do_not_overlap(service, request_of, archive):
    orders = request_of()
    members = request_of(query=orders.query.replace("'orders'", "'members'"))
    plans = [service.plan(request, principal=ANN)["plan_id"] for request in (orders, members)]
    service.create(request_of(plan_id=plans[0]), principal=ANN)
    service.create(request_of(query=members.query, plan_id=plans[1]), principal=ANN)
    # Where its messages come from is not known without a plan.
    with pytest.raises(BackfillOverlapsError):
        service.create(members, principal=ANN)


def test_a_selection_tells_where_messages_come_from_too(service, request_of, archive, publish):
    running = service.create(request_of(), principal=ANN)
    publish(running.id, 30, 5)
    members = request_of(query=request_of().query.replace("'orders'", "'members'"))
    plan = service.plan(members, principal=ANN)
    assert service.create(request_of(query=members.query, plan_id=plan["plan_id"]), principal=ANN)


def test_a_create_may_quote_a_plan_of_itself_that_has_not_expired(service, request_of, archive, open_service):
    plan = service.plan(request_of(), principal=ANN)
    made = service.create(request_of(plan_id=plan["plan_id"]), principal=ANN)
    assert made.plan_id == plan["plan_id"]
    for changes in ({"query": request_of().query + " AND true"}, {"topic": "other"}, {"days": (-2, 2)}):
        with pytest.raises(PlanMismatchError):
            service.create(request_of(plan_id=plan["plan_id"], **changes), principal=ANN)
    with pytest.raises(PlanExpiredError):
        service.create(request_of(plan_id="pl_nothing"), principal=ANN)
    hasty = open_service(plan_seconds=0)
    expired = hasty.plan(request_of(), principal=ANN)
    with pytest.raises(PlanExpiredError):
        service.create(request_of(plan_id=expired["plan_id"]), principal=ANN)


def test_a_plan_with_more_rows_than_allowed_is_refused(service, request_of, archive):
    plan = service.plan(request_of(), principal=ANN)
    assert plan["rows"] == 30
    with pytest.raises(RequestInvalidError, match="30 rows, but max_rows allows only 29"):
        service.create(request_of(plan_id=plan["plan_id"], max_rows=29), principal=ANN)
    assert service.create(request_of(plan_id=plan["plan_id"], max_rows=30), principal=ANN)


def test_a_query_that_may_read_more_bytes_than_allowed_is_refused(service, request_of, archive):
    size = sum(file.size_bytes for file in archive.data_files())
    with pytest.raises(RequestInvalidError, match=f"may read {size} bytes"):
        service.create(request_of(max_bytes_billed=size - 1), principal=ANN)
    assert service.create(request_of(max_bytes_billed=size), principal=ANN)


def test_a_target_whose_backup_would_archive_the_replay_is_refused(service, request_of, pubsub):
    pubsub.create_topic("replay")
    pubsub.create_subscription(
        "refeed-backup.replay", "replay", message_filter='NOT attributes.refeed_replay = "x"'
    )
    with pytest.raises(ReplayArchivedError, match=r"refeed-backup\.replay") as refused:
        service.create(request_of(), principal=ANN)
    assert '"x"' not in refused.value.message
    pubsub.delete_subscription("refeed-backup.replay")
    pubsub.attach_backup("replay", token=replay_token("secret", "replay"), ack_deadline_seconds=10)
    assert service.create(request_of(), principal=ANN)


def test_a_single_consumer_must_select_what_is_meant_for_it(service, request_of, pubsub, folder_of):
    pubsub.create_topic("replay")
    pubsub.create_subscription("billing", "replay", message_filter='attributes.refeed_target = "billing"')
    pubsub.create_subscription("deaf", "replay", message_filter="NOT attributes:refeed_target")
    made = service.create(request_of(target_subscription="billing"), principal=ANN)
    assert folder_of(made.id).read_specification()["run"]["attributes"] == {"refeed_target": "billing"}
    with pytest.raises(TargetSubscriptionError):
        service.create(request_of(target_subscription="deaf"), principal=ANN)
    with pytest.raises(SubscriptionNotFoundError):
        service.create(request_of(target_subscription="nobody"), principal=ANN)


def test_live_traffic_that_is_yielded_to_must_have_its_subscription(service, request_of, pubsub):
    live = YieldTo("live", 5.0)
    with pytest.raises(SubscriptionNotFoundError):
        service.create(request_of(yield_to=live), principal=ANN)
    pubsub.create_topic("clicks")
    pubsub.create_subscription("live", "clicks")
    made = service.create(request_of(yield_to=live), principal=ANN)
    assert made.to_json()["yield_to"] == {"subscription": "live", "max_oldest_unacked_seconds": 5.0}
    assert service.get(made.id, principal=ANN).yield_to == live


def test_samples_of_a_plan_are_shown_as_archived_and_as_published(
    service, deployment, request_of, archive, monkeypatch
):
    query = (
        "SELECT CONCAT(data, b'!') AS data, attributes, message_id FROM backup.messages "
        "WHERE _PARTITIONTIME >= @from AND _PARTITIONTIME < @to AND topic = 'orders'"
    )
    asked = request_of(query=query, attributes={"why": "repair"})
    bob = Principal("key:bob", frozenset({PLAN, MESSAGES}))
    plan = service.plan(asked, principal=bob, originals=True)
    assert len(plan["samples"]) == 10
    for sample in plan["samples"]:
        archived, published = sample["comparison"]["archived"], sample["comparison"]["published"]
        assert (archived["data"], published["data"]) == (archived["data"], f"{archived['data']}!")
        assert archived["data"].startswith("data ")
        assert (archived["topic"], archived["data_bytes"]) == ("orders", len(archived["data"]))
        assert published["attributes"] == {**archived["attributes"], "why": "repair"}
        assert (archived["is_cut"], archived["encoding"]) == (False, "text")
    with closing(JobStore(deployment.home / "jobs.db")) as store:
        kept = store.find_short_lived(StoredPlan, plan["plan_id"])
    assert "comparison" not in str(kept.document), "what was archived stays in the archive"
    with pytest.raises(ForbiddenError, match=r"messages\.read"):
        service.plan(asked, principal=ANN, originals=True)
    with pytest.raises(ForbiddenError, match="read messages of the topic orders"):
        service.plan(asked, principal=replace(bob, topics=("replay",)), originals=True)
    monkeypatch.setattr("backfill.plan.planner.MAX_BYTES", 1)
    dear = service.plan(asked, principal=bob, originals=True)
    assert "originals_not_read" in {warning["code"] for warning in dear["warnings"]}
    assert "comparison" not in dear["samples"][0]


def test_a_plan_hides_samples_from_who_may_not_read_messages_of_their_topic(service, archive, request_of):
    bob = Principal("key:bob", frozenset({PLAN, MESSAGES}), ("replay*",))
    both = replace(bob, topics=("replay*", "orders"))
    for caller, is_shown in ((ANN, False), (bob, False), (both, True), (replace(bob, topics=None), True)):
        plan = service.plan(request_of(), principal=caller)
        assert plan["rows"] == 30
        assert len(plan["samples"]) == 10
        for sample in plan["samples"]:
            shown = [sample[name] is not None for name in ("data", "attributes", "encoding")]
            assert shown == [is_shown] * 3, (caller, sample)


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param("data, attributes, message_id, 'replay' AS topic", id="another-topic"),
        pytest.param(
            "(SELECT ANY_VALUE(b.data) FROM backup.messages AS b WHERE b._PARTITIONTIME >= @from "
            "AND b._PARTITIONTIME < @to) AS data, attributes, message_id, topic",
            id="data-of-another-message",
        ),
    ],
)
def test_a_query_that_computes_a_row_shows_no_sample_to_a_key_that_is_limited_to_topics(
    columns, service, archive, request_of
):
    bob = Principal("key:bob", frozenset({PLAN, MESSAGES}), ("replay", "orders" if "b.data" in columns else "x"))
    query = f"SELECT {columns} FROM backup.messages WHERE _PARTITIONTIME >= @from AND _PARTITIONTIME < @to"
    made = service.plan(request_of(query=query), principal=bob)
    assert len(made["samples"]) == 10
    for plan in (made, service.read_plan(made["plan_id"], principal=bob)):
        assert all(sample["data"] is None and sample["attributes"] is None for sample in plan["samples"])
    assert service.plan(request_of(query=query), principal=replace(bob, topics=None))["samples"][0]["data"]


def test_a_topic_that_a_query_computes_shows_no_payload_to_who_may_not_read_messages(service, archive, request_of):
    query = (
        "SELECT data, attributes, message_id, SAFE_CONVERT_BYTES_TO_STRING(data) AS topic FROM backup.messages "
        "WHERE _PARTITIONTIME >= @from AND _PARTITIONTIME < @to"
    )
    plan = service.plan(request_of(query=query), principal=ANN)
    assert plan["rows"] == 35
    assert "data " not in str({**plan, "query": ""}), "the archived payloads begin so"
    assert service.plan(request_of(query=query), principal=replace(ANN, scopes=ANN.scopes | {MESSAGES}))[
        "rows_by_topic"
    ]
