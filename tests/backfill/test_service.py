from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backfill.request import BackfillRequest
from backfill.service import BackfillService, Deployment
from backfill.supervisor import Supervisor
from connectors.lake.archive import Attempt, LakeArchive
from connectors.pubsub.client import PubSub
from jobs.store import JobStore
from model.errors import (
    IdempotencyKeyReusedError,
    JobChangedError,
    JobNotFoundError,
    JobStateError,
    RequestInvalidError,
    TopicNotFoundError,
)
from model.job import JobState, is_job_id
from model.message import replay_token
from sql.validate import QueryRefusedError

Wait = Callable[..., None]
QUERY = (
    "SELECT data, attributes, message_id FROM backup.messages "
    "WHERE _PARTITIONTIME >= @from AND _PARTITIONTIME < @to AND topic = 'orders'"
)


def window() -> dict[str, Any]:
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return {
        "from": {"type": "TIMESTAMP", "value": (today - timedelta(days=1)).isoformat()},
        "to": {"type": "TIMESTAMP", "value": (today + timedelta(days=2)).isoformat()},
    }


def request(**changes: Any) -> BackfillRequest:
    return BackfillRequest(**{"query": QUERY, "topic": "replay", "parameters": window(), **changes})


@pytest.fixture
def deployment(tmp_path: Path, emulator_host: str) -> Deployment:
    return Deployment(
        home=tmp_path,
        project="shop",
        emulator_host=emulator_host,
        replay_secret="secret",
        lake=str(tmp_path / "lake"),
        archive_table="backup.messages",
        archive_partitioning="day",
        max_window_days=366,
        query_memory="500MB",
    )


@pytest.fixture
def service(deployment: Deployment, launcher: Any) -> Iterator[BackfillService]:
    service = open_service(deployment, launcher)
    yield service
    service.close()


def open_service(deployment: Deployment, launcher: Any) -> BackfillService:
    store = JobStore(deployment.home / "jobs.db")
    return BackfillService(
        deployment,
        store=store,
        pubsub=PubSub(deployment.project, deployment.emulator_host),
        launcher=launcher,
        supervisor=Supervisor(store, launcher, deployment.home, max_running=2),
    )


def test_a_backfill_is_kept_pending_with_all_that_its_driver_needs(
    service: BackfillService, deployment: Deployment, pubsub: PubSub
) -> None:
    made = service.create(request(description="why", labels={"ticket": "42"}), actor="ann")

    assert is_job_id(made.id)
    assert (made.state, made.topic, made.created_by) == (JobState.PENDING, "replay", "ann")
    assert (made.description, made.labels, made.parameters) == ("why", {"ticket": "42"}, window())
    assert made.window["from"].endswith("T00:00:00Z")
    assert service.get(made.id) == made
    specification = service._supervisor.folder(made.id).read_specification()
    assert specification["target"] == {
        "backfill_id": made.id,
        "topic_path": "projects/shop/topics/replay",
        "emulator_host": deployment.emulator_host,
        "replay_token": replay_token("secret", "replay"),
    }
    # The embedded Pub/Sub gets a missing target.
    assert pubsub.topic_exists("replay")


def test_outside_of_embedded_mode_the_topic_must_exist(
    deployment: Deployment, launcher: Any, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = open_service(deployment, launcher)
    try:
        object.__setattr__(deployment, "emulator_host", None)
        with pytest.raises(TopicNotFoundError, match="no topic replay in project shop"):
            service.create(request())
        assert service.list_backfills().backfills == []
    finally:
        service.close()


def test_a_request_is_refused_with_every_violation(service: BackfillService, tmp_path: Path) -> None:
    wrong = request(topic="1", labels={"Bad Key": "x"}, description="x" * 3000, query="SELECT 1; DROP TABLE x")

    with pytest.raises(RequestInvalidError) as caught:
        service.create(wrong)

    errors = caught.value.details["errors"]
    assert {"name_invalid", "label_invalid", "description_too_long"} < {error["code"] for error in errors}
    assert any("line" in error for error in errors)
    assert not (tmp_path / "backfills").exists()


def test_a_query_that_is_not_allowed_is_refused(service: BackfillService) -> None:
    with pytest.raises(QueryRefusedError):
        service.create(request(query="DELETE FROM backup.messages WHERE true"))

    with pytest.raises(QueryRefusedError):
        service.plan(request(query="SELECT data FROM backup.messages"))


def test_the_same_key_makes_one_backfill(service: BackfillService, tmp_path: Path) -> None:
    first = service.create(request(), idempotency_key="key")
    second = service.create(request(), idempotency_key="key")

    assert first == second
    assert [path.name for path in (tmp_path / "backfills").iterdir()] == [first.id]
    with pytest.raises(IdempotencyKeyReusedError):
        service.create(request(topic="other"), idempotency_key="key")


def test_pages_follow_each_other_newest_first(service: BackfillService) -> None:
    made = sorted(service.create(request()).id for _ in range(5))

    pages, token = [], None
    while True:
        page = service.list_backfills(page_size=2, page_token=token)
        pages.append([backfill.id for backfill in page.backfills])
        token = page.next_page_token
        if token is None:
            break

    assert pages == [made[4:2:-1], made[2:0:-1], made[:1]]
    assert "bf_" not in (service.list_backfills(page_size=2).next_page_token or "")


@pytest.mark.parametrize("token", ["%%%", "\xff", "====", "a"])
def test_a_token_that_no_page_gave_is_refused(service: BackfillService, token: str) -> None:
    with pytest.raises(RequestInvalidError):
        service.list_backfills(page_token=token)


def test_what_has_not_started_is_cancelled_at_once_and_never_launched(
    service: BackfillService, launcher: Any
) -> None:
    made = service.create(request())

    cancelled = service.cancel(made.id, actor="bob")

    assert cancelled.state is JobState.CANCELLED
    service._supervisor.tick()
    assert launcher.launched == []
    with pytest.raises(JobStateError):
        service.cancel(made.id)
    assert [(e.actor, e.what) for e in service.list_events(made.id)] == [
        ("local", "created"),
        ("bob", "PENDING -> CANCELLED"),
    ]


def test_a_running_backfill_is_told_to_stop_before_cancel_returns(
    service: BackfillService, launcher: Any, wait_for: Wait
) -> None:
    made = service.create(request())
    service.start()
    wait_for(lambda: service.get(made.id).state is JobState.RUNNING, "it runs")

    first = service.cancel(made.id)

    assert first.state is JobState.CANCELLING
    assert not service._supervisor.folder(made.id).may_go_on(1)
    assert service.cancel(made.id).state in {JobState.CANCELLING, JobState.CANCELLED}


def test_a_change_of_something_else_than_was_read_is_refused(service: BackfillService) -> None:
    made = service.create(request())

    with pytest.raises(JobChangedError):
        service.cancel(made.id, expected_version=99)
    assert service.cancel(made.id, expected_version=1).state is JobState.CANCELLED


def test_only_what_failed_or_was_cancelled_is_retried(service: BackfillService) -> None:
    made = service.create(request())
    with pytest.raises(JobStateError):
        service.retry(made.id)
    service.cancel(made.id)

    assert service.retry(made.id).state is JobState.PENDING


def test_a_backfill_that_is_not_there_is_an_error(service: BackfillService) -> None:
    for call in (service.get, service.cancel, service.retry, service.list_events, service.read_log):
        with pytest.raises(JobNotFoundError):
            call("bf_00000000000000000000000000")


def test_running_backfills_go_on_when_the_service_ends_and_spark_stays_for_them(
    deployment: Deployment, launcher: Any, wait_for: Wait
) -> None:
    service = open_service(deployment, launcher)
    made = service.create(request())
    service.start()
    wait_for(lambda: service.get(made.id).state is JobState.RUNNING, "it runs")
    service.close()

    again = open_service(deployment, launcher)
    again.start()
    try:
        assert again.get(made.id).state is JobState.RUNNING
        assert launcher.drivers[0].is_alive
        assert launcher.closed == 0
    finally:
        again.close(interrupt=True)
    assert not launcher.drivers[0].is_alive
    assert launcher.closed == 1


def test_a_plan_says_what_would_be_published_and_keeps_nothing(
    service: BackfillService, deployment: Deployment, rows: Any
) -> None:
    archive = LakeArchive(deployment.lake, "backup.messages")
    archive.create()
    lease = archive.take_lease("lease")
    archive.commit(
        [archive.writer().write([("orders", "s", rows(30)), ("members", "s", rows(5))])],
        Attempt("stream", 1, "lease", lease),
    )

    plan = service.plan(request())

    assert (plan.rows, plan.rows_by_topic) == (30, {"orders": 30})
    assert plan.bytes == sum(len(f"data {n}") for n in range(30))
    assert plan.bytes_scanned == sum(file.size_bytes for file in archive.data_files())
    assert plan.first_publish_time == plan.last_publish_time == "2024-03-01T12:00:00.000005Z"
    assert len(plan.samples) == 10
    assert plan.samples[0]["encoding"] == "text"
    assert service.list_backfills().backfills == []
    assert list((deployment.home / "backfills").iterdir()) == []


def test_readiness_names_what_does_not_answer(service: BackfillService) -> None:
    assert service.check_readiness() == {}
