"""The volumes of a lake's archive: files of this Refeed say them, those of an earlier one are counted once."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from connectors.lake.archive import LakeArchive
from connectors.lake.files import LakeArchiveWriter, count_volumes
from model.archive import Attempt
from model.errors import WarehouseError
from model.volume import HourVolumes, hour_key
from model.window import Window
from tests.worlds.tables import pulled


class Home:
    def __init__(self, lake: Path) -> None:
        self.lake = lake
        self.archive = self.open()
        self.archive.create()
        self.epoch = self.archive.take_lease("l")

    def open(self) -> LakeArchive:
        return LakeArchive(str(self.lake), "backup.messages")

    def add(self, topic: str, *payloads: bytes) -> None:
        part = self.archive.writer().write([(topic, "s", pulled(*payloads))])
        self.archive.commit([part], Attempt("s", self.archive.committed_attempt("s") + 1, "l", self.epoch))

    def add_as_before(self, monkeypatch: pytest.MonkeyPatch, topic: str, *payloads: bytes) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(LakeArchiveWriter, "has_volumes", False)
            self.add(topic, *payloads)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "lake")


def read(archive: LakeArchive) -> HourVolumes:
    now = datetime.now(UTC)
    return archive.volumes(Window(now - timedelta(days=1), now + timedelta(days=1)))


def totals(found: HourVolumes) -> dict[str, tuple[int, int]]:
    sums: dict[str, tuple[int, int]] = {}
    for topics in found.by_hour.values():
        for topic, (messages, size) in topics.items():
            known = sums.get(topic, (0, 0))
            sums[topic] = known[0] + messages, known[1] + size
    return sums


def test_files_of_an_earlier_refeed_are_unknown_until_they_are_counted(home, monkeypatch):
    home.add_as_before(monkeypatch, "orders", b"1234", b"5")
    home.add("members", b"xy")
    looker = home.open()
    before = read(looker)
    assert totals(before) == {"members": (1, 2)}
    assert len(before.unknown) == 1
    assert before.unknown[0].contains(datetime.now(UTC)) or before.unknown[0].end <= datetime.now(UTC)
    assert home.open().uncounted()[0] == 1
    assert home.open().count() == 1
    home.open().vacuum(keep_hours=2)
    # Who has looked before sees it too, and so does who comes later.
    for archive in (looker, home.open()):
        after = read(archive)
        assert (totals(after), after.unknown) == ({"orders": (2, 5), "members": (1, 2)}, ())
    assert (home.open().uncounted(), home.open().count()) == ((0, 0), 0)


def test_volumes_beside_a_file_are_durable_before_they_get_their_name(home, monkeypatch):
    home.add_as_before(monkeypatch, "orders", b"1234")
    synced: list[tuple[str, bytes]] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append((path.name, path.read_bytes()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    home.archive.count()
    (beside,) = Path(home.archive.uri, "_refeed_volumes").iterdir()
    # A power cut would leave an empty file, which nobody can read, and no volume of its day could be shown.
    assert synced == [(f"{beside.name}.tmp", beside.read_bytes())]


def test_compaction_counts_files_of_an_earlier_refeed_and_what_is_expired_has_no_volume(home, monkeypatch):
    home.add_as_before(monkeypatch, "orders", b"1234")
    home.add("orders", b"56")
    looker = home.open()
    assert read(looker).unknown
    assert home.open().compact() == 1
    for archive in (looker, home.open()):
        assert (totals(read(archive)), read(archive).unknown) == ({"orders": (2, 6)}, ())
    home.open().expire(before=(datetime.now(UTC) + timedelta(days=2)).date())
    assert totals(read(looker)) == totals(read(home.open())) == {}


def test_each_file_is_opened_once_and_one_that_can_t_be_read_is_an_error_until_it_can(home: Home) -> None:
    home.add("orders", b"1")
    looker, late = home.open(), home.open()
    assert totals(read(looker)) == totals(read(late)) == {"orders": (1, 1)}
    home.add("orders", b"22")
    assert totals(read(looker)) == {"orders": (2, 3)}
    kept = {Path(file.path): Path(file.path).read_bytes() for file in home.archive.data_files()}
    for path in kept:
        path.write_bytes(b"not Parquet")
    assert totals(read(looker)) == {"orders": (2, 3)}
    for _ in range(2):
        with pytest.raises(WarehouseError, match="volumes"):
            read(late)
    for path, content in kept.items():
        path.write_bytes(content)
    assert totals(read(late)) == {"orders": (2, 3)}


def test_rows_of_several_hours_are_counted_by_hour() -> None:
    first = datetime(2026, 1, 31, 22, 59, 59, 999999, tzinfo=UTC)
    times = pa.array([first, first + timedelta(microseconds=1), first], pa.timestamp("us", tz="UTC"))
    table = pa.table({"topic": ["a", "a", "b"], "ingest_time": times, "data": pa.array([b"12", b"3", None])})
    found = {hour: dict(topics) for hour, topics in count_volumes(table).items()}
    assert found == {"2026-01-31T22": {"a": (1, 2), "b": (1, 0)}, "2026-01-31T23": {"a": (1, 1)}}
    assert count_volumes(table.slice(0, 0)) == {}
    assert hour_key(first) == "2026-01-31T22"


def test_a_lake_without_an_archive_has_none(tmp_path: Path) -> None:
    assert read(LakeArchive(str(tmp_path / "lake"), "backup.messages")) == HourVolumes()
