from tests.chaos.disk import SmallDisk


def test_what_is_on_the_disk_can_be_read_when_it_is_unmounted(tmp_path):
    disk = SmallDisk(tmp_path / "journal")
    try:
        (tmp_path / "journal" / "entry").write_text("ids")
    finally:
        disk.close()
    assert not disk.is_mounted
    assert (tmp_path / "journal" / "entry").read_text() == "ids"
