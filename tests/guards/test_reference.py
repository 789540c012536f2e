import pytest

from tests.guards.reference.markdown import anchor, prose, sentence, table
from tests.guards.reference.pages import FOLDER, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_the_code_declares(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "run: make reference"


def test_no_other_page_lies_beside_them() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {*PAGES}


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("<home>/secret, or a*", r"\<home>/secret, or a\*"),
        ("'refeed up' reads it\n and REFEED_HOME", "`refeed up` reads it and `REFEED_HOME`"),
        ("see docs/lifecycle.md#approvals", "see [lifecycle.md](../lifecycle.md#approvals)"),
        ("``data`` is `REFEED_X`", "`data` is `REFEED_X`"),
        ("with --json-x a-b--c", "with `--json-x` a-b--c"),
        ("it's the topic's", "it's the topic's"),
        ("skip: the run is skipped. all: no run", "`skip`: the run is skipped. `all`: no run"),
        ("max_rows of dataset.table, or PAUSED; 'from'", "`max_rows` of `dataset.table`, or `PAUSED`; `from`"),
        ("needs streams.read, as in gs://b/a_b.", "needs `streams.read`, as in `gs://b/a_b`."),
    ],
)
def test_plain_text_is_markdown_that_reads_the_same(text: str, written: str) -> None:
    assert prose(text) == written


def test_a_sentence_ends_with_a_full_stop() -> None:
    assert [sentence(text) for text in ("host:port", "gs://bucket.", "")] == ["host:port.", "gs://bucket.", ""]


def test_a_bar_does_not_end_a_cell() -> None:
    assert table(["a", "b"], [["x|y", r"p\|q"]]) == "| a | b |\n| --- | --- |\n| x\\|y | p\\|q |\n"
    assert anchor("`GET /topics/{topic}`") == "get-topicstopic"
