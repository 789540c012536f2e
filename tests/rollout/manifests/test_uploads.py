"""Manifests in a watched folder, by a clock that the test moves: whatever happens to files, only what is meant."""

import errno
import os
import threading
from pathlib import Path

import pytest

from jobs.disk_files import DiskFiles
from model.errors import ManifestOwnedError
from model.principal import UPLOAD_SCOPES, Principal
from rollout.manifests import uploads
from rollout.manifests.upload_status import UploadStatus
from rollout.manifests.uploads import LOOK_SECONDS, RETRY_SECONDS, SETTLE_SECONDS
from tests.rollout.manifests.upload_yard import ANN, SNAPSHOT, Yard


class FolderYard(Yard):
    """A folder that two replicas watch."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "manifests"
        self.folder.mkdir()
        super().__init__(tmp_path, DiskFiles(self.folder))

    def put(self, name: str, text: str = SNAPSHOT, minute: int = 0) -> Path:
        path = self.folder / f"{name}.yaml"
        path.write_text(text.format(name, minute))
        return path

    def apply(self, *names: str, text: str = SNAPSHOT, minute: int = 0) -> None:
        """Put files and let them be applied."""
        for name in names:
            self.put(name, text, minute)
        self.go()

    def remove(self, *names: str) -> None:
        """Remove files, and let that be seen."""
        for name in names:
            (self.folder / f"{name}.yaml").unlink()
        self.go()


@pytest.fixture
def yard(tmp_path):
    made = FolderYard(tmp_path)
    yield made
    made.store.close()


def test_a_file_is_applied_once_however_many_replicas_watch_and_the_audit_says_by_whom(yard):
    yard.put("one")
    yard.go(30)
    (record,) = yard.store.list_manifests()
    assert (record.name, record.version, record.source, record.applied_by) == (
        "one",
        1,
        *[yard.principal.name] * 2,
    )
    assert record.scopes == UPLOAD_SCOPES
    assert yard.audit() == [("applyManifest", "/manifests/one", "done")]
    yard.put("one", minute=5)
    yard.go()
    assert yard.store.get_manifest("one").version == 2
    (yard.folder / "one.yaml").touch()
    yard.go()
    assert yard.store.get_manifest("one").version == 2, "the same content again changes nothing"
    yard.put("one", minute=0)
    yard.go()
    assert yard.store.get_manifest("one").document["cron"] == "0 * * * *", "what is there counts, not its age"


def test_a_file_that_is_being_written_is_left_alone_until_it_is_still(yard):
    whole = SNAPSHOT.format("one", 0) + "overlap: queue\ndescription: the whole of it\n"
    for end in range(80, len(whole), 10):
        (yard.folder / "one.yaml").write_text(whole[:end])
        yard.go(1)
    assert (yard.names(), yard.audit()) == ([], []), "parts of it were manifests too"
    (yard.folder / "one.yaml").write_text(whole)
    yard.go()
    assert yard.store.get_manifest("one").document["description"] == "the whole of it"
    assert len(yard.audit()) == 1


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("one.yml", SNAPSHOT.format("one", 0), "does not have the form NAME.yaml"),
        ("One.yaml", SNAPSHOT.format("One", 0), "does not have the form NAME.yaml"),
        ("one.yaml", SNAPSHOT.format("two", 0), "the manifest is one"),
        ("one.yaml", "#" * 300_000, "larger than 262144 bytes"),
        ("one.yaml", "", "an object"),
        ("one.yaml", SNAPSHOT.format("one", 0) + "password: x\n", "must not contain secrets"),
    ],
)
def test_what_can_t_be_applied_is_a_fault_with_its_reason(yard, file, content, words):
    (yard.folder / file).write_text(content)
    (yard.folder / "README").write_text("not looked at")
    yard.go()
    assert words in (yard.fault(file) or "")
    assert yard.names() == []


def test_a_name_that_somebody_else_applied_stays_theirs_and_is_taken_once_it_is_free(yard):
    yard.service.apply("one", SNAPSHOT.format("one", 9).encode(), principal=ANN)
    yard.apply("one")
    assert "belongs to api. Change or remove it with 'refeed apply' or 'refeed delete'" in (
        yard.fault("one.yaml") or ""
    )
    yard.remove("one")
    assert yard.store.get_manifest("one").source == "api", "the file that has gone was not its"
    assert yard.status.list_uploads(principal=ANN) == []
    yard.apply("one")
    yard.service.remove("one", principal=ANN)
    yard.go(RETRY_SECONDS + 10)
    assert (yard.store.get_manifest("one").source, yard.fault("one.yaml")) == (yard.principal.name, None)


def test_a_file_that_was_removed_leaves_its_manifest_which_a_person_removes(yard):
    yard.apply("one", "two", "three")
    with pytest.raises(ManifestOwnedError, match=r"belongs to upload:.* Change or delete its file"):
        yard.service.remove("one", principal=ANN)
    yard.remove("one", "two", "three")
    yard.go(RETRY_SECONDS + 30)
    assert (yard.names(), yard.gone()) == (["one", "three", "two"], {"one.yaml", "three.yaml", "two.yaml"})
    (item,) = yard.status.list_inbox(principal=ANN)
    assert (item.kind, item.resource, item.id) == ("failure", "manifest", yard.principal.name)
    assert "The files of these manifests no longer exist: one, three, two. The manifests stay." in item.message
    assert "'refeed delete NAME'" in item.message
    yard.service.remove("one", principal=ANN)
    yard.apply("two")
    assert (yard.names(), yard.gone()) == (["three", "two"], {"three.yaml"})
    with pytest.raises(ManifestOwnedError):
        yard.service.remove("two", principal=ANN)
    assert yard.store.get_manifest("two").version == 1, "the same content came back"
    yard.apply("one")
    assert (yard.names(), yard.store.get_manifest("one").source) == (["one", "three", "two"], yard.principal.name)


@pytest.mark.parametrize("source", [None, "upload:/elsewhere"])
def test_manifests_of_a_folder_that_the_setting_named_before_wait_for_a_person(yard, source):
    yard.apply("one", "two")
    yard.service.apply("mine", SNAPSHOT.format("mine", 9).encode(), principal=ANN)
    assert yard.status.list_inbox(principal=ANN) == []
    (item,) = UploadStatus(yard.store, source).list_inbox(principal=ANN)
    assert (item.kind, item.resource, item.id) == ("failure", "manifest", yard.principal.name)
    assert "does not name this folder any more, and its manifests stay: one, two. " in item.message


def test_what_nobody_watches_any_more_may_be_removed(yard):
    yard.apply("one", "two")
    for watcher in yard.watchers:
        watcher.stop()
    yard.service.remove("one", principal=ANN)
    assert yard.names() == ["two"]
    yard.watchers = [yard.open()]
    yard.go()
    assert yard.names() == ["one", "two"], "its file is there, and so it is applied again"


def test_many_files_that_have_gone_are_one_item_that_names_some(yard):
    names = [f"m{number:02}" for number in range(13)]
    yard.apply(*names)
    yard.remove(*names)
    (item,) = yard.status.list_inbox(principal=ANN)
    assert "The files of these manifests no longer exist: m00, m01, m02" in item.message
    assert "m09 and 3 more. The manifests stay." in item.message


def test_a_file_that_is_written_by_a_removal_and_a_rename_stays(yard):
    path = yard.put("one")
    yard.apply("two")
    for _ in range(4):
        path.rename(yard.folder / "one.yaml~")
        yard.go(LOOK_SECONDS + 2)
        (yard.folder / "one.yaml~").rename(path)
        yard.go()
        assert yard.gone() == set()
    assert (yard.names(), [line[0] for line in yard.audit()]) == (["one", "two"], ["applyManifest"] * 2)


def test_a_file_that_was_renamed_leaves_its_manifest_and_is_another_one_once_its_name_fits(yard):
    path = yard.put("one")
    yard.go()
    path.rename(yard.folder / "two.yaml")
    yard.go()
    assert (yard.names(), yard.gone()) == (["one"], {"one.yaml"})
    assert "the manifest is two" in (yard.fault("two.yaml") or "")
    yard.apply("two")
    assert (yard.names(), yard.gone(), yard.fault("two.yaml")) == (["one", "two"], {"one.yaml"}, None)


def test_a_folder_that_is_empty_or_away_removes_nothing_and_says_so(yard):
    yard.apply("one", "two")
    mounted = yard.folder.rename(yard.folder.with_name("mounted"))
    yard.go(RETRY_SECONDS + 30)
    assert "can't be read, so nothing is changed" in (yard.problem() or "")
    (item,) = yard.status.list_inbox(principal=ANN)
    assert (item.resource, item.id) == ("manifest", yard.principal.name)
    assert yard.gone() == set(), "nobody knows what is there"
    yard.folder.mkdir()
    yard.go(RETRY_SECONDS + 30)
    assert (yard.problem(), yard.names()) == (None, ["one", "two"])
    (item,) = yard.status.list_inbox(principal=ANN)
    assert "The files of these manifests no longer exist: one, two." in item.message
    yard.folder.rmdir()
    mounted.rename(yard.folder)
    yard.go()
    assert (yard.status.list_inbox(principal=ANN), yard.names(), len(yard.audit())) == ([], ["one", "two"], 2)


def test_a_replica_that_was_stopped_in_mid_look_changes_nothing_after_another_has_taken_over(yard, monkeypatch):
    stopped, other = yard.watchers
    path = yard.put("one", minute=1)
    stopped.tick()
    yard.seconds += SETTLE_SECONDS
    read = DiskFiles.read_version
    done = []

    def read_and_stop(files, name, version):
        content = read(files, name, version)
        if not done:
            done.append(name)
            path.write_text(SNAPSHOT.format("one", 2))
            # Longer than the lease.
            yard.seconds += 60
            for _ in range(4):
                other.tick()
                yard.seconds += 2
        return content

    monkeypatch.setattr(DiskFiles, "read_version", read_and_stop)
    stopped.tick()
    assert yard.store.get_manifest("one").document["cron"] == "2 * * * *"
    yard.go(60)
    assert (yard.store.get_manifest("one").version, len(yard.audit())) == (1, 1)


def test_a_replica_that_died_after_applying_and_before_noting_is_followed_without_a_second_change(
    yard, monkeypatch
):
    yard.put("one")
    with monkeypatch.context() as patched:
        patched.setattr(yard.store, "note_upload", _die)
        with pytest.raises(KeyboardInterrupt):
            yard.go()
    assert (yard.store.get_manifest("one").version, yard.audit()) == (1, [])
    del yard.watchers[0]
    yard.seconds += 60
    yard.go()
    assert (yard.store.get_manifest("one").version, len(yard.audit())) == (1, 1)


def test_a_file_that_was_removed_before_it_was_noted_is_told_all_the_same(yard, monkeypatch):
    path = yard.put("one")
    with monkeypatch.context() as patched:
        patched.setattr(yard.store, "note_upload", _die)
        with pytest.raises(KeyboardInterrupt):
            yard.go()
    path.unlink()
    del yard.watchers[0]
    yard.seconds += 60
    yard.go()
    assert (yard.names(), yard.gone()) == (["one"], {"one.yaml"})


def test_a_look_that_hangs_keeps_no_replica_from_ending_and_changes_nothing_after_it(yard, monkeypatch):
    yard.put("one")
    yard.go(1)
    yard.seconds += SETTLE_SECONDS
    reading, going_on = threading.Event(), threading.Event()
    read = DiskFiles.read_version

    def hang(files, name, version):
        content = read(files, name, version)
        reading.set()
        going_on.wait(20)
        return content

    monkeypatch.setattr(DiskFiles, "read_version", hang)
    monkeypatch.setattr(uploads, "_STOP_SECONDS", 0.1)
    watcher = yard.watchers[0]
    watcher.start()
    assert reading.wait(10)
    watcher.stop()
    is_hanging = watcher.loop.is_alive
    going_on.set()
    watcher.loop.stop(10)
    assert (is_hanging, watcher.loop.is_alive) == (True, False)
    assert (yard.names(), yard.audit()) == ([], [])


def test_scopes_that_the_setting_no_longer_names_are_taken_from_what_was_applied(yard):
    yard.apply("one")
    yard.watchers[0].stop()
    less = Principal(yard.principal.name, frozenset({"schedules.apply"}))
    yard.watchers = [yard.open(less)]
    yard.go()
    assert yard.store.get_manifest("one").scopes == less.scopes
    assert yard.store.get_manifest("one").version == 1
    yard.apply("one", minute=4)
    assert "streams.operate" in (yard.fault("one.yaml") or "")


def test_a_file_of_the_same_size_and_time_of_another_inode_is_another_version(tmp_path):
    files = DiskFiles(tmp_path)
    for name, content in (("a", b"1"), ("b", b"2")):
        (tmp_path / name).write_bytes(content)
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / ".hidden").write_text("")
    (tmp_path / "below").mkdir()
    before = files.versions()
    assert set(before) == {"a", "b"}
    (tmp_path / "inside").symlink_to(tmp_path / "a")
    (tmp_path / "outside").symlink_to("/etc/hostname")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert set(files.versions()) == {"a", "b", "inside"}
    (tmp_path / "inside").unlink()
    (tmp_path / "b").rename(tmp_path / "a")
    assert files.versions()["a"] != before["a"]
    assert files.read_version("a", before["a"]) is None
    assert files.read_version("a", files.versions()["a"]) == b"2"
    assert files.read_version("gone", before["a"]) is None


def test_a_file_that_can_t_be_looked_at_is_no_file_that_has_gone(yard, monkeypatch):
    yard.apply("one", "two")
    with monkeypatch.context() as patched:
        patched.setattr("os.scandir", _Ill)
        yard.go(RETRY_SECONDS)
        assert "Input/output error" in (yard.problem() or "")
    yard.go()
    assert (yard.names(), yard.problem(), yard.gone(), len(yard.audit())) == (["one", "two"], None, set(), 2)


class _Ill:
    """A listing on a disk that fails for one of its files."""

    name = "one.yaml"

    def __init__(self, _: Path) -> None: ...

    def __enter__(self) -> "list[_Ill]":
        return [self]

    def __exit__(self, *_: object) -> None: ...

    def stat(self) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def _die(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_file_whose_name_is_no_utf_8_keeps_no_other_from_being_applied(yard):
    Path(os.fsdecode(os.fsencode(yard.folder) + b"/caf\xe9.yaml")).write_text(SNAPSHOT.format("one", 0))
    yard.apply("one")
    assert yard.names() == ["one"]
    (upload,) = [each for each in yard.status.list_uploads(principal=ANN) if each.fault]
    assert (upload.file, "does not have the form NAME.yaml" in str(upload.fault)) == ("caf\\xe9.yaml", True)


def test_a_file_that_can_t_be_read_is_a_fault_of_its_own_until_it_can(yard, monkeypatch):
    for name in ("one", "two"):
        yard.put(name)
    read = DiskFiles.read_version

    def refuse(files, name, version):
        if name == "one.yaml":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return read(files, name, version)

    with monkeypatch.context() as patched:
        patched.setattr(DiskFiles, "read_version", refuse)
        yard.go()
    assert (yard.names(), "Permission denied" in (yard.fault("one.yaml") or "")) == (["two"], True)
    yard.go(RETRY_SECONDS + 30)
    assert (yard.names(), yard.fault("one.yaml")) == (["one", "two"], None)


def test_of_two_files_of_one_name_the_one_with_the_wrong_ending_is_a_fault_and_nothing_else(yard):
    (yard.folder / "one.yml").write_text(SNAPSHOT.format("one", 7))
    yard.apply("one")
    assert "does not have the form NAME.yaml" in (yard.fault("one.yml") or "")
    assert yard.store.get_manifest("one").document["cron"] == "0 * * * *"
    (yard.folder / "one.yml").unlink()
    yard.go()
    assert yard.names() == ["one"]
    assert [each.file for each in yard.status.list_uploads(principal=ANN)] == ["one.yaml"]
