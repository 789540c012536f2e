import subprocess
import sys

import pytest

# Each looks in a process of its own: what one imported is there for all that come after it.
BEGIN = "import connectors.arrow, pyarrow as pa, sys; "


@pytest.mark.parametrize(
    "code",
    [
        # What a stream's tasks do.
        "import backup.source, pipeline.source; pa.array([{'key': 'a'}]); assert 'pandas' not in sys.modules",
        "assert pa.array([1, 2]).to_pandas().sum() == 3; assert 'pandas' in sys.modules",
    ],
)
def test_pandas_is_imported_only_by_those_who_ask_for_it(code: str) -> None:
    run(BEGIN + code)


def test_looking_for_pandas_takes_none_of_arrow_s_memory() -> None:
    run("import pyarrow as pa, connectors.arrow; assert pa.default_memory_pool().max_memory() in (0, None)")


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
