"""What docs/pipeline.md shows is what Refeed does."""

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from pipeline.registry import Registry

PAGE = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()


def fences(language: str) -> list[str]:
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```$", PAGE, re.DOTALL | re.MULTILINE)
    return [dedent(text) for text in found]


def test_the_page_s_schema_compiles_with_the_page_s_command_and_makes_the_page_s_source(tmp_path):
    (schema,), (sources,) = fences("protobuf"), fences("yaml")
    (command,) = [text for text in fences("sh") if "protoc" in text]
    (tmp_path / "shop.proto").write_text(schema)
    (tmp_path / "sources.yaml").write_text(sources)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", "-euc", command],
        cwd=tmp_path,
        env={**os.environ, "PATH": programs},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    (source,) = Registry(str(tmp_path)).read().sources
    assert (source.name, source.topic, source.key) == ("orders", "orders", ("id",))
    assert source.event_time == "updated_at"
    described = {field.name: field for field in source.row_schema.fields}
    assert described["email"].description == "Where the receipt goes."
    assert described["amount"].type == "FLOAT64"


@pytest.mark.parametrize("command", ["refeed attach orders", "refeed source publish", "refeed pipeline run"])
def test_the_page_names_every_command_that_a_new_source_takes(command):
    assert any(command in text for text in fences("sh"))
