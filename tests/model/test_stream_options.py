"""Options of streams: everything that is wrong is named, and a process gets them as settings."""

from dataclasses import replace

import pytest

from model.errors import RequestInvalidError
from model.settings import read_settings
from model.stream_options import (
    OPTIONS,
    BackupStreamOptions,
    PipelineStreamOptions,
    StreamKind,
    extend_mapping,
    option_errors,
    parse_options,
)


def test_an_option_that_is_close_to_none_is_answered_with_all_of_them():
    (error,) = option_errors(StreamKind.BACKUP, {"nonsense": 1})
    assert error["message"] == (
        "A backup stream has no option nonsense. Its options are slots, batch_seconds, batch_bytes, "
        "known_ids_seconds."
    )


def test_every_fault_is_named_at_once_with_its_place():
    document = {"slots": 0, "batch_seconds": "2", "batch_byte": 5, "group": "Orders", "message_bytes": True}
    with pytest.raises(RequestInvalidError) as refused:
        parse_options(StreamKind.PIPELINE, document)
    assert refused.value.details["errors"] == [
        {
            "code": "option_invalid",
            "message": "slots must be a whole number from 1 to 1000.",
            "pointer": "/options/slots",
        },
        {
            "code": "option_invalid",
            "message": "batch_seconds must be a number from 0.05 to 300.",
            "pointer": "/options/batch_seconds",
        },
        {
            "code": "field_unknown",
            "message": "A pipeline stream has no option batch_byte. Did you mean batch_bytes or batch_seconds?",
            "pointer": "/options/batch_byte",
        },
        {
            "code": "option_invalid",
            "message": "group must have only lower-case letters, digits and -.",
            "pointer": "/options/group",
        },
        {
            "code": "option_invalid",
            "message": "message_bytes must be a whole number from 1000 to 100000000.",
            "pointer": "/options/message_bytes",
        },
    ]


@pytest.mark.parametrize("value", [1.5, float("nan"), float("inf"), 301, [], {}])
def test_a_value_of_another_type_or_beyond_the_bounds_is_refused(value):
    assert option_errors(StreamKind.BACKUP, {"slots": value, "batch_seconds": None}) or value == 301
    assert option_errors(StreamKind.BACKUP, {"batch_seconds": value}) or value == 1.5


def test_an_option_of_the_other_kind_is_refused():
    assert option_errors(StreamKind.BACKUP, {"group": "default"})[0]["code"] == "field_unknown"
    assert option_errors(StreamKind.PIPELINE, {"known_ids_seconds": 5})[0]["code"] == "field_unknown"


def test_null_leaves_a_setting_as_it_is():
    assert parse_options(StreamKind.BACKUP, {"slots": None}) == BackupStreamOptions()
    assert parse_options(StreamKind.PIPELINE, {}) == PipelineStreamOptions(group="default")
    assert BackupStreamOptions().environment() == {}


def test_a_process_reads_every_option_from_its_environment():
    """Each option is a setting of the same meaning and the same bounds."""
    backup = BackupStreamOptions(slots=3, batch_seconds=0.1 + 0.2, batch_bytes=2_000_000, known_ids_seconds=0)
    settings = read_settings({"REFEED_HOME": "/tmp/h", **backup.environment()})
    assert (settings.backup_slots, settings.backup_batch_seconds) == (3, 0.3)
    assert (settings.backup_batch_bytes, settings.known_ids_seconds) == (2_000_000, 0)
    pipeline = PipelineStreamOptions(slots=1000, batch_seconds=300, batch_bytes=1 << 40, message_bytes=1_000)
    settings = read_settings({"REFEED_HOME": "/tmp/h", **pipeline.environment()})
    assert (settings.pipeline_slots, settings.pipeline_batch_seconds) == (1000, 300)
    assert (settings.pipeline_batch_bytes, settings.pipeline_message_bytes) == (1 << 40, 1_000)


@pytest.mark.parametrize("kind", list(StreamKind))
def test_each_option_but_the_group_and_its_mapping_stands_for_a_variable(kind):
    from model.declaration import declared_fields

    options = OPTIONS[kind]
    assert {each.name for each in declared_fields(options)} - {"group", "mapping"} == set(options.VARIABLES)
    assert replace(parse_options(kind, {}), batch_seconds=1).environment()


@pytest.mark.parametrize("mapping", [["orders"], {"orders": None}, {"orders": ""}, {"orders": 1}, "orders=sales"])
def test_a_mapping_leads_from_names_to_names(mapping):
    (error,) = option_errors(StreamKind.PIPELINE, {"mapping": mapping})
    assert error["pointer"] == "/options/mapping"
    assert option_errors(StreamKind.PIPELINE, {"mapping": {"orders": "sales"}}) == []


def test_a_source_that_is_renamed_back_has_no_mapping_left():
    assert extend_mapping({"orders": "sales"}, {"sales": "orders"}) == {"sales": "orders"}
    assert extend_mapping(None, {"orders": None}) == {}


def test_a_kinesis_stream_s_process_reads_every_option_from_its_environment():
    options = parse_options(
        StreamKind.KINESIS,
        {
            "stream": "Orders.v2",
            "region": "eu-west-1",
            "topic": "orders",
            "start": "2026-01-03T10:00:00Z",
            "source": "shop",
            "slots": 2,
            "access_key_id": "env:AWS_ID",
            "secret_access_key": "env:AWS_SECRET",
        },
    )
    environment = {"AWS_ID": "AKIA", "AWS_SECRET": "s3cret"}
    settings = read_settings({"REFEED_HOME": "/tmp/h", **environment, **options.environment()}).kinesis
    assert (settings.stream, settings.region, settings.topic) == ("Orders.v2", "eu-west-1", "orders")
    assert (settings.start, settings.source, settings.slots) == ("2026-01-03T10:00:00Z", "shop", 2)
    assert (settings.access_key_id, settings.secret_access_key) == ("AKIA", "s3cret")
    assert "s3cret" not in f"{options}{options.to_json()}{options.environment()}{settings}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("secret_access_key", "wJalrXUtnFEMI/K7MDENG"),
        ("access_key_id", "AKIAIOSFODNN7EXAMPLE"),
        ("secret_access_key", "gcp-kms:key:wJalrXUtnFEMI"),
        ("start", "yesterday"),
        ("start", "2026-01-03T10:00:00"),
        ("start", "0001-01-01T00:00:00+10:00"),
        ("region", "europe"),
        ("stream", "orders/1"),
        ("topic", "goog-orders"),
        ("stream", 5),
    ],
)
def test_an_option_of_kinesis_that_is_none_is_refused_and_no_secret_is_shown(name, value):
    (error,) = option_errors(StreamKind.KINESIS, {name: value})
    assert error["pointer"] == f"/options/{name}"
    assert "wJalr" not in error["message"]
    assert "AKIA" not in error["message"]
