"""Payloads that producers send and that break readers of JSON, and the calls that have to answer each of them.

payloads.jsonl has one a line as a text of JSON. What Google's engine answers is in payload_answers.json.gz:
``python -m tests.sql.payloads`` asks the engine again. This needs the dependency group ``oracle``. Pairs of
surrogates are left out, because the engine makes two characters of a pair.
"""

import gzip
import json
from pathlib import Path
from typing import Final

RECORD: Final = Path(__file__).parent / "payload_answers.json.gz"
# As texts and, with bytes that are no UTF-8 around them, as messages.
PAYLOADS: Final = (
    *map(json.loads, Path(__file__).with_suffix(".jsonl").read_text().splitlines()),
    '{"a":' + "[" * 300 + "]" * 300 + "}",
    '{"a":' * 60 + "1" + "}" * 60,
    '{"b":' + '{"a":' * 300 + "1" + "}" * 300 + ',"a":1}',
    '{"a":' + "9" * 400 + "}",
    '{"a":0.' + "9" * 400 + "}",
    '{"a":"' + "x" * 3000 + '"}',
    '{"b":"' + "\\n" * 1000 + '","a":1}',
)
# Deeper than the engine reads; a lake's answer is NULL or what stands before.
DEEP: Final = (
    "[" * 5000,
    '{"a":1,"b":' + "[" * 5000,
    '{"a":' * 5000 + "1" + "}" * 5000,
    '{"a":' + "9" * 5000 + "}",
)
BROKEN: Final = (
    *(b'{"a":"\xff"}', b'\xff{"a":1}', b'{"a":1}\xc3', b'{"a":"\xed\xa0\x80"}', b"", b"\x00"),
    b'{"\xc3":1,"a":1}',
)
_OF_TEXTS, CALLS_OF_BYTES = (
    tuple(part.splitlines()[1:])
    for part in Path(__file__).with_name("payload_calls.sql").read_text().split("-- Calls ")[1:]
)
_TEXT: Final = "c0"
_JSON: Final = "SAFE.PARSE_JSON(c0)"
_PATHS: Final = ("$", "$.a", "$.b", "$.a.b", "$.a[0]", "$[0]")
CALLS: Final = (
    *(
        f"{name}({source}, '{path}')"
        for name in ("JSON_VALUE", "JSON_QUERY", "JSON_EXTRACT", "JSON_EXTRACT_SCALAR")
        for source in (_TEXT, _JSON)
        for path in (_PATHS if name in {"JSON_VALUE", "JSON_QUERY"} else ("$.a", "$.a.b"))
    ),
    *(
        f"{name}({source}, '$.a')"
        for name in ("JSON_QUERY_ARRAY", "JSON_VALUE_ARRAY", "JSON_EXTRACT_ARRAY", "JSON_EXTRACT_STRING_ARRAY")
        for source in (_TEXT, _JSON)
    ),
    *_OF_TEXTS,
)


def as_bytes(data: bytes) -> str:
    return "b'" + "".join(f"\\x{byte:02x}" for byte in data) + "'"


def as_text(text: str) -> str:
    return (
        "'"
        + "".join(char if " " <= char <= "~" and char not in "'\\" else f"\\U{ord(char):08x}" for char in text)
        + "'"
    )


def questions() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return for each call the type of its column and the literals in it."""
    texts = tuple(map(as_text, PAYLOADS))
    data = tuple(map(as_bytes, [*(payload.encode() for payload in PAYLOADS[::7]), *BROKEN]))
    return dict.fromkeys(CALLS, ("STRING", texts)) | dict.fromkeys(CALLS_OF_BYTES, ("BYTES", data))


def read_record() -> dict[str, list[str]]:
    """Return the engine's answers for each call, in the order of its payloads."""
    return json.loads(gzip.decompress(RECORD.read_bytes()))


def record() -> None:
    from tests.sql.judge import Judge

    judge = Judge()

    def answers(call: str, literals: tuple[str, ...]) -> list[str]:
        listed = f"UNNEST([{', '.join(literals)}]) AS c0 WITH OFFSET AS n"
        return [row[0] for row in judge.answer(f"SELECT {call} FROM {listed} ORDER BY n")]

    found = {call: answers(call, literals) for call, (_, literals) in questions().items()}
    RECORD.write_bytes(gzip.compress(json.dumps(found, ensure_ascii=False).encode(), 9, mtime=0))


if __name__ == "__main__":
    record()
