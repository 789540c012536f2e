"""Descriptor sets with every option and kind of field: the table and the rows are those of the golden files.

``REFEED_GOLDEN=write`` writes the files anew; read the difference before you commit it.
"""

import base64
import json
import os
import re
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from connectors.columns import arrow_schema
from pipeline.decode import Decoder
from pipeline.descriptors import DescriptorSet
from pipeline.mapping import map_message
from pipeline.options import read_message_options
from pipeline.schema import message_schema
from tests.pipeline.conftest import compile_protos, messages

GOLDEN = Path(__file__).parent / "golden"
CASES = {"legacy": "legacy.test.Options", "kinds": "kinds.Everything"}


def plain(value):
    """Return a cell as JSON has it."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime | date | Decimal):
        return str(value)
    if isinstance(value, dict):
        return {key: plain(child) for key, child in value.items()}
    return [plain(child) for child in value] if isinstance(value, list) else value


def check(name: str, found) -> None:
    path = GOLDEN / name
    # A line a field of the table, or of a row.
    text = re.sub(r"\n( {3,}| {2}(?=[}\]]))", " ", json.dumps(found, indent=1, ensure_ascii=False)) + "\n"
    if os.environ.get("REFEED_GOLDEN") == "write":
        path.write_text(text)
    assert json.loads(path.read_text()) == json.loads(text)


@pytest.fixture(params=sorted(CASES))
def case(request, tmp_path):
    descriptors = DescriptorSet([compile_protos(tmp_path, f"{request.param}.proto")])
    return request.param, descriptors.message(CASES[request.param])


def test_the_table_is_the_documented_one(case):
    name, message = case
    schema = message_schema(message, policy_tag_pattern=re.compile("projects/[ap]/"))
    check(f"{name}.schema.json", schema.to_json())


def test_the_rows_are_the_documented_ones(case):
    name, message = case
    schema = message_schema(message)
    decoder = Decoder(map_message(message), arrow_schema(schema), version="v1", topic="orders", token="token")
    payloads = [json.dumps(body).encode() for body in json.loads((GOLDEN / f"{name}.messages.json").read_text())]
    decoded = decoder.decode(messages(*payloads, attributes={"uuid": "123-456-abc", "source": "test"}))
    assert decoded.refused == []
    assert decoded.rows.schema == arrow_schema(schema)
    rows = decoded.rows.drop_columns(["ingest_time"]).to_pylist()
    check(f"{name}.rows.json", [plain(row) for row in rows])


def test_a_message_says_which_table_it_goes_to(case):
    name, message = case
    wanted = {"legacy": "project:shop.entities", "kinds": "shop.everything"}
    assert read_message_options(message).table_reference == wanted[name]
