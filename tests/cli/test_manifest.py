"""``refeed check``: checks manifests and prints their schema, without a service."""

import json
import re

from typer.testing import CliRunner

from cli.main import app
from cli.manifest import _plan_lines, apply
from rollout.manifests.manifest import parse_manifest
from tests.rollout.manifests.test_manifest import MERGE

RUNNER = CliRunner()


def test_the_schema_is_json():
    printed = RUNNER.invoke(app, ["check", "--manifest-schema"])
    assert "ScheduleManifest" in json.loads(printed.stdout)["$defs"]


def test_faults_are_named_with_file_line_and_column_and_good_files_too(tmp_path):
    (tmp_path / "a.yaml").write_text(MERGE)
    (tmp_path / "b.yml").write_text(MERGE.replace("cron", "corn"))
    (tmp_path / "notes.txt").write_text("no manifest")
    checked = RUNNER.invoke(app, ["check", "-f", str(tmp_path)])
    assert checked.exit_code == 1
    assert checked.stdout == ""
    assert f"{tmp_path}/b.yml:3:1: There is no field corn." in checked.stderr
    good = RUNNER.invoke(app, ["check", "-f", str(tmp_path / "a.yaml")])
    assert (good.exit_code, good.stdout) == (0, f"{tmp_path}/a.yaml: good\n")


def test_a_query_and_a_request_have_faults_too_and_every_file_is_read(tmp_path):
    replay = """\
kind: Schedule
name: replays
cron: 15 2 * * *
job:
  kind: backfill
  request:
    query: |
      SELECT data, attributes FROM backup.messages
      WHERE _PARTITIONTIME >= @from
    topic: -none
    parameters: {from: {type: TIMESTAMP, value: "{{ slot.start }}"}}
"""
    (tmp_path / "a.yaml").write_text(replay)
    (tmp_path / "b.yaml").write_text(MERGE.replace("cron", "corn"))
    checked = RUNNER.invoke(app, ["check", "-f", str(tmp_path / "gone.yaml"), "-f", str(tmp_path)])
    assert (checked.exit_code, checked.stdout) == (1, "")
    for said in (
        "gone.yaml can't be read",
        "a.yaml:8:7: The result has no column message_id",
        "a.yaml:10:5: '-none' is not a valid topic id",
        "b.yaml:3:1: There is no field corn.",
    ):
        assert said in checked.stderr
    good = replay.replace("attributes FROM", "attributes, message_id FROM").replace("-none", "orders")
    (tmp_path / "a.yaml").write_text(good)
    warned = RUNNER.invoke(app, ["check", "-f", str(tmp_path / "a.yaml")])
    assert (warned.exit_code, warned.stdout) == (0, f"{tmp_path}/a.yaml: good\n")
    assert "ingest_time >= @from (partition_cut)" in warned.stderr.replace("\n", " ")


def test_a_folder_without_manifests_and_a_file_that_is_gone_are_wrong_usage(tmp_path):
    for path in (tmp_path, tmp_path / "gone.yaml"):
        assert RUNNER.invoke(app, ["check", "-f", str(path)]).exit_code != 0


def test_each_faulty_document_of_a_file_is_named(tmp_path):
    path = tmp_path / "all.yaml"
    path.write_text(
        f"{MERGE.replace('cron', 'corn')}---\n{MERGE}---\n{{kind: Rollout, name: up, stream: backup}}\n"
    )
    checked = RUNNER.invoke(app, ["check", "-f", str(path)])
    assert checked.exit_code == 1
    assert "There is no field corn." in checked.stderr
    assert "from: Field required in a Rollout." in checked.stderr


def test_help_names_where_the_fields_are_and_has_an_example_of_each_kind():
    said = " ".join(apply.__doc__.split())
    assert "refeed check --manifest-schema" in said
    examples = re.findall(r"\{kind: (\w+), name.*?\}(?= \{kind: [A-Z]| ')", said)
    whole = [found[0] for found in re.finditer(r"\{kind: \w+, name.*?\}(?= \{kind: [A-Z]| ')", said)]
    assert examples == ["Schedule", "Template", "Rollout"]
    for text in whole:
        assert parse_manifest(text.encode()).name


def test_a_refused_plan_has_no_hash():
    plan = {"is_applied": False, "hash": "abc", "plans": [], "refused": []}
    assert list(_plan_lines(plan)) == ["plan abc"]
    refused = [{"kind": "Schedule", "name": "nightly", "errors": []}]
    assert list(_plan_lines({**plan, "refused": refused})) == ["refused: Schedule nightly"]
