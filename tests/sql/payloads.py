"""Payloads that producers send and that break readers of JSON, and the calls that have to answer each of them.

What Google's engine answers is recorded in payload_answers.json.gz: ``python -m tests.sql.payloads`` asks it anew and
needs the dependency group ``oracle``. Pairs of surrogates are left out: of a pair the engine makes two characters.
"""

# ruff: noqa: E501 - a table of payloads
import gzip
import json
from pathlib import Path
from typing import Final

RECORD: Final = Path(__file__).parent / "payload_answers.json.gz"
# As texts and, with bytes that are no UTF-8 around them, as messages.
PAYLOADS: Final = (
    '{"a":"\\ud800"}', '{"a":"\\udc00"}', '{"a":"x\\ud800y\\udc00z"}', '{"a":"\\udc00\\ud800"}', '{"\\ud800":1,"a":2}', '{"\\ud800":1,"a":"\\ud800"}',
    '{"a":"\\ud800\\u0041"}', '{"a":"\\ud800\\n"}', '{"a":["\\ud800",1]}', '{"a":{"b":"\\udfff"}}', '{"b":"\\ud800","a":{"b":1}}', '["\\ud800"]',
    '"\\ud800"', '{"a":"\\u0000"}', '{"a":"x\\u0000y","b":1}', '{"a":"\x00"}', '{"a":1}\x00', '\x00{"a":1}', '{"a":1\x00}', '{"a":"\x01"}',
    '{"a":"\n"}', '{"a":"\\u0001"}', '{"a":"\x7f"}', '{"\\u0000":1,"a":1}', '\ufeff{"a":1}', '{"a":"\ufeff"}', '{"a":1}\ufeff', '\xa0{"a":1}',
    '\u2028{"a":1}', '{"a":"\u2028"}', '{"a":"\\u2028"}', '{"a":{"b":"\u2029"}}', '{"a":"\ufffd"}', '{"a":"\uffff"}', '{"a":1e400}', '{"a":-1e400}',
    '{"a":1e-400}', '{"a":123456789012345678901234567890}', '{"a":18446744073709551616}', '{"a":18446744073709551615}', '{"a":9223372036854775808}',
    '{"a":-9223372036854775809}', '{"a":-9223372036854775808}', '{"a":9007199254740993}', '{"a":9007199254740993.0}', '{"a":0.1}',
    '{"a":0.30000000000000004}', '{"a":1.0}', '{"a":1.10}', '{"a":1E5}', '{"a":1e+5}', '{"a":-0}', '{"a":-0.0}', '{"a":0e0}', '{"a":00}', '{"a":01}',
    '{"a":+1}', '{"a":.5}', '{"a":5.}', '{"a":1e}', '{"a":0x1}', '{"a":1_0}', '{"a":1.5e300}', '{"a":123456789.123456789}', '{"b":1e400,"a":1}',
    '{"a":1,"b":1e400}', '{"b":123456789012345678901234567890,"a":1}', '{"a":-}', '{"a":--1}', '{"a":1e99999999999}', '{"a":1e-99999999999}',
    '{"a":1,"a":2}', '{"a":{"c":1},"a":{"b":2}}', '{"a":{"b":null},"a":{"b":2}}', '{"a":null,"a":1}', '{"a":[],"a":[1]}', '{"a":1,"a":[1]}',
    '{"a":[{"b":1}],"a":[2]}', '{"a":{"c":1},"a":{"b":{"x":1.0}}}', '{"a":1,"b":2,"a":{"b":3}}', '{"\\u0061":1}', '{"\\u0061":1,"a":2}',
    '{"a":{"c":"\\u00e9"},"a":{"b":2}}', '{"b":{"a":1,"a":2},"a":{"x":1,"x":2}}', '{"a":NaN}', '{"a":Infinity}', '{"a":-Infinity}', "NaN", "nan", "inf",
    '{"a":nan}', '{"a":nul}', '{"a":undefined}', '{"a":True}', '{"a":TRUE}', "{a:1}", "{'a':1}", '{"a":\'x\'}', '{"a":1,}', '{,"a":1}', '{"a":1 "b":2}',
    '{"a" 1}', '{"a":}', '{"a"}', '{"a":[1,]}', '{"a":[,1]}', '{"a":1;}', '{"a":1}}', '{"a":1}]', "[1", '{"a":[1,2', '{"a":"x', '{"a":"x\\',
    '{"a":"x\\u', '{"a":"x\\u1', '{"a":"\\x41"}', '{"a":"\\q"}', '{"a":"\\/"}', '{"a":"\\\'"}', '{"a":"\\ud8"}', '{"a":"\\uD83D\\u"}',
    '{"a":"\\uzzzz"}', '{"a":1} //c', '//c\n{"a":1}', '{"a":/*c*/1}', '{"a":1}{"a":2}', "1 2", "", "  ", ' {"a": 1} ', '\t\r\n{"a":\n1}', '\x0b{"a":1}',
    '\x0c{"a":1}', "null", '{"a":null}', "true", "false", '{"a":true}', '{"a":false}', '"x"', "1", "-1", "1.5", "[]", "{}", "[1,2]", "[null]",
    '{"":1,"a":1}', '{"a.b":1,"a":1}', '{"a":""}', '{"a":" "}', '{"a":"NaN"}', '{"a":"it\'s"}', '{"a":"\\"q\\""}', '{"a":"\\\\"}', '{"a":"\xe9"}',
    '{"a":"\U0001f600"}', '{"a":{"z":1,"b":2}}', '{"a":{"b":1.50,"c":1e16}}', '{"a":[1.50,"x",null]}', '{"a":["x",1,true,null]}', '{"a":[[1]]}',
    '{"a":[{"b":1}]}', '{"0":5,"a":[5]}', '{"a":{"0":1,"b":2}}', '[{"a":1},{"a":2}]', '{"a":12,"b":{"a":[1,{"c":2}]}}',
    '{ "a" : { "b" : 1 } , "c" : 2 }', '{"a":[ 1 , 2 ]}', '{"a": "a  b"}', '{"a":"true"}', '{"a":"12"}', '{"a":"1e5"}', '{"a":"0x10"}', '{"a":1.5}',
    '{"a":1e2}', '{"a":100000000000000000000.5}', '{"a":"\\u007f\\u0080\\u009f"}', '{"a":"<>&\'"}', '{"a":"\x80"}', '{"a":1}\x00x', '{"a":\x001}',
    "\x00", '{"a":1}\n\x00{', "\ufeff\ufeff1", "\ufeff", '{"a"\x0b:\x0c1}', "[1,\x0b2]", '{"a":\x1c1}', '{"a":\xa01}', '{"a":0.1234567890123456789}',
    '{"a":1.00000000000000000001}', '{"a":9007199254740993.5}', '{"a":{"x":1},"\\u0061":{"b":2}}', '{"a":[1],"a":[1,{"c":1}]}',
    '{"a":null,"a":{"b":3}}', '{"a":[],"a":[7]}', '{"a":1 ,"a":[7]}',
    '{"a":' + "[" * 300 + "]" * 300 + "}", '{"a":' * 60 + "1" + "}" * 60, '{"b":' + '{"a":' * 300 + "1" + "}" * 300 + ',"a":1}',
    '{"a":' + "9" * 400 + "}", '{"a":0.' + "9" * 400 + "}", '{"a":"' + "x" * 3000 + '"}', '{"b":"' + "\\n" * 1000 + '","a":1}',
)  # fmt: skip
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
    *(
        f"{name}(({_JSON}).a)"
        for name in ("SAFE.STRING", "SAFE.INT64", "SAFE.FLOAT64", "SAFE.BOOL", "LAX_STRING", "LAX_INT64", "LAX_FLOAT64", "LAX_BOOL", "JSON_TYPE")
    ),
    _JSON, f"({_JSON}).a.b", f"({_JSON})['a']", f"({_JSON})[0]", f"TO_JSON_STRING({_JSON})", f"JSON_TYPE({_JSON})",
    "TO_JSON_STRING(c0)", "TO_JSON(c0)", "TO_JSON_STRING(STRUCT(c0 AS x, [c0] AS y))", f"JSON_KEYS({_JSON})", f"JSON_SET({_JSON}, '$.a', c0)",
    f"JSON_REMOVE({_JSON}, '$.a')", f"JSON_STRIP_NULLS({_JSON})", f"JSON_ARRAY(c0, {_JSON})", "JSON_OBJECT(c0, 1)",
    "SAFE_CAST(JSON_VALUE(c0, '$.a') AS INT64)", "SAFE_CAST(JSON_VALUE(c0, '$.a') AS FLOAT64)", "SAFE_CAST(JSON_VALUE(c0, '$.a') AS TIMESTAMP)",
    "ARRAY(SELECT JSON_VALUE(j, '$.b') FROM UNNEST(JSON_QUERY_ARRAY(c0, '$.a')) AS j)", "UPPER(c0)", "INITCAP(c0)", "NORMALIZE(c0)", "REVERSE(c0)",
    "SPLIT(c0, ',')", "TO_CODE_POINTS(c0)", "SUBSTR(c0, 2, 3)", "FORMAT('%T', c0)", "FORMAT('%s', c0)", "SAFE.FROM_BASE64(c0)", "SAFE.FROM_HEX(c0)",
    "REGEXP_EXTRACT(c0, r'\"a\":(.)')", "REGEXP_REPLACE(c0, 'a', '')", "TRIM(c0)", "FARM_FINGERPRINT(c0)",
)  # fmt: skip
CALLS_OF_BYTES: Final = (
    "SAFE_CONVERT_BYTES_TO_STRING(c0)", "SAFE_CAST(c0 AS STRING)", "JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(c0), '$.a')",
    "JSON_QUERY(SAFE_CAST(c0 AS STRING), '$')", "SAFE.PARSE_JSON(SAFE_CONVERT_BYTES_TO_STRING(c0))", "TO_BASE64(c0)",
)  # fmt: skip


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
