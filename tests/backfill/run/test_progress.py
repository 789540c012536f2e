from types import SimpleNamespace

import pytest

from backfill.run.progress import CheckpointFolder, CheckpointReader, Progress, ProgressMeter, SliceCheckpoint


@pytest.fixture
def checkpoints(tmp_path):
    folder = CheckpointFolder(tmp_path / "progress")
    folder.create()
    return folder


def test_an_attempt_that_was_replaced_can_not_overwrite_its_successor(checkpoints):
    reader = CheckpointReader(checkpoints.files)
    checkpoints.write(SliceCheckpoint(0, epoch=2, offset=100, published=100, done=True))
    assert [c.published for c in reader.read()] == [100]
    checkpoints.write(SliceCheckpoint(0, epoch=1, offset=900, published=900))
    assert [c.published for c in reader.read()] == [checkpoints.read(0).published] == [100]


def test_a_slice_of_many_small_requests_keeps_a_short_file_and_its_last_checkpoint(checkpoints):
    for offset in range(1000):
        checkpoints.write(SliceCheckpoint(4, epoch=1, offset=offset))
    assert checkpoints.read(4) == SliceCheckpoint(4, epoch=1, offset=999)
    assert [c.offset for c in checkpoints.read_all()] == [999]
    assert sum(path.stat().st_size for path in checkpoints.files.path.iterdir()) < 70_000


@pytest.mark.parametrize("damage", ["", "{", '{"slice": 1, "unknown": 2}', "[]", '{"slice":1,"epoch":2,"off'])
def test_a_checkpoint_that_a_power_cut_damaged_falls_back_to_the_one_before(checkpoints, damage):
    checkpoints.write(SliceCheckpoint(1, epoch=1, offset=10))
    (checkpoints.files.path / "000001.2.ndjson").write_text(damage)
    assert checkpoints.read(1) == SliceCheckpoint(1, epoch=1, offset=10)
    assert checkpoints.read_all() == [SliceCheckpoint(1, epoch=1, offset=10)]


def test_half_a_line_is_no_checkpoint(checkpoints):
    for offset in range(200):
        checkpoints.write(SliceCheckpoint(1, epoch=1, offset=offset))
    with (checkpoints.files.path / "000001.1.ndjson").open("a") as file:
        file.write('{"slice":1,"epoch":1,"offset":5')
    assert checkpoints.read(1) == SliceCheckpoint(1, epoch=1, offset=199)


def test_figures_are_the_sum_of_all_slices():
    slices = [
        SliceCheckpoint(0, 1, 10, published=9, failed=1, bytes=900, repeated_at_most=4, event_time="2024-01-02"),
        SliceCheckpoint(1, 2, 5, published=5, bytes=500, event_time="2024-01-01"),
        SliceCheckpoint(2, 2),
    ]
    progress = ProgressMeter().measure(40, slices, now=1.0)
    assert progress == Progress(
        selected=40, published=14, failed=1, bytes=1400, event_time="2024-01-02", repeated_at_most=4
    )


def test_the_rate_is_that_of_the_last_seconds_and_the_eta_follows_it():
    meter = ProgressMeter()
    for second in range(100):
        progress = meter.measure(100_000, [SliceCheckpoint(0, 1, published=10 * second)], now=float(second))
    for second in range(100, 140):
        progress = meter.measure(
            100_000, [SliceCheckpoint(0, 1, published=990 + 1000 * (second - 99))], now=float(second)
        )
    assert progress.rate_messages_per_second == pytest.approx(1000, rel=0.01)
    assert progress.eta_seconds == pytest.approx((100_000 - 40_990) / 1000, rel=0.01)


def test_the_time_before_the_first_message_is_no_part_of_the_rate():
    meter = ProgressMeter()
    for second in range(30):
        meter.measure(1000, [], now=float(second))
    progress = meter.measure(1000, [SliceCheckpoint(0, 1, published=100)], now=30.0)
    assert progress.rate_messages_per_second == 100.0


def test_the_time_in_which_it_was_held_is_no_part_of_the_rate():
    meter = ProgressMeter()
    meter.measure(1000, [SliceCheckpoint(0, 1, published=10)], now=0.0)
    for second in range(1, 3600):
        meter.measure(1000, [SliceCheckpoint(0, 1, published=10)], now=float(second), is_held=True)
    progress = meter.measure(1000, [SliceCheckpoint(0, 1, published=505)], now=3600.0)
    assert progress.rate_messages_per_second == 495.0
    assert progress.eta_seconds == 1.0


def test_a_finished_job_has_nothing_left():
    progress = ProgressMeter().measure(10, [SliceCheckpoint(0, 1, published=9, failed=1, done=True)], now=1.0)
    assert progress.eta_seconds == 0.0


def test_figures_survive_json():
    progress = Progress(selected=1, published=1, rate_messages_per_second=2.5)
    assert Progress.of(SimpleNamespace(progress=progress.to_json())) == progress
