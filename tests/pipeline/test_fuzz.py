"""Whatever a topic holds, every message is a row or refused, and nothing else happens."""

import json
import re

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectors.columns import arrow_schema
from pipeline.decode import Decoder
from pipeline.descriptors import DescriptorSet
from pipeline.inferred import InferredDecoder, learn
from pipeline.mapping import map_message
from pipeline.registry import Source
from pipeline.schema import message_schema
from pipeline.shapes import EMPTY, join, read_shape
from tests.pipeline.conftest import compile_protos, messages

ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    # What has ended a stream, or a message, elsewhere.
    | st.sampled_from(["\ud800", "\x00", "RED", "Nope", "1e400", "NaN", 1 << 63, -(1 << 63), 10**400, -0.0]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
FIELDS = (
    "aSint32", "aUint64", "largeUint64", "cents", "colour", "colourName", "colours", "labels", "points",
    "flags",
)  # fmt: skip
MORE = ("at", "times", "took", "structure", "mask", "wrappedBytes", "tree", "document", "numberText", "thePoint")
BODIES = st.dictionaries(st.sampled_from(FIELDS + MORE) | st.text(max_size=4), ANY_JSON, max_size=5)
SOURCE = Source("s", "topic", "sub", "staging.s", "reporting.s", "default", "plain")


def open_decoder(folder) -> Decoder:
    message = DescriptorSet([compile_protos(folder, "kinds.proto")]).message("kinds.Everything")
    schema = arrow_schema(message_schema(message))
    return Decoder(map_message(message), schema, version="v", topic="topic", token="token")


def test_a_batch_of_anything_is_rows_and_refusals(tmp_path):
    decoder = open_decoder(tmp_path)

    @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(BODIES.map(lambda body: json.dumps(body).encode()) | st.binary(max_size=20), max_size=6))
    def check(payloads):
        decoded = decoder.decode(messages(*payloads))
        assert sorted([*decoded.indices, *(refusal.index for refusal in decoded.refused)]) == list(
            range(len(payloads))
        )
        assert decoded.rows.num_rows == len(decoded.indices)
        assert [refusal for refusal in decoded.refused if refusal.code == "decoder_fault"] == []

    check()


NAMES = st.sampled_from(["new", "x", "a.b", "n[0].new", "m", 'm["k"].new', "", "`"]) | st.text(max_size=3)
FIELDS_OF_PARTS = ("one", "n", "m", "s", "x")
LEAVES = st.integers(10**6, 10**9).map(lambda number: f"leaf-{number}")
UNKNOWN = st.dictionaries(
    NAMES.filter(lambda name: name not in FIELDS_OF_PARTS), LEAVES | st.lists(LEAVES, max_size=2), max_size=3
)


def objects(**known):
    """Return objects with any of the fields ``known`` and with others."""
    return st.builds(lambda fields, more: {**more, **fields}, st.fixed_dictionaries({}, optional=known), UNKNOWN)


PART = objects(x=LEAVES)
WHOLE = objects(
    one=PART,
    n=st.lists(PART, max_size=3),
    m=st.dictionaries(NAMES, PART, max_size=3),
    s=st.dictionaries(NAMES, LEAVES),
)
PARTS = """
import "google/protobuf/struct.proto";
message M { N one = 1; repeated N n = 2; map<string, N> m = 3; google.protobuf.Struct s = 4; }
message N { string x = 1; }
"""


def test_a_row_holds_all_that_its_message_held_known_or_not(describe):
    message = describe(PARTS).message("M")
    columns = arrow_schema(message_schema(message))
    decoder = Decoder(map_message(message), columns, version="v", topic="topic", token="token")

    @settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
    @given(WHOLE)
    def check(body):
        text = json.dumps(body)
        decoded = decoder.decode(messages(text.encode()))
        assert decoded.refused == []
        assert set(re.findall("leaf-[0-9]+", text)) == set(
            re.findall("leaf-[0-9]+", str(decoded.rows.drop_columns("ingest_time").to_pylist()))
        )
        assert len(re.findall("leaf-", text)) == len(re.findall("leaf-", str(decoded.rows.to_pylist())))

    check()


def refused_texts(decoded, payloads):
    return [payloads[refusal.index].decode() for refusal in decoded.refused]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=6), ANY_JSON, max_size=4), min_size=1, max_size=6))
def test_after_what_was_learned_every_object_fits_and_what_fitted_before_still_does(bodies):
    payloads = [json.dumps(body).encode() for body in bodies]
    batch = messages(*payloads)
    types = []
    for _ in range(2):
        decoded = InferredDecoder(SOURCE, types, secret="s", max_bytes=10_000).decode(batch)
        # Half a surrogate pair is no text that a table holds.
        assert all("ud800" in bodies_text for bodies_text in refused_texts(decoded, payloads))
        if not decoded.unfit:
            break
        types = learn(SOURCE, types, list(decoded.variations.values()))
    rows = sum(part.rows.num_rows for _, part in decoded.tables)
    assert (decoded.unfit, rows) == ([], len(bodies) - len(decoded.refused))


@settings(max_examples=100, deadline=None)
@given(ANY_JSON, ANY_JSON)
def test_shapes_join_to_what_joining_again_does_not_change(one, other):
    shapes = [read_shape({"x": one}) or EMPTY, read_shape({"x": other}) or EMPTY]
    joined = join(*shapes)
    assert join(joined, shapes[0]) == join(joined, shapes[1]) == joined
