import shlex
import sys
from pathlib import Path

import pytest

from connectors.spark import classes
from connectors.spark.java import find_java_home


def test_without_an_archive_there_are_no_options(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert classes.class_data_options(tmp_path / "java") == ""


@pytest.mark.parametrize("name", ["plain", "my projects", 'a "b" \\c', "l'été"])
def test_the_options_are_read_as_meant_wherever_the_environment_lies(tmp_path, monkeypatch, name):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / name))
    archives = classes._archives(tmp_path / "java")
    archives[0].parent.mkdir(parents=True)
    for archive in archives:
        archive.touch()
    # Spark takes its Java options apart as a shell does.
    options = shlex.split(classes.class_data_options(tmp_path / "java"))
    assert f"-XX:SharedArchiveFile={archives[0]}:{archives[1]}" in options


def test_archives_of_two_javas_have_two_names(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "release").write_text(f'JAVA_VERSION="{name}"')
    first, second = (classes._archives(tmp_path / name) for name in ("a", "b"))
    assert set(first).isdisjoint(second)


# Java writes a hundred megabytes here, which takes as long as a thousand other tests.
@pytest.mark.cloud
@pytest.mark.java
def test_the_archive_is_made_used_and_not_made_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "my projects"))
    java_home = find_java_home()
    archive = classes.build_class_data(java_home)
    made_at = archive.stat().st_mtime_ns
    assert str(archive) in classes.class_data_options(java_home)
    assert classes.build_class_data(java_home).stat().st_mtime_ns == made_at
    # Where the machine has no Java, the folder that Refeed's own is started from lies there as well.
    assert {path.suffix for path in Path(archive).parent.iterdir() if path != java_home} == {".jsa"}
