"""A shadow's patience: what it holds is bounded, and it goes on with the plan and the registry as they change."""

import time

import pytest

from model.errors import CheckpointCorruptError, RegistryError
from model.settings import read_settings
from pipeline.plan import PlanFile
from pipeline.shadow import PATIENCE, ShadowOptions, run_shadow
from pipeline.shadow_report import ShadowFolder, ShadowState
from tests.pipeline.shadowed import NOON, ShadowedWorld, order


@pytest.fixture
def world(tmp_path):
    return ShadowedWorld("memory", read_settings({"REFEED_PROJECT": "shop"}, home=tmp_path / "home"), tmp_path)


def test_no_more_is_read_while_many_rows_wait_for_the_running_release(world):
    for number in range(10):
        world.keep("orders", **{f"m{number}": order(number)})
    shadow = world.shadow(chunk_rows=2, wait_seconds=3600)
    held = []

    def stage_what_waits():
        held.append(shadow.report.rows_waiting)
        if shadow.report.rows_waiting > 4:
            assert shadow.report.messages_read == 6
            world.stage("orders", **{f"m{number}": order(number) for number in range(10)})
            for chunk in shadow._chunks:
                chunk.look_at = 0.0

    report = shadow.look(stage_what_waits)
    assert max(held) == 6
    assert (report.rows_equal, report.rows_waiting, report.messages_read) == (10, 0, 10)


def test_a_row_is_not_missing_while_the_running_release_is_behind_its_message(world):
    world.keep("orders", m1=order(1), m2=order(2))
    clock, acknowledged = [time.time()], [NOON.timestamp() - 1]
    shadow = world.shadow(lambda: acknowledged[0], lambda: clock[0], wait_seconds=60.0)
    for _ in range(3):
        clock[0] += 61.0
        report = shadow.look()
        assert (report.rows_waiting, report.rows_missing) == (2, 0)
    world.stage("orders", m1=order(1))
    acknowledged[0] = NOON.timestamp() + 1
    clock[0] += 61.0
    report = shadow.look()
    assert (report.rows_equal, report.rows_missing, report.rows_waiting) == (1, 1, 0)


def test_a_running_release_that_stands_still_does_not_hide_a_missing_row_for_ever(world):
    world.keep("orders", m1=order(1))
    clock = [time.time()]
    shadow = world.shadow(lambda: 0.0, lambda: clock[0], wait_seconds=60.0)
    assert shadow.look().rows_waiting == 1
    clock[0] += 61.0 * PATIENCE
    assert shadow.look().rows_missing == 1


def test_messages_from_before_the_subscription_of_their_source_are_skipped(world):
    """Its topic was backed up before the source was added, and the stream never gets those messages."""
    world.keep("orders", m1=order(1), m2=order(2))
    for attached_at, skipped in ((NOON.timestamp() + 1e-6, 2), (NOON.timestamp(), 0), (None, 0)):
        world.plan(attached_at)
        report = world.shadow().look()
        assert (report.rows_skipped, report.rows_missing) == (skipped, 2 - skipped)


def test_a_source_that_is_renamed_is_compared_under_its_new_name(world):
    world.run("orders", m1=order(1), m2=b"no JSON")
    sources = world.registry.read_files()["sources.yaml"].decode()
    renamed = sources.replace("  orders: {", "  sales: {")
    world.registry.publish({"sources.yaml": renamed.encode()})
    assert world.shadow(mapping={"orders": "sales"}).look().rows_equal == 2


def test_a_schema_that_the_table_refuses_is_not_taken_up_and_a_fault_in_the_registry_neither(world):
    world.run("orders", m1=order(1))
    shadow = world.shadow(hours=2)
    assert shadow.look().rows_equal == 1
    sources = world.registry.read_files()["sources.yaml"].decode()
    world.registry.publish({"sources.yaml": sources.replace("shop.Order", "shop.Line").encode()})
    # The release would go on with the plan's schema, as an update of the stream does.
    world.run("orders", m2=order(2))
    assert shadow.look().rows_equal == 2
    world.registry.publish({"sources.yaml": b"sources: ["})
    world.run("orders", m3=order(3))
    assert shadow.look().rows_equal == 3
    with pytest.raises(RegistryError):
        world.shadow().look()


def test_a_registry_that_does_not_answer_for_a_while_changes_nothing(world, monkeypatch):
    world.run("orders", m1=order(1))
    shadow = world.shadow(hours=2)
    assert shadow.look().rows_equal == 1

    def refuse(_):
        raise RegistryError("The registry can't be used: 503.")

    monkeypatch.setattr("pipeline.registry.Registry.fingerprint", refuse)
    world.run("orders", m2=order(2))
    assert shadow.look().rows_equal == 2


def test_a_stream_without_a_plan_can_not_be_compared(world):
    world.plan_file.unlink()
    with pytest.raises(CheckpointCorruptError, match=r"plan\.json"):
        world.shadow().look()


def test_a_shadow_ends_when_nobody_looks_at_it(world, tmp_path):
    folder = ShadowFolder.of(tmp_path, "pipeline", "sh_1")
    given = {"plan_file": world.plan_file, "mapping": {}, "options": ShadowOptions()}
    # Nobody ever looked.
    assert run_shadow(world.settings, world.warehouse, folder, **given) == 0
    assert not folder.path.exists()
    folder.want()
    world.plan_file.unlink()
    assert run_shadow(world.settings, world.warehouse, folder, **given) == 1
    assert folder.read().state is ShadowState.FAILED


def test_the_plan_is_read_and_never_written(world):
    world.keep("hooks", h1=b'{"a":1}')
    before = world.plan_file.read_bytes()
    # A type that only the shadow has met stays in its memory.
    report = world.shadow().look()
    assert (report.messages_read, report.rows_missing) == (1, 1)
    assert world.plan_file.read_bytes() == before
    plan = PlanFile(world.plan_file, world.warehouse).read()
    assert [kind for source in plan.sources for kind in source.types] == []
