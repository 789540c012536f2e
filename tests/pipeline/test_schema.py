import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from model.errors import DescriptorError
from pipeline.descriptors import DescriptorSet, schema_version
from pipeline.schema import message_schema


def faults_of(descriptors: DescriptorSet, name: str) -> list[str]:
    with pytest.raises(DescriptorError) as caught:
        message_schema(descriptors.message(name))
    return caught.value.details["faults"]


def test_a_recursive_message_is_refused_with_its_way_round(describe):
    found = describe("message A { B b = 1; }\nmessage B { repeated C c = 1; }\nmessage C { A a = 1; }")
    (fault,) = faults_of(found, "A")
    assert fault.startswith("A.b.c.a: is recursive (A -> B -> C -> A)")
    assert "JSON" in fault


def test_every_fault_is_named_with_its_place(describe):
    found = describe(
        """
        message M {
          string a = 1 [(refeed.rename) = "no name"];
          int64 b = 2 [(refeed.type) = "DATE"];
          string c = 3 [(refeed.regex_extract) = "("];
          string d = 4 [(refeed.regex_replace) = "only a pattern"];
          string e = 5 [(refeed.local_to_utc) = "Europe/Nowhere"];
          string f = 6 [(refeed.local_to_utc) = "UTC, QQQ, yyyy"];
          string g = 7 [(refeed.coalesce) = "a, nothing"];
          int64 h = 8 [(refeed.divide) = "100"];
          double i = 9 [(refeed.divide) = "0"];
          int64 j = 10 [(refeed.append) = "x"];
          string k = 11;
          string l = 12 [(refeed.rename) = "K"];
          string m = 13 [(refeed.rename) = "_partition_x"];
          string n = 14 [(refeed.regex_replace) = "(a),$2"];
          double o = 15 [(refeed.divide) = "nan"];
          double p = 16 [(refeed.divide) = "1e999"];
          string q = 17 [(refeed.local_to_utc) = "UTC, HH:mm, HH:mm"];
          N r = 18;
        }
        message N { string _change_type = 1; }
        """
    )
    places = [fault.split(":")[0].removeprefix("M.") for fault in faults_of(found, "M")]
    assert sorted(places) == [*"abcdefghijlmnopq", "r._change_type"]


def test_a_field_with_the_name_of_a_column_that_every_row_has_is_refused(describe):
    found = describe("message M { string _topic = 1; int64 ingest_date = 2; string INGEST_TIME = 3; }")
    assert [fault.split(":")[0] for fault in faults_of(found, "M")] == [
        "M._topic",
        "M.ingest_date",
        "M.INGEST_TIME",
    ]


def test_a_table_of_changes_has_columns_for_them(describe):
    names = message_schema(describe("message M { int64 id = 1; }").message("M"), variant="change_data").names()
    assert names[:5] == ["id", "_ATTRIBUTES", "_operation", "_stream_time", "_stream_event_id"]


def test_the_version_follows_the_message_and_what_it_reaches_and_nothing_else(describe):
    texts = {
        "first": "message M { N n = 1; }\nmessage N { int64 a = 1; }",
        "beside": "message M { N n = 1; }\nmessage N { int64 a = 1; }\nmessage Other { int64 x = 1; }",
        "within": "message M { N n = 1; }\nmessage N { int64 a = 1; E e = 2; }\nenum E { A = 0; }",
        "option": 'message M { N n = 1; }\nmessage N { int64 a = 1 [(refeed.description) = "new"]; }',
    }
    versions = {name: schema_version(describe(text).message("M")) for name, text in texts.items()}
    assert versions["first"] == versions["beside"]
    assert len(set(versions.values())) == 3


def test_what_is_no_descriptor_set_says_so(describe):
    with pytest.raises(DescriptorError, match="not a descriptor set"):
        DescriptorSet([b"\xff\xff"])
    with pytest.raises(DescriptorError, match="contains no file"):
        DescriptorSet([b""])
    with pytest.raises(DescriptorError, match="has a message Nope"):
        describe("message M { int64 a = 1; }").message("Nope")


def test_a_subset_holds_the_message_s_files_and_opens_by_itself(describe):
    message = describe("message M { int64 a = 1; }").message("M")
    again = DescriptorSet([describe("message M { int64 a = 1; }").subset(message)])
    assert schema_version(again.message("M")) == schema_version(message)


def test_records_in_records_that_make_more_columns_than_a_table_has_are_refused_at_once(describe):
    records = [
        f"message M{n} {{ " + " ".join(f"M{n + 1} f{i} = {i};" for i in range(1, 11)) + " }" for n in range(9)
    ]
    found = describe("\n".join([*records, "message M9 { int64 x = 1; }"]))
    (fault,) = faults_of(found, "M0")
    assert "more than 9,950 columns" in fault


def test_an_option_with_one_of_our_numbers_that_is_no_text_is_a_fault():
    file = FileDescriptorProto(name="odd.proto", syntax="proto3")
    field = file.message_type.add(name="M").field.add(
        name="a", number=1, type=FieldDescriptorProto.TYPE_STRING, label=FieldDescriptorProto.LABEL_OPTIONAL
    )
    # Field 66666670, length-delimited, two bytes that are no UTF-8.
    tag = 66666670 << 3 | 2
    encoded = bytes([tag & 0x7F | 0x80, tag >> 7 & 0x7F | 0x80, tag >> 14 & 0x7F | 0x80, tag >> 21 & 0x7F | 0x80])
    field.options.MergeFromString(encoded + bytes([tag >> 28, 2, 0xFF, 0xFF]))
    found = DescriptorSet([FileDescriptorSet(file=[file]).SerializeToString()])
    (fault,) = faults_of(found, "M")
    assert fault.startswith("M.a: M.a has an option whose number Refeed reserves")
