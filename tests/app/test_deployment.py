"""What a process opens, and what becomes of its jobs when it closes that."""

import pytest

from backfill.plan.request import BackfillRequest
from model.errors import StoreUnavailableError
from model.job import JobState
from model.principal import LOCAL
from tests.waiting import wait_until

REQUEST = BackfillRequest(
    "SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = '2024-01-01'", "replay"
)


def test_running_backfills_go_on_when_the_service_ends_and_spark_stays_for_them(open_deployment, launcher):
    first = open_deployment()
    made = first.backfills.create(REQUEST, principal=LOCAL)
    first.start()
    wait_until(lambda: first.backfills.get(made.id, principal=LOCAL).state is JobState.RUNNING, "it runs")
    first.close()
    again = open_deployment(interrupt_at_exit=True)
    again.start()
    try:
        assert again.backfills.get(made.id, principal=LOCAL).state is JobState.RUNNING
        assert launcher.drivers[0].is_alive
        assert launcher.closed == 0
        wait_until(lambda: again.store.get(made.id).lease_owner is not None, "it is looked after again")
    finally:
        again.close()
    assert not launcher.drivers[0].is_alive
    assert launcher.closed == 1


def test_a_service_ends_also_when_its_store_does_not_answer(open_deployment, launcher, monkeypatch):
    deployment = open_deployment(interrupt_at_exit=True)
    deployment.start()

    def fail(*_, **__):
        raise StoreUnavailableError("not now")

    monkeypatch.setattr(deployment.store, "held", fail)
    with pytest.raises(StoreUnavailableError):
        deployment.close()
    # Nothing looks at jobs any more, and nothing of it keeps the process.
    supervisor = deployment.backfills._supervisor
    assert not supervisor.loop.is_alive
    assert not supervisor._renewal.loop.is_alive
    assert launcher.closed == 1
    monkeypatch.undo()


def test_a_backfill_that_waits_without_a_driver_keeps_no_spark(open_deployment, launcher):
    deployment = open_deployment()
    deployment.start()
    request = BackfillRequest(REQUEST.query, REQUEST.topic, start_paused=True)
    deployment.backfills.create(request, principal=LOCAL)
    deployment.close()
    assert launcher.closed == 1


def test_what_was_never_started_leaves_the_launcher_alone(open_deployment, launcher):
    deployment = open_deployment()
    deployment.open()
    deployment.close()
    assert launcher.closed == 0


def test_every_part_is_opened_once_and_shared(open_deployment, monkeypatch):
    opened = []
    for place in ("jobs.store.open_store", "warehouse.open.open_warehouse", "app.backfills.open_queries"):
        module, _, name = place.rpartition(".")
        found = getattr(__import__(module, fromlist=[name]), name)

        def note(*args, found=found, name=name):
            opened.append(name)
            return found(*args)

        monkeypatch.setattr(place, note)
    deployment = open_deployment()
    deployment.start()
    assert deployment.inventory
    assert deployment.keyring
    assert sorted(opened) == ["open_queries", "open_store", "open_warehouse"]


def test_what_is_not_asked_for_is_not_opened(open_deployment):
    deployment = open_deployment()
    assert deployment.warehouse
    assert deployment.backfill_settings
    assert not (deployment.settings.home / "jobs.db").exists()
    deployment.close()
