import math
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from google.api import field_behavior_pb2
from grpc_tools import protoc

import pipeline
from pipeline.descriptors import DescriptorSet
from tests import archive

PROTOS = Path(__file__).parent / "protos"
# What people import: refeed/options.proto.
OWN_PROTOS = Path(pipeline.__file__).parent / "proto"
# Where protoc finds google/protobuf and google/api.
INCLUDED = (Path(protoc.__file__).parent / "_proto", Path(field_behavior_pb2.__file__).parents[2])

# The attributes of a replayed message that was archived as another one.
TAGS = {
    "refeed_replay": "token",
    "refeed_backfill_id": "bf_1",
    "refeed_row": "7",
    "refeed_topic": "orders-old",
    "refeed_message_id": "original",
    "refeed_publish_time": "2023-01-01T00:00:00.000001Z",
}


def compile_protos(folder, *files):
    target = folder / "compiled.desc"
    arguments = [f"-I{path}" for path in (folder, PROTOS, OWN_PROTOS, *INCLUDED)]
    ended = protoc.main([sys.argv[0], *arguments, "--include_imports", f"--descriptor_set_out={target}", *files])
    assert ended == 0
    return target.read_bytes()


@pytest.fixture
def describe(tmp_path):
    """Return the descriptor set of a file of ``protos``, or of the text of a proto3 file."""

    def make(given):
        file = given if given.endswith(".proto") else "given.proto"
        if file != given:
            (tmp_path / file).write_text(f'syntax = "proto3";\nimport "refeed/options.proto";\n{given}')
        return DescriptorSet([compile_protos(tmp_path, file)])

    return make


def messages(*payloads, attributes=None, first=1):
    """Return a batch as a Pull brings it."""
    count, pairs = len(payloads), [{"key": k, "value": v} for k, v in (attributes or {}).items()]
    ids, noon = [str(number) for number in range(first, first + count)], datetime(2024, 3, 1, 12, tzinfo=UTC)
    columns = {"attributes": [pairs] * count, "message_id": ids, "publish_time": [noon] * count, "ack_id": ids}
    return archive.messages(count, data=payloads, **columns)


def frame(results, *, errors=(), faults="{}"):
    """Return what Spark hands to foreachBatch: a row a task, over Arrow."""
    rows = {
        "slot": list(range(len(results))),
        "result": pa.array(results, pa.binary()),
        "error": pa.array(errors or [None] * len(results), pa.string()),
        "faults": [faults] * len(results),
        "held_until": [math.inf] * len(results),
    }
    return SimpleNamespace(toArrow=lambda: pa.table(rows))
