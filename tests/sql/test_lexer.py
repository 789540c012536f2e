import pytest
from hypothesis import given
from hypothesis import strategies as st

from sql.lexer import MAX_QUERY_BYTES, MAX_TOKENS, SourceText, check_size, read_tokens


def values(text: str) -> list[str | bytes]:
    tokens, faults = read_tokens(SourceText(text))
    assert not faults
    return [token.value for token in tokens if token.kind != "end"]


def code(text: str) -> str:
    tokens, faults = read_tokens(SourceText(text))
    found = faults + [token.fault for token in tokens if token.fault]
    return found[0].code if found else ""


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"'a\x41\101å\U0001F600\n'", "aAAå\U0001f600\n"),
        (r'"it\'s"', "it's"),
        (r"r'\n'", "\\n"),
        (r"r'\'x'", r"\'x"),
        (r"b'\xff\377a'", b"\xff\xffa"),
        (r"Rb'\xff'", rb"\xff"),
        ("'''two\nlines'''", "two\nlines"),
        ("'''a\r\nb'''", "a\nb"),
        ('"""say "hi" """', 'say "hi" '),
        ("'\\xe5'", "å"),
        ("'åb'", "åb"),
        ("b'å'", "å".encode()),
    ],
)
def test_strings_are_decoded_as_google_does(written: str, meant: str | bytes) -> None:
    assert values(written) == [meant]


@pytest.mark.parametrize("comment", ["-- x\n", "# x\n", "/* x\n */", "/**/", "-- ' \" ` /*\n", "/* -- */"])
def test_comments_vanish(comment: str) -> None:
    assert values(f"a {comment} b") == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("'a\nb'", "string_open"),
        ("'a\\", "string_open"),
        ("'''a''", "string_open"),
        ("/* a", "comment_open"),
        ("-- a\u2028 DROP", "character_not_allowed"),
        ("-- a\r DROP", "character_not_allowed"),
        ("a\x0cb", "character_not_allowed"),
        ("\ufeffSELECT", "character_not_allowed"),
        ("1a", "number_invalid"),
        ("0x", "number_invalid"),
        ("`a\\`b`", "identifier_escape"),
        ("`a\nb`", "identifier_open"),
        ("`\u212aey`", "identifier_lookalike"),
        ("b'\\u0041'", "string_escape"),
        ("'\\400'", "string_escape"),
        ("@ x", "parameter_invalid"),
        ("@`x`", "parameter_invalid"),
        ("{", "character_not_allowed"),
    ],
)
def test_what_readers_could_read_in_two_ways_is_refused(text: str, wanted: str) -> None:
    assert code(text) == wanted


def test_sizes_are_limited() -> None:
    assert check_size("x" * MAX_QUERY_BYTES) is None
    assert check_size("å" * (MAX_QUERY_BYTES // 2 + 1)) is not None
    assert check_size("\ud800") is not None
    assert code("a " * MAX_TOKENS) == ""
    assert code("a " * (MAX_TOKENS + 1)) == "query_too_long"
    assert code("(" * 31) == "query_too_deep"


@given(st.text(max_size=200))
def test_every_text_is_read_to_its_end_or_refused(text: str) -> None:
    if check_size(text) is not None:
        return
    source = SourceText(text)
    tokens, faults = read_tokens(source)
    assert tokens[-1].kind == "end"
    previous = 0
    for token in tokens[:-1]:
        assert previous <= token.start < token.end <= len(text)
        previous = token.end
    for fault in faults:
        line, column = source.locate(fault.at)
        assert line >= 1
        assert column >= 1
