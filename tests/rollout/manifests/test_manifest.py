"""What a manifest may say, and that every fault of it has its line and column."""

import json
import time

import pytest

from model.errors import ManifestInvalidError
from rollout.manifests.manifest import MAX_BYTES, find_secrets, manifest_schema, parse_manifest, read_spec
from rollout.manifests.schedule import ScheduleManifest

NIGHTLY = """\
kind: Schedule
name: replay-orders
cron: 15 2 * * mon-fri
time_zone: Europe/Berlin
start: 2026-01-01T00:00:00+01:00
job:
  kind: backfill
  request:
    query: |
      SELECT data, attributes FROM backup.messages
      WHERE _PARTITIONTIME >= @from AND _PARTITIONTIME < @to AND topic = 'orders'
    topic: orders-2
    parameters:
      from: {type: TIMESTAMP, value: "{{ slot.start }}"}
      to: {type: DATE, value: "{{slot.end}}"}
catch_up: {window_seconds: 86400, max: 1}
overlap: queue
on_failure: pause
"""
MERGE = "kind: Schedule\nname: nightly\ncron: 15 0 * * *\njob: {kind: merge}\n"


def faults(text: str | bytes, name: str | None = None) -> list[tuple[int, int, str, str]]:
    with pytest.raises(ManifestInvalidError) as raised:
        parse_manifest(text if isinstance(text, bytes) else text.encode(), name)
    errors = raised.value.details["errors"]
    assert all(error["message"] in raised.value.message for error in errors)
    return [(error["line"], error["column"], error["pointer"], error["message"]) for error in errors]


def test_a_schedule_is_read_and_is_the_same_from_what_is_kept() -> None:
    made = parse_manifest(NIGHTLY.encode(), "replay-orders")
    assert isinstance(made.spec, ScheduleManifest)
    assert (made.kind, made.name, made.spec.overlap, made.spec.on_failure) == (
        "Schedule",
        "replay-orders",
        "queue",
        "pause",
    )
    assert made.spec.job.kind == "backfill"
    assert read_spec(json.loads(json.dumps(made.document))) == made.spec


def test_its_digest_is_of_the_content_and_not_of_order_or_comments() -> None:
    lines = MERGE.splitlines()
    other = "# at night\n" + "\n".join(reversed(lines))
    assert parse_manifest(other.encode()).digest == parse_manifest(MERGE.encode()).digest
    changed = MERGE.replace("15 0", "16 0")
    assert parse_manifest(changed.encode()).digest != parse_manifest(MERGE.encode()).digest


def test_every_fault_is_named_at_once_with_its_line_and_column() -> None:
    text = """\
kind: Schedule
name: Nightly
colour: red
cron: 61 0 * * *
time_zone: Europe/Berln
start: 2026-01-01
job:
  kind: backfill
  request:
    query: SELECT 1 -- {{ slot.start }}
    plan_id: pl_1
    max_rows: "many"
    parameters:
      n: {type: INT64, value: "{{ slot.start }}"}
      from: {type: TIMESTAMP, value: "2026-13-01"}
catch_up: {window_seconds: 1, max: 0}
overlap: sometimes
"""
    found = faults(text, "nightly")
    assert [(line, column, pointer) for line, column, pointer, _ in found] == [
        (2, 1, "/name"),
        (2, 1, "/name"),
        (3, 1, "/colour"),
        (4, 1, "/cron"),
        (5, 1, "/time_zone"),
        (6, 1, "/start"),
        (9, 3, "/job/request/topic"),
        (10, 5, "/job/request/query"),
        (11, 5, "/job/request/plan_id"),
        (12, 5, "/job/request/max_rows"),
        (13, 5, "/job/request/parameters"),
        (13, 5, "/job/request/parameters"),
        (14, 24, "/job/request/parameters/n/value"),
        (16, 12, "/catch_up/window_seconds"),
        (16, 31, "/catch_up/max"),
        (17, 1, "/overlap"),
    ]
    sentences = " ".join(message for *_, message in found)
    for part in ("There is no field colour.", "minute: '61' is not from 0 to 59", "a plan expires"):
        assert part in sentences


def test_names_that_come_twice_and_aliases_are_all_named() -> None:
    text = "kind: Schedule\nname: a\nname: b\njob: &job {kind: merge, kind: merge}\nagain: *job\n"
    assert [(line, column) for line, column, *_ in faults(text)] == [(3, 1), (4, 25), (5, 8)]


@pytest.mark.parametrize(
    ("content", "line", "column", "words"),
    [
        ("kind: Schedule\nname: caf\u00e9\n".encode("latin-1"), 2, 10, "not UTF-8"),
        (MERGE.encode("utf-16"), 1, 1, "not UTF-8"),
        (b"kind: Schedule\nname: a\x00b\n", 2, 8, "U+0000"),
        (b"kind: [Schedule\nname: a\n", 2, 5, "expected ',' or ']'"),
        (b"kind: !!python/object/apply:os.system [ls]\n", 1, 7, "could not determine a constructor"),
        (b"kind: Schedule\n---\nkind: Schedule\n", 2, 1, "a single document"),
        (b"a: " + b"[" * 1200, 1, 1, "recursion"),
        (b"", 1, 1, "an object"),
        (b"- kind: Schedule\n", 1, 1, "an object"),
        (b"#" * (MAX_BYTES + 1), 1, 1, "larger than"),
    ],
)
def test_what_is_no_manifest_is_refused_with_its_place(content: bytes, line: int, column: int, words: str) -> None:
    found = faults(content)
    assert (found[0][0], found[0][1]) == (line, column), found
    assert words.lower() in found[0][3].lower()


def test_words_of_yaml_stay_texts_and_names_that_are_none_are_refused() -> None:
    text = MERGE.replace(
        "{kind: merge}", "{kind: template, request: {template: t, parameters: {a: no, b: 2026-01-02, c: 1:30}}}"
    )
    assert parse_manifest(text.encode()).document["job"]["request"]["parameters"] == {
        "a": "no",
        "b": "2026-01-02",
        "c": "1:30",
    }
    assert (5, 1, "/1", "1 is not a name. Write it in quotes.") in faults(MERGE + "1: x\n")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("{password: hunter2}", "the value of a name for secrets"),
        ("{DB_PASSWORD: hunter2}", "the value of a name for secrets"),
        ("{api-key: abc}", "the value of a name for secrets"),
        ("{where: 'postgresql://ann:pa55@db/jobs'}", "a password in an address"),
        ("{pem: '-----BEGIN RSA PRIVATE KEY-----'}", "a private key"),
        ("{k: rf_" + "a" * 10 + "_" + "b" * 52 + "}", "a key of Refeed"),
        ("{k: AIza" + "a" * 35 + "}", "a key of Google"),
        ("{k: AKIA" + "A" * 16 + "}", "a key of AWS"),
        ("{k: ghp_" + "a" * 36 + "}", "a token of GitHub"),
    ],
)
def test_a_secret_in_clear_text_is_refused_and_not_repeated(line: str, kind: str) -> None:
    text = MERGE.replace(
        "{kind: merge}", f"\n  kind: template\n  request:\n    template: t\n    parameters: {line}"
    )
    ((at, _, pointer, message),) = faults(text)
    assert at == 8
    assert pointer.startswith("/job/request/parameters/")
    assert kind in message
    assert not any(part in message for part in ("hunter2", "pa55", "AKIA", "ghp_", "bbbb"))


@pytest.mark.parametrize(
    ("job", "is_good"),
    [
        ("{kind: merge, request: {since: '{{ slot.start }}'}}", True),
        ("{kind: template, request: {template: t, parameters: {'{{ slot.end }}': a}}}", False),
        ("{kind: merge, request: {date: '{{ slot.start }}'}}", False),
        ("{kind: merge, request: {source: '{{ slot.start }}'}}", False),
        ("{kind: merge, request: {since: '{{ slot.middle }}'}}", False),
        ("{kind: merge, request: {since: tomorrow}}", False),
        ("{kind: merge, request: {since: yesterday}}", True),
        ("{kind: merge, request: {sauce: orders}}", False),
        ("{kind: template, request: {template: t, parameters: {a: '{{ slot.end }}'}}}", True),
        ("{kind: template, request: {template: t, parameters: {a: 'of {{ slot.end }}'}}}", False),
        ("{kind: template, request: {template: t, parameters: {a: ['{{ slot.end }}']}}}", False),
        ("{kind: template, request: {template: '{{ slot.end }}'}}", False),
        ("{kind: snapshot, request: {stream: backup, with_source: true}}", True),
        ("{kind: snapshot, request: {stream: backup, with_source: 'yes'}}", False),
        ("{kind: backfill, request: {source_topic: o, from: '{{ slot.start }}', to: '{{ slot.end }}'}}", True),
        ("{kind: backfill, request: {source_topic: o, from: '2h', to: '{{slot.end}}', where: 'a OR b'}}", True),
        ("{kind: backfill, request: {source_topic: o, from: '{{ slot.start }}'}}", False),
        ("{kind: backfill, request: {source_topic: o, from: 'at {{ slot.start }}', to: '1h'}}", False),
        ("{kind: backfill, request: {source_topic: '{{ slot.start }}', from: '2h', to: '1h'}}", False),
        ("{kind: backfill, request: {source_topic: o, from: '2h', to: '1h', where: '{{ slot.start }}'}}", False),
        ("{kind: backfill, request: {query: SELECT 1, topic: o, to: '{{ slot.end }}'}}", False),
        ("{kind: compute}", False),
        ("[merge]", False),
        ("{}", False),
    ],
)
def test_a_slot_s_times_stand_only_where_they_have_a_type(job: str, is_good: bool) -> None:
    text = MERGE.replace("{kind: merge}", job)
    if is_good:
        parse_manifest(text.encode())
    else:
        assert all(line == 4 for line, *_ in faults(text))


def test_a_schedule_that_is_never_due_or_ends_before_it_starts_is_refused() -> None:
    assert "never has a run" in faults(MERGE.replace("15 0 * * *", "0 0 30 2 *"))[0][3]
    bounds = "start: 2026-02-01T00:00:00Z\nend: 2026-02-01T00:00:00Z\n"
    assert "end is not after start" in faults(MERGE + bounds)[0][3]
    for job in ("merge", "{}", "{kind: foo}"):
        said = faults(f"kind: Schedule\nname: a\ncron: 0 2 * * *\njob: {job}")[0][3]
        assert said.endswith(
            "such as {kind: merge}. The kinds are backfill, merge, snapshot, template, rollout, compaction."
        )


def test_an_overlap_that_replaced_runs_is_answered_with_what_to_use_instead() -> None:
    with pytest.raises(ManifestInvalidError) as caught:
        parse_manifest(f"{MERGE}overlap: replace\n".encode())
    (error,) = caught.value.details["errors"]
    assert error["pointer"] == "/overlap"
    assert error["message"] == (
        "overlap must be skip or queue. A schedule no longer cancels its previous run (replace)."
    )


def test_the_schema_takes_what_is_good_and_is_of_every_field() -> None:
    schema = manifest_schema()
    kinds = ["ScheduleManifest", "RolloutManifest", "TemplateManifest"]
    assert [each["$ref"] for each in schema["oneOf"]] == [f"#/$defs/{kind}" for kind in kinds]
    parts = schema["$defs"]
    schedule = parts["ScheduleManifest"]
    assert schedule["additionalProperties"] is False
    assert set(schedule["required"]) == {"kind", "name", "cron", "job"}
    assert {"kind", "name", "cron", "time_zone", "start", "end", "job", "catch_up", "overlap"} <= set(
        schedule["properties"]
    )
    assert {"BackfillJob", "MergeJob", "SnapshotJob", "TemplateJob", "RolloutJob", "CompactionJob"} <= set(parts)
    assert set(parts["RolloutManifest"]["required"]) == {"kind", "name", "stream", "from", "to"}
    assert parts["RolloutManifest"]["properties"]["from"]["$ref"] == "#/$defs/RolloutSideWanted"


def test_a_compaction_is_of_the_archive_or_of_the_tables_that_are_named() -> None:
    for job, tables in (
        ("{kind: compaction}", ["archive"]),
        ("{kind: compaction, request: {tables: [archive, staging.orders]}}", ["archive", "staging.orders"]),
    ):
        spec = parse_manifest(MERGE.replace("{kind: merge}", job).encode()).spec
        assert isinstance(spec, ScheduleManifest)
        assert spec.job.model_dump() == {"kind": "compaction", "request": {"tables": tables}}
    for tables, pointer in (("[orders]", "/0"), ("[staging.*]", "/0"), ("[../x.y]", "/0"), ("[]", "")):
        text = MERGE.replace("{kind: merge}", f"{{kind: compaction, request: {{tables: {tables}}}}}")
        ((line, _, at, _),) = faults(text)
        assert (line, at) == (4, f"/job/request/tables{pointer}")


def test_a_long_word_is_searched_for_secrets_in_a_moment() -> None:
    began = time.monotonic()
    assert list(find_secrets("a" * 30_000)) == []
    assert time.monotonic() - began < 1.0, "the time grows with the text and not with its square"


@pytest.mark.parametrize(
    "line", ["start: 9999-12-31T23:59:59-10:00", "start: 9999-12-31T23:59:59Z\ntime_zone: Asia/Tokyo"]
)
def test_a_start_that_no_clock_shows_is_refused(line: str) -> None:
    text = f"kind: Schedule\nname: late\ncron: 0 0 * * *\njob: {{kind: merge}}\n{line}\n"
    with pytest.raises(ManifestInvalidError, match="start is before the year 1 or after the year 9999"):
        parse_manifest(text.encode())


@pytest.mark.parametrize(
    "line", ['time_zone: "a\\0b"', '"a\\0b": 1', 'description: "\\uD800"', '"\\uDC00": 1', 'x: {"\\uD800": 1}']
)
def test_a_character_that_no_store_keeps_is_refused_and_not_repeated(line: str) -> None:
    with pytest.raises(ManifestInvalidError) as raised:
        parse_manifest(f"{MERGE}{line}\n".encode())
    (fault,) = raised.value.details["errors"]
    assert (fault["line"], "which can't be stored" in fault["message"]) == (5, True)
    assert "\0" not in raised.value.message.encode().decode()
