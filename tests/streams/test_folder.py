from streams.folder import StreamFolder, read_newest_status, read_statuses
from streams.status import StatusFile


def test_an_instance_reports_and_takes_orders_in_a_folder_of_its_own(tmp_path):
    folder = StreamFolder.of(tmp_path, "backup", "in_1")
    run = tmp_path / "streams" / "backup" / "instances" / "in_1"
    assert (folder.name, folder.state) == ("backup", tmp_path / "streams" / "backup")
    assert (folder.status, folder.control, folder.scratch) == (
        run / "status.json",
        run / "control.json",
        run / "spark",
    )


def test_a_stream_that_was_started_by_hand_reports_beside_its_state_and_takes_no_orders(tmp_path):
    folder = StreamFolder.of(tmp_path, "backup")
    state = tmp_path / "streams" / "backup"
    assert (folder.status, folder.control, folder.scratch) == (state / "status.json", None, state / "spark")


def test_the_newest_report_of_a_name_counts_whichever_start_wrote_it(tmp_path):
    assert read_newest_status(tmp_path, "backup") is None
    for instance in (None, "in_2", "in_1"):
        folder = StreamFolder.of(tmp_path, "backup", instance)
        folder.run.mkdir(parents=True, exist_ok=True)
        StatusFile(folder.status, instance=instance).write(state="running")
    other = StreamFolder.of(tmp_path, "pipeline-a")
    other.run.mkdir(parents=True)
    StatusFile(other.status).write(state="stopped")
    newest = read_newest_status(tmp_path, "backup")
    assert newest["instance"] == "in_1"
    assert [name for name, _ in read_statuses(tmp_path)] == ["backup", "backup", "backup", "pipeline-a"]


def test_a_standby_does_not_hide_the_stream_that_runs(tmp_path):
    for instance, state in (("in_1", "running"), ("in_2", "standby")):
        folder = StreamFolder.of(tmp_path, "backup", instance)
        folder.run.mkdir(parents=True)
        StatusFile(folder.status, instance=instance).write(state=state)
    newest = read_newest_status(tmp_path, "backup")
    assert newest["instance"] == "in_1"
