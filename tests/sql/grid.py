# ruff: noqa: E501, RUF001 - a table of templates, each in one piece
"""The grid of expressions whose answers Google's engine gave: every function the lake answers x edge values.

A template is an expression with holes. ``{s}`` takes every edge value of its type, one hole at a time, the others
at their first value, then NULL, then a few at random together; ``{s:'a'|'b'}`` takes these values instead. In
``{=1|2}`` stand constants. A case is asked twice: with its values as literals, and with its values in columns.
"""

import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

TYPES: Final = {
    "s": "STRING", "b": "BYTES", "i": "INT64", "f": "FLOAT64", "n": "NUMERIC", "o": "BOOL", "d": "DATE",
    "t": "TIMESTAMP", "e": "DATETIME", "c": "TIME", "j": "JSON", "x": "ANY",
    "as": "ARRAY<STRING>", "ai": "ARRAY<INT64>", "ad": "ARRAY<DATE>",
}  # fmt: skip
VALUES: Final = {
    "s": [
        "'abc'", "''", "'a'", "'Añb'", "'straße'", "'e\\u0301a'", "'\\U0001F600x'", "'  a '", "'\\u2003a\\u00a0'",
        "'a\\x00b'", "'a,b,,c'", "'\\n\\tx\\r'", "'İǅﬁΑΣ'", "'aaa'", "'%_\\\\'",
    ],
    "b": ["b'abc'", "b''", "b'\\xff\\x00'", "b'a'", "b'\\xc3\\xa9'", "b'  a '", "b'aaa'"],
    "i": [
        "1", "0", "-1", "2", "-8", "7", "64", "-64", "9223372036854775807", "-9223372036854775808", "1000000", "4294967296",
    ],
    "f": [
        "1.5", "0.0", "-0.0", "-2.5", "2.5", "0.1", "1e308", "1.7e308", "5e-324", "CAST('nan' AS FLOAT64)",
        "CAST('inf' AS FLOAT64)", "CAST('-inf' AS FLOAT64)", "-1.0", "1e15", "12345678.9", "1e-7", "9.2233720368547758e18",
        "0.3333333333333333", "1e21", "2.0",
    ],
    "n": [
        "NUMERIC '1.5'", "NUMERIC '0'", "NUMERIC '-2.5'", "NUMERIC '3'", "NUMERIC '0.000000001'", "NUMERIC '2.5'",
        "NUMERIC '99999999999999999999999999999.999999999'", "NUMERIC '-99999999999999999999999999999.999999999'",
        "NUMERIC '12345.678901234'",
    ],
    "o": ["TRUE", "FALSE"],
    "d": [
        "DATE '2024-02-29'", "DATE '0001-01-01'", "DATE '9999-12-31'", "DATE '1970-01-01'", "DATE '2024-12-30'",
        "DATE '2021-01-03'", "DATE '1899-12-31'",
    ],
    "t": [
        "TIMESTAMP '2024-02-29 12:34:56.789012+00'", "TIMESTAMP '0001-01-01 00:00:00+00'",
        "TIMESTAMP '9999-12-31 23:59:59.999999+00'", "TIMESTAMP '1969-12-31 23:59:59.5+00'",
        "TIMESTAMP '1970-01-01 00:00:00+00'", "TIMESTAMP '2024-03-31 01:30:00+00'", "TIMESTAMP '2021-01-03 00:00:00+00'",
    ],
    "e": [
        "DATETIME '2024-02-29 12:34:56.789012'", "DATETIME '0001-01-01 00:00:00'",
        "DATETIME '9999-12-31 23:59:59.999999'", "DATETIME '1969-12-31 23:59:59.5'", "DATETIME '2024-12-30 00:00:00'",
    ],
    "c": ["TIME '12:34:56.789012'", "TIME '00:00:00'", "TIME '23:59:59.999999'", "TIME '01:02:03.5'"],
    "j": [
        "JSON '{\"a\": 1, \"b\": [1, \"x\", null]}'", "JSON '1'", "JSON '\"x\"'", "JSON 'null'", "JSON 'true'",
        "JSON '1.5'", "JSON '[]'", "JSON '{}'", "JSON '-1e2'", "JSON '12345678901234567890'", "JSON '1.0'", "JSON '\"12\"'",
        "JSON '\"true\"'",
    ],
    "as": ["['a','b']", "ARRAY<STRING>[]", "['a',NULL,'c']", "['']"],
    "ai": ["[1,2,3]", "ARRAY<INT64>[]", "[1,NULL]", "[5]"],
    "ad": ["[DATE '2024-01-01', DATE '2023-01-01']", "ARRAY<DATE>[]"],
}  # fmt: skip

ZONES: Final = "'UTC'|'Europe/Stockholm'|'America/New_York'"
PART_DATE: Final = "DAY|WEEK|WEEK(MONDAY)|WEEK(WEDNESDAY)|ISOWEEK|MONTH|QUARTER|YEAR|ISOYEAR"
PART_TIME: Final = "MICROSECOND|MILLISECOND|SECOND|MINUTE|HOUR"
AMOUNTS: Final = "{i:1|0|-1|40|1000000|-1000000|9223372036854775807|-9223372036854775808|3000000000}"
JSONS: Final = (
    '{s:\'{"a": {"b" : [1, "x", null, 1.50, 1e5]}, "c d": "y"}\'|\'[1,"b",[2]]\'|\'"x"\'|\'null\'|\'1\'|\'1.50\'|'
    "'nonsense'|''|'{\"a\":null}'|'{\"a\":\"q\\\\\"\\\\u00e5\"}'|'{\"a\":1,\"a\":2}'|'[true,false]'|'{\"a\":12345678901234567890}'|"
    "'{\"a\":1e400}'|' {\"a\": 1.0}'|'{\"a\":-0}'|'{\"a\":[]}'|'{\"a\":[1,[2]]}'|'{\"a\":[\"x\",null]}'|'{\"a\":1} x'|'{a:1}'|"
    "'{\"a\":NaN}'|'{\"b\":1,\"a\":{\"z\":1,\"y\":2}}'|'tru'|'01'|'[1,2,]'}"
)
PATHS: Final = "'$'|'$.a'|'$.a.b'|'$[0]'|'$.a.b[1]'|'$.\"c d\"'|'$.a[0]'|'$.a.b[3]'|'$.a.b[4]'"
REGEXES: Final = (
    "r'a'|r'(a)(?:b)'|r''|r'^.'|r'(z)|a'|r'[^a]'|r'\\w+'|r'(?i)A'|r'(b*)'|r'a?'|r'('|r'(a)(b)'|r'\\d'|r'.$'"
)
NUMBERS_AS_TEXT: Final = (
    "'1'|'-1'|' 1 '|'+5'|'1.5'|'1e3'|'0x1F'|'-0x1f'|'1_000'|''|' '|'a'|'1a'|'nan'|'NaN'|'inf'|'-inf'|'+inf'|'infinity'|"
    "'Infinity'|'1e400'|'-1e400'|'1e-400'|'.5'|'5.'|'.'|'e5'|'1e'|'9223372036854775807'|'9223372036854775808'|"
    "'-9223372036854775808'|'0x7fffffffffffffff'|'0x8000000000000000'|'1,000'|'１'|'--1'|'+-1'|'1\\n'|'\\u20031'|"
    "'99999999999999999999999999999.999999999'|'99999999999999999999999999999.9999999995'|'1e28'|'1e29'|"
    "'0.0000000005'|'0.00000000049'|'0x1p3'|'1e+5'|'1E5'|'1d'|'0b1'|'00012'|'-0'|'true'"
)
BOOLS_AS_TEXT: Final = "'true'|'false'|'TRUE'|'False'|'t'|'f'|'1'|'0'|'yes'|'no'|' true '|''|'y'|'on'|'tRuE'"
DATES_AS_TEXT: Final = (
    "'2024-02-29'|'2024-2-9'|'2023-02-29'|'epoch'|'infinity'|'2024/01/01'|' 2024-01-01 '|'2024-01-01 '|'20240101'|"
    "'2024-01'|'0001-01-01'|'0000-01-01'|'9999-12-31'|'10000-01-01'|'24-01-01'|'-2024-01-01'|'2024-01-01 10:00:00'|"
    "'2024-01-01T10:00:00'|'2024-01-01 10:00'|'2024-1-1 1:2:3'|'2024-01-01 10:00:00.5'|'2024-01-01 10:00:00.123456'|"
    "'2024-01-01 10:00:00.1234567'|'2024-01-01 10:00:00+02'|'2024-01-01 10:00:00+02:30'|'2024-01-01 10:00:00 UTC'|"
    "'2024-01-01 10:00:00Z'|'2024-01-01 10:00:00z'|'2024-01-01t10:00:00'|'2024-01-01 10:00:00 Europe/Stockholm'|"
    "'2024-01-01 24:00:00'|'2024-01-01 23:59:60'|'2024-01-01 10'|'2024-01-01 10:00:00.'|'2024-01-01+02'|"
    "'2024-01-01 UTC'|'2024-01-01 10:00:00-0800'|'2024-01-01 10:00:00+2'|'2024-01-01 10:00:00+15:00'|''|'now'|"
    "'2024-01-01 10:00:00 PST'|'9999-12-31 23:59:59-01'|'0001-01-01 00:00:00+01'|'2024-13-01'|'2024-00-01'|"
    "'2024-01-01 10:00:00 +02'|'2024-01-01 10:60:00'|'2024-01-01  10:00:00'|'today'|'2024-01-01 10:00:00 CET'|'2024-01-01 BC'"
)
TIMES_AS_TEXT: Final = (
    "'12:34:56'|'1:2:3'|'12:34'|'24:00:00'|'12:34:56.5'|'12:34:56.123456'|'12:34:56.1234567'|' 12:34:56'|'12:34:60'|"
    "'12:34:56Z'|'12'|''|'noon'|'2024-01-01 12:00:00'|'T12:34:56'|'12:34:56.'|'12:60:00'|'-1:00:00'|'12:34:56 PM'"
)
FORMATS_OF_DATES: Final = "'%Y-%m-%d'|'%F'|'%d/%m/%y'|'%b %d %Y'|'%A %a %B'|'%j'|'%%'|''|'x'"
FORMATS_OF_TIMES: Final = f"{FORMATS_OF_DATES}|'%H:%M:%S'|'%T'|'%I %p'|'%R'|'%D'"

TEMPLATES: Final = [
    # Strings and bytes.
    "UPPER({s})", "LOWER({s})", "LENGTH({s})", "LENGTH({b})", "CHAR_LENGTH({s})", "CHARACTER_LENGTH({s})",
    "BYTE_LENGTH({s})", "BYTE_LENGTH({b})", "OCTET_LENGTH({s})", "REVERSE({s})", "REVERSE({b})", "ASCII({s})", "UNICODE({s})",
    "STARTS_WITH({s}, {s})", "ENDS_WITH({s}, {s})", "STARTS_WITH({b}, {b})", "ENDS_WITH({b}, {b})",
    "STRPOS({s}, {s})", "INSTR({s}, {s})", "TRIM({s})", "LTRIM({s})", "RTRIM({s})",
    "TRIM({s}, {s:'a'|''|'ab'|' '|'é'|'\\u0301'})", "LTRIM({s}, {s:'a'|''|'cba'})", "RTRIM({s}, {s:'a'|''|'cb'})",
    "LPAD({s}, {i:5|0|-1|1|9}{=|, 'xy'|, ''})", "RPAD({s}, {i:5|0|-1|1|9}{=|, 'xy'|, ''})", "LPAD({s}, {=5|0|-1})",
    "LEFT({s}, {i})", "RIGHT({s}, {i})", "LEFT({b}, {i:1|0|-1|9})", "RIGHT({b}, {i:1|0|-1|9})",
    "SUBSTR({s}, {i})", "SUBSTR({s}, {i}, {i})", "SUBSTR({b}, {i:1|0|-1|2|-8|7|64})", "SUBSTR({b}, {i:1|0|-1|2|-8|7}, {i:1|0|-1|2|64})", "SUBSTRING({s}, {i}, {i})",
    "SPLIT({s})", "SPLIT({s}, {s:','|''|'a'|'b,'})", "SPLIT({b}, {b:b','|b''})", "CONCAT({s}, {s})", "CONCAT({b}, {b})",
    "CONCAT({s}, {s}, {s})", "REPEAT({s}, {=2|0|-1|1})", "REPEAT({b}, {=2|0})", "REPLACE({s}, {s}, {s:'z'|''|'aa'})", "REPLACE({s}, '', {=CAST(NULL AS STRING)})",
    "TRANSLATE({s}, {s:'ab'|''|'aa'|'abc'}, {s:'xy'|''|'x'|'xyzw'})", "NORMALIZE({s})", "NORMALIZE({s}, {=NFC|NFKC|NFD|NFKD})",
    "EDIT_DISTANCE({s}, {s})", "CHR({i:65|-1|128512|1114111|1114112|55296|233|10})",
    "REGEXP_CONTAINS({s}, {=" + REGEXES + "})", "REGEXP_EXTRACT({s}, {=" + REGEXES + "})",
    "REGEXP_SUBSTR({s}, {=" + REGEXES + "})", "REGEXP_EXTRACT_ALL({s}, {=" + REGEXES + "})",
    "REGEXP_REPLACE({s}, {=" + REGEXES + "}, {s:'z'|''|r'\\0\\0'|r'\\1'|r'\\2'|r'\\'|r'\\x'|r'\\\\'})",
    "REGEXP_CONTAINS({s:'a\\nb'|'\\r\\n'}, {=r'a.b'|r'^b'|r'(?m)^b'|r'a$'|r'(?s)a.b'|r'\\s'|r'\\pL'})",
    "TO_HEX({b})", "FROM_HEX({s:'6162'|''|'616'|'zz'|'AbcD'|' 61'|'0x61'})", "TO_BASE64({b})",
    "FROM_BASE64({s:'YWI='|''|'YWI'|'YW'|'Y'|'YWI=='|'YW I='|'YWJj'|'_-8='|'+/8='|'Y=I='|'YWJjZA'|'é'|'YQ=='|'YR=='|'YQ==YQ=='})",
    "MD5({s})", "SHA1({s})", "SHA256({s})", "MD5({b})", "SHA1({b})", "SHA256({b})",
    "SAFE_CONVERT_BYTES_TO_STRING({b:b'abc'|b''|b'a\\xffz\\xe2\\x82q'|b'\\xf0\\x9f\\x98\\x80\\xf0\\x9f'|b'\\xed\\xa0\\x80'|b'a\\x00b'})",
    "SAFE.SUBSTR({s}, {i}, {i})", "SAFE.LEFT({s}, {i})", "SAFE.FROM_BASE64({s:'YWI='|'Y'|'YWI'})", "SAFE.FROM_HEX({s:'6162'|'zz'})",
    "SAFE.CHR({i:65|-1|1114112})", "SAFE.LPAD({s}, {i:5|-1})",
    # JSON.
    "JSON_VALUE(" + JSONS + ")", "JSON_VALUE(" + JSONS + ", {=" + PATHS + "})", "JSON_QUERY(" + JSONS + ")",
    "JSON_QUERY(" + JSONS + ", {=" + PATHS + "})", "JSON_EXTRACT(" + JSONS + ", {=" + PATHS + "})", "JSON_EXTRACT(" + JSONS + ")",
    "JSON_EXTRACT_SCALAR(" + JSONS + ", {=" + PATHS + "|\"$['c d']\"})", "JSON_QUERY_ARRAY(" + JSONS + ", {=" + PATHS + "})",
    "JSON_VALUE_ARRAY(" + JSONS + ", {=" + PATHS + "})", "JSON_EXTRACT_ARRAY(" + JSONS + ", {=" + PATHS + "})",
    "JSON_EXTRACT_STRING_ARRAY(" + JSONS + ", {=" + PATHS + "})", "JSON_VALUE_ARRAY(" + JSONS + ")",
    "JSON_QUERY_ARRAY(" + JSONS + ")", "PARSE_JSON(" + JSONS + ")", "TO_JSON_STRING(PARSE_JSON(" + JSONS + "))",
    "SAFE.PARSE_JSON(" + JSONS + ")",
    "JSON_VALUE({j})", "JSON_VALUE({j}, {='$.a'|'$.b[1]'|'$.b'|'$'})", "JSON_QUERY({j})", "JSON_QUERY({j}, {='$.a'|'$.b[1]'|'$.b'|'$'})",
    "JSON_EXTRACT({j}, {='$.a'|'$.b[1]'|'$.b'|'$'})", "JSON_QUERY_ARRAY({j}, {='$.b'|'$'})", "JSON_VALUE_ARRAY({j}, {='$.b'|'$'})",
    "JSON_TYPE({j})", "BOOL({j})", "INT64({j})", "FLOAT64({j})", "STRING({j})", "LAX_STRING({j})", "TO_JSON_STRING({j})",
    "SAFE.BOOL({j})", "SAFE.INT64({j})", "SAFE.FLOAT64({j})", "SAFE.STRING({j})",
    "TO_JSON({s})", "TO_JSON_STRING({s})", "TO_JSON({i})", "TO_JSON_STRING({i})", "TO_JSON({o})", "TO_JSON({d})", "TO_JSON_STRING({d})",
    "TO_JSON_STRING({as})", "TO_JSON_STRING({ai})", "TO_JSON({as})", "TO_JSON_STRING({o})",
    "TO_JSON_STRING(STRUCT({s} AS a, {i} AS b, {as} AS c))", "TO_JSON(STRUCT({s} AS b, {i} AS a))",
    "({j}).a", "({j}).b[1]", "({j})[{='a'|'b'}]", "({j})[{i:0|1|-1|5}]", "TO_JSON_STRING({j:JSON '{\"b\":1,\"a\":{\"d\":[1.0,1e2],\"c\":\"\\u00e9\\\\/\"}}'})",
    # Dates and times.
    "DATE({i:2024|1|9999|0|10000|-1}, {i:2|12|13|0}, {i:29|1|30|31|0})", "DATE({t})", "DATE({t:TIMESTAMP '2024-02-29 12:34:56.789012+00'|TIMESTAMP '2024-03-31 01:30:00+00'|TIMESTAMP '1969-12-31 23:59:59.5+00'}, {=" + ZONES + "})", "DATE({e})", "DATE({d})",
    "TIMESTAMP({s:" + DATES_AS_TEXT + "})", "TIMESTAMP({d})", "TIMESTAMP({e})", "TIMESTAMP({d:DATE '2024-02-29'|DATE '2024-03-31'|DATE '1970-01-01'}, {=" + ZONES + "})",
    "TIMESTAMP({e:DATETIME '2024-02-29 12:34:56.789012'|DATETIME '2024-10-27 02:30:00'|DATETIME '1969-12-31 23:59:59.5'}, {=" + ZONES + "})", "TIMESTAMP({t})", "DATETIME({t})", "DATETIME({t:TIMESTAMP '2024-02-29 12:34:56.789012+00'|TIMESTAMP '2024-03-31 01:30:00+00'|TIMESTAMP '1969-12-31 23:59:59.5+00'}, {=" + ZONES + "})", "DATETIME({d})",
    "DATETIME({d}, {c})", "DATETIME({i:2024|0|10000}, {i:2|13}, {i:29|30}, {i:1|24|-1}, {i:2|60}, {i:3|60|-1})",
    "TIME({i:1|24|-1}, {i:2|60}, {i:3|60|59})", "STRING({d})", "STRING({j})",
    *[f"{name}({{{hole}}}, INTERVAL {AMOUNTS} {{={parts}}})"
      for name, hole, parts in [
          ("DATE_ADD", "d", "DAY|WEEK|MONTH|QUARTER|YEAR|HOUR"), ("DATE_SUB", "d", "DAY|WEEK|MONTH|QUARTER|YEAR"),
          ("TIMESTAMP_ADD", "t", "MICROSECOND|MILLISECOND|SECOND|MINUTE|HOUR|DAY|WEEK|MONTH|YEAR"),
          ("TIMESTAMP_SUB", "t", "MICROSECOND|MILLISECOND|SECOND|MINUTE|HOUR|DAY|WEEK|MONTH"),
          ("DATETIME_ADD", "e", "MICROSECOND|MILLISECOND|SECOND|MINUTE|HOUR|DAY|WEEK|MONTH|QUARTER|YEAR"),
          ("DATETIME_SUB", "e", "MICROSECOND|MILLISECOND|SECOND|MINUTE|HOUR|DAY|WEEK|MONTH|QUARTER|YEAR"),
          ("TIME_ADD", "c", "MICROSECOND|MILLISECOND|SECOND|MINUTE|HOUR|DAY"),
          ("TIME_SUB", "c", "MICROSECOND|MILLISECOND|SECOND|MINUTE|HOUR|DAY"),
      ]],
    *[f"{{{hole}}} {sign} INTERVAL {{i:1|-1|40|3000000000}} {{={parts}}}"
      for hole, parts in [("d", "DAY|WEEK|MONTH|YEAR|HOUR|SECOND"), ("t", "SECOND|HOUR|DAY|WEEK|MONTH"), ("e", "SECOND|HOUR|DAY|MONTH|YEAR")]
      for sign in "+-"],
    "{d} + {i:1|0|-1|9223372036854775807|5000000}", "{d} - {i:1|0|-1|9223372036854775807|5000000}", "SAFE.DATE_ADD({d}, INTERVAL {i:1|5000000} DAY)",
    "SAFE.TIMESTAMP_ADD({t}, INTERVAL {i:1|500000000} HOUR)",
    "DATE_DIFF({d}, {d}, {=" + PART_DATE + "|HOUR})", "DATETIME_DIFF({e}, {e}, {=" + PART_DATE + "|" + PART_TIME + "})",
    "TIMESTAMP_DIFF({t}, {t}, {=" + PART_TIME + "|DAY|WEEK|MONTH})",
    "DATE_TRUNC({d}, {=" + PART_DATE + "|HOUR})", "DATETIME_TRUNC({e}, {=" + PART_DATE + "|" + PART_TIME + "})",
    "TIMESTAMP_TRUNC({t}, {=" + PART_DATE + "|" + PART_TIME + "})", "TIMESTAMP_TRUNC({t:TIMESTAMP '2024-02-29 12:34:56.789012+00'|TIMESTAMP '2024-03-31 01:30:00+00'|TIMESTAMP '1969-12-31 23:59:59.5+00'}, {=DAY|HOUR|WEEK|MONTH|ISOWEEK}, {=" + ZONES + "})",
    "LAST_DAY({d})", "LAST_DAY({d}, {=MONTH|YEAR|QUARTER|WEEK|WEEK(MONDAY)|ISOWEEK|ISOYEAR})", "LAST_DAY({e})", "UNIX_DATE({d})",
    "DATE_FROM_UNIX_DATE({i:0|1|-719162|2932896|-719163|2932897|9223372036854775807})",
    "TIMESTAMP_MICROS({i:0|1|-1|253402300799999999|253402300800000000|-62135596800000000|-62135596800000001|9223372036854775807|-9223372036854775808})",
    "TIMESTAMP_MILLIS({i:0|1|-1|253402300799999|253402300800000|-62135596800000|-62135596800001|9223372036854775807})",
    "TIMESTAMP_SECONDS({i:0|1|-1|253402300799|253402300800|-62135596800|-62135596801|9223372036854775807|-9223372036854775808})",
    "UNIX_MICROS({t})", "UNIX_MILLIS({t})", "UNIX_SECONDS({t})",
    "FORMAT_DATE({=" + FORMATS_OF_DATES + "}, {d})", "FORMAT_DATETIME({=" + FORMATS_OF_TIMES + "}, {e})",
    "FORMAT_TIMESTAMP({=" + FORMATS_OF_TIMES + "}, {t})", "FORMAT_TIMESTAMP({='%F %T'|'%H %j'}, {t:TIMESTAMP '2024-02-29 12:34:56.789012+00'|TIMESTAMP '2024-03-31 01:30:00+00'|TIMESTAMP '1969-12-31 23:59:59.5+00'}, {=" + ZONES + "})",
    "PARSE_DATE({='%Y-%m-%d'|'%F'}, {s:" + DATES_AS_TEXT + "})", "PARSE_DATE('%d/%m/%y', {s:'01/02/24'|'1/2/70'|'31/02/24'|'01/02/2024'|'01/02/68'})",
    "PARSE_DATE('%b %d %Y', {s:'Feb 29 2024'|'feb 1 2024'|'February 1 2024'|'Foo 1 2024'})", "PARSE_DATE('%Y%m%d', {s:'20240229'|'2024229'|'20240230'})",
    "PARSE_DATETIME({='%Y-%m-%d %H:%M:%S'|'%F %T'}, {s:" + DATES_AS_TEXT + "})",
    "PARSE_TIMESTAMP({='%Y-%m-%d %H:%M:%S'|'%F %T'|'%FT%T'}, {s:" + DATES_AS_TEXT + "})",
    "PARSE_TIMESTAMP('%F %H:%M', {s:'2024-01-01 10:00'|'2024-03-31 02:30'|'2024-10-27 02:30'}, {=" + ZONES + "})",
    "EXTRACT({=" + PART_DATE + "|DAYOFWEEK|DAYOFYEAR} FROM {d})", "EXTRACT({=" + PART_DATE + "|DAYOFWEEK|DAYOFYEAR|" + PART_TIME + "|DATE|TIME} FROM {e})",
    "EXTRACT({=" + PART_DATE + "|DAYOFWEEK|DAYOFYEAR|" + PART_TIME + "|DATE} FROM {t})", "EXTRACT({=" + PART_TIME + "} FROM {c})",
    "EXTRACT({=HOUR|DATE|DAY} FROM {t:TIMESTAMP '2024-02-29 12:34:56.789012+00'|TIMESTAMP '2024-03-31 01:30:00+00'|TIMESTAMP '1969-12-31 23:59:59.5+00'} AT TIME ZONE {=" + ZONES + "})",
    "GENERATE_DATE_ARRAY({=DATE '2024-01-30'|DATE '2024-03-01'}, {=DATE '2024-06-01'|DATE '2024-02-01'}{=|, INTERVAL 7 DAY|, INTERVAL 1 MONTH|, INTERVAL -1 DAY|, INTERVAL 1 WEEK})",
    "GENERATE_TIMESTAMP_ARRAY({=TIMESTAMP '2024-01-31 00:00:00+00'|TIMESTAMP '2024-03-01 00:00:00+00'}, {=TIMESTAMP '2024-06-01 00:00:00+00'}, INTERVAL {=1 DAY|7 DAY|1 MONTH|100 HOUR|-1 DAY|1 WEEK})",
    # Numbers.
    *[f"{name}({{{hole}}})" for name in ("ABS", "SIGN", "ROUND", "TRUNC", "CEIL", "CEILING", "FLOOR", "EXP", "SQRT", "LN", "LOG10", "CBRT",
                                         "SAFE_NEGATE") for hole in "ifn"],
    *[f"{name}({{f}})" for name in ("SIN", "COS", "TAN", "ASIN", "ACOS", "ATAN", "SINH", "COSH", "TANH", "ASINH", "ACOSH", "ATANH", "COT", "IS_NAN", "IS_INF")],
    *[f"SAFE.{name}({{f}})" for name in ("SQRT", "LN", "EXP", "ACOS")],
    *[f"{name}({{i:1|0|-1}})" for name in ("SIN", "ACOS", "ATANH", "COT", "IS_NAN", "IS_INF")],
    *[f"{name}({{n:NUMERIC '1'|NUMERIC '0.5'}})" for name in ("SIN", "ACOS", "COT")],
    "ROUND({f}, {=0|1|2|-1|20|-20})", "ROUND({i}, {=1|-1})", "TRUNC({f}, {=1|-1})", "ROUND({n}, {=1|-1})", "ROUND({f}, {i:1|-1|2})",
    "ATAN2({f}, {f})", "POW({f}, {f})", "POWER({f}, {f})", "POW({i}, {i})", "POW({n}, {n})", "MOD({i}, {i})", "MOD({n}, {n})", "DIV({i}, {i})", "DIV({n}, {n})",
    *[f"{name}({{{h}}}, {{{h}}})" for name in ("SAFE_ADD", "SAFE_SUBTRACT", "SAFE_MULTIPLY", "SAFE_DIVIDE") for h in "ifn"],
    *[f"{{{h}}} {op} {{{h}}}" for h in "ifn" for op in "+-*/"], "{i} * {f}", "{i} + {n}", "{i} / {n}", "{n} * {f}", "{i} / {f}",
    *[f"{{i}} {op} {{i}}" for op in ("&", "|", "^")], *[f"{{i}} {op} {{i:1|0|63|64|65|-1}}" for op in ("<<", ">>")], "~{i}", "-{i}", "-{f}", "-{n}", "BIT_COUNT({i})",
    *[f"{name}({{{h}}}, {{{h}}})" for name in ("GREATEST", "LEAST") for h in ("i", "f", "n", "s", "d", "t", "o")], "GREATEST({f}, {f}, {f})", "LEAST({i}, {f})",
    # Conditions.
    "IF({o}, {i}, {i})", "IFNULL({s}, {s})", "COALESCE({i}, {i}, {i})", "NULLIF({f}, {f})", "NULLIF({s}, {s})", "NULLIF({i}, {i})", "IF({o}, {i}, {f})",
    "CASE WHEN {o} THEN {s} ELSE 'n' END", "CASE {i} WHEN {i} THEN 'y' WHEN 2 THEN 'z' END", "CASE {f} WHEN {f} THEN 'y' ELSE 'n' END",
    "{o} AND {o}", "{o} OR {o}", "NOT {o}", "{o} IS TRUE", "{o} IS NOT FALSE", "{s} IS NULL",
    *[f"{{{h}}} {op} {{{h}}}" for h in ("f", "n") for op in ("=", "!=", "<", "<=", ">", ">=")], *[f"{{{h}}} {op} {{{h}}}" for h in ("i", "s", "b", "o") for op in ("=", "<")],
    "{d} < {d}", "{t} >= {t}", "{e} = {e}", "{c} < {c}", "{i} = {f}", "{i} < {n}", "{n} = {f}", "{f} < {n}",
    "{n} * {=-4602556216175107798.0|-46025562161751.12345678|-(46025562161751.12345678)|- -0.5}",
    "{n} = {=9e47|-9e47}", "COALESCE({n}, {=9e47|1e28})", "IF(FALSE, {n} = 9e47, TRUE)", "SAFE_CAST({=9e47|-9e47} AS NUMERIC)",
    "{f} IS DISTINCT FROM {f}", "{i} IS DISTINCT FROM {i}", "{s} IS NOT DISTINCT FROM {s}",
    "({i:1|2}, {s:'a'|'b'}) = ({i:1|2}, {s:'a'|'b'})", "({i:1|2}, {s:'a'|'b'}) != ({i:1|2}, {s:'a'|'b'})", "({i:1|2}, {f}) = ({i:1|2}, {f})",
    "STRUCT({i:1|2} AS a, {s:'a'|'b'} AS b) = STRUCT({i:1|2} AS a, {s:'a'|'b'} AS b)", "({i:1|2}, {s:'a'}) IN (({i:1|2}, 'a'), (3, 'c'))",
    "({i:1|2}, {s:'a'}) IS DISTINCT FROM ({i:1|2}, {s:'a'|'b'})",
    "{i} BETWEEN {i} AND {i}", "{f} BETWEEN {f} AND {f}", "{f} NOT BETWEEN {f} AND {f}", "{i} IN ({i}, {i})", "{f} IN ({f}, 1.5)", "{s} NOT IN ({s}, 'abc')", "{i} NOT IN ({i}, {i})",
    "{i} IN UNNEST({ai})", "{s} IN UNNEST({as})", "{i} NOT IN UNNEST({ai})",
    "{s} LIKE {s:'a%'|'%'|''|'_b_'|'a\\\\%'|'%\\\\_%'|'\\\\'|'%\\n%'|'\\\\a'|'A%'|'_'}", "{s} NOT LIKE {s:'a%'|'%'|''}", "{s} LIKE ANY ('a%', {s:'a%'|'%'|''|'_b_'|'abc'})", "{s} LIKE ALL ('a%', {s:'a%'|'%'|''|'_b_'|'abc'})", "{s} NOT LIKE ANY ('a%', {s:'a%'|'%'|''|'_b_'|'abc'})", "{s} NOT LIKE ALL ('a%', {s:'a%'|'%'|''|'_b_'|'abc'})",
    "{s} || {s}", "{b} || {b}", "{as} || {as}",
    # Arrays.
    "ARRAY_LENGTH({as})", "ARRAY_LENGTH({ai})", "ARRAY_CONCAT({ai}, {ai})", "ARRAY_REVERSE({as})", "ARRAY_FIRST({ai})", "ARRAY_LAST({as})", "SAFE.ARRAY_FIRST({ai})",
    "ARRAY_SLICE({ai}, {=0|1|5|-1}, {=1|0|9|-1})", "ARRAY_TO_STRING({as}, {s:','|''})", "ARRAY_TO_STRING({as}, {s:','|''}, {s:'n'|''})",
    *[f"{{ai}}[{mode}({{i:0|1|-1|3|9223372036854775807}})]" for mode in ("OFFSET", "ORDINAL", "SAFE_OFFSET", "SAFE_ORDINAL")], "{as}[{i:0|1|9}]",
    "GENERATE_ARRAY({=1|5|0}, {=3|1|-2}{=|, 2|, -1|, -2})", "GENERATE_ARRAY({=1.0|0}, {=2|0.5}, {=0.5|0.1})", "GENERATE_ARRAY(1, 5, {=0|NULL})",
    "ARRAY(SELECT x FROM UNNEST({ai}) AS x WHERE x > 1 ORDER BY x DESC)", "(SELECT COUNT(*) FROM UNNEST({as}))", "(SELECT MAX(x) FROM UNNEST({ai}) AS x)",
    "ARRAY(SELECT o FROM UNNEST({as}) WITH OFFSET AS o ORDER BY o)", "EXISTS(SELECT 1 FROM UNNEST({ai}) AS x WHERE x IS NULL)",
    # Casts.
    *[f"{word}({{s:{texts}}} AS {kind})" for word in ("CAST", "SAFE_CAST") for texts, kind in [
        (NUMBERS_AS_TEXT, "INT64"), (NUMBERS_AS_TEXT, "FLOAT64"), (NUMBERS_AS_TEXT, "NUMERIC"), (BOOLS_AS_TEXT, "BOOL"), (DATES_AS_TEXT, "DATE"),
        (DATES_AS_TEXT, "DATETIME"), (DATES_AS_TEXT, "TIMESTAMP"), (TIMES_AS_TEXT, "TIME"),
    ]],
    *[f"{word}({{{hole}}} AS {kind})" for word in ("CAST", "SAFE_CAST") for hole, kinds in [
        ("i", "BOOL FLOAT64 NUMERIC STRING"), ("f", "INT64 NUMERIC STRING"), ("n", "INT64 FLOAT64 STRING"), ("o", "INT64 STRING"),
        ("d", "DATETIME TIMESTAMP STRING"), ("e", "DATE TIME TIMESTAMP STRING"), ("c", "STRING"), ("t", "DATE DATETIME TIME STRING"), ("s", "BYTES STRING"),
    ] for kind in kinds.split()],
    *[f"{word}({{b:b'abc'|b''|b'\\xff'|b'a\\x00b'|b'\\xc3\\xa9'|b'\\xed\\xa0\\x80'}} AS STRING)" for word in ("CAST", "SAFE_CAST")],
    "CAST({f:0.1|1e15|1e16|1e17|123456789012345680.0|1e-5|1e-4|0.00001234|1e22|100000.0|1e6|3.4028234663852886e38|2.2250738585072014e-308|4.35|1.1} AS STRING)",
    "CAST({f:0.5|1.5|-0.5|-1.5|2.5|0.49999999999999994|9223372036854774784.0|9223372036854775808.0|-9223372036854775808.0|4503599627370497.5} AS INT64)",
    "CAST({f:0.1|1e28|1e29|-1e29|0.0000000005|1.0000000005|123456789.123456789} AS NUMERIC)",
    "CAST({ai} AS ARRAY<FLOAT64>)", "CAST({as} AS ARRAY<BYTES>)",
    # What messages are repaired with.
    "JSON_SET({j}, {='$.a'|'$.b[1]'|'$.c.d'|'$[2]'|'$'}, {i:1|-1})", "JSON_SET({j}, '$.a', {s:'x'|'q\"\\n'})", "JSON_SET({j}, '$.a', {f}, '$.z', {j})",
    "JSON_SET({j}, {='$.q'|'$.a'}, {o}, create_if_missing => {=TRUE|FALSE})", "JSON_SET({j:JSON '{\"a\":null}'|JSON 'null'}, {='$.a.b'|'$.a[2]'|'$[1]'}, {d})",
    "JSON_REMOVE({j}, {='$.a'|'$.b[0]'|'$[0]'|'$.x'|'$.a.b'})", "JSON_REMOVE({j}, '$.b[0]', '$.b[0]')",
    "JSON_STRIP_NULLS({j:JSON '{\"a\":null,\"b\":[null,1,{\"c\":null},[]],\"d\":{\"e\":null}}'|JSON 'null'|JSON '[null]'|JSON '{\"a\":{}}'|JSON '[]'|JSON '1'}{=|, '$.b'|, '$.x'|, '$.a'|, include_arrays => FALSE|, remove_empty => TRUE|, include_arrays => FALSE, remove_empty => TRUE})",
    "JSON_OBJECT('b', {i}, 'a', {s})", "JSON_OBJECT({s:'k'|'å\"'}, {f})", "JSON_OBJECT({as}, {as})", "JSON_OBJECT({as}, {ai})", "JSON_OBJECT()", "JSON_OBJECT('a', {o}, 'a', {d})",
    "JSON_ARRAY({i}, {s}, {f})", "JSON_ARRAY({o}, {d}, {b}, {ai}, {j})", "JSON_ARRAY()", "JSON_ARRAY(STRUCT({i} AS b, {s} AS a), NULL)",
    "JSON_KEYS({j:JSON '{\"b\":{\"c\":1,\"d.e\":{\"f\":1}},\"a\":[{\"x\":1},[{\"y\":1}]],\"\":{\"q\":1}}'|JSON '[{\"a\":1},[{\"b\":1}]]'|JSON '1'}{=|, 1|, 2|, 0|, mode => 'lax'|, mode => 'lax recursive'|, 2, mode => 'lax recursive'})",
    *[f"LAX_{kind}({{j:{texts}}})" for kind in ("BOOL", "INT64", "FLOAT64", "STRING") for texts in [
        "JSON '1'|JSON '0'|JSON '-0.0'|JSON '1.5'|JSON '-2.5'|JSON '0.5'|JSON '1e30'|JSON '9223372036854775808'|JSON '12345678901234567890'|JSON '1e15'|JSON '1e16'|JSON 'true'|JSON 'false'|JSON 'null'|JSON '[1]'|JSON '{}'",
        "JSON '\"TRUE\"'|JSON '\" true\"'|JSON '\"1\"'|JSON '\" 1.5 \"'|JSON '\"1e2\"'|JSON '\"0x1F\"'|JSON '\"abc\"'|JSON '\"\"'|JSON '\"9223372036854775807.5\"'|JSON '\"nan\"'|JSON '\"-Infinity\"'|JSON '\"1e400\"'|JSON '\"1_000\"'|JSON '\".5\"'|JSON '\"-0\"'|JSON '\"1e-5000\"'",
    ]],
    "INITCAP({s})", "INITCAP({s:'hello wORLD-foo_bar/x'|'a1b c\\u2003d'|'o\\'neil [x] =n `v'|'ǆx ßa ﬁx İI'|'aXbXc dE'}{=|, ''|, 'X'|, 'x '})", "INITCAP({s}, {s:'b'|'a'})",
    "TO_CODE_POINTS({s})", "TO_CODE_POINTS({b})", "CODE_POINTS_TO_STRING({ai:[65, 229]|[128512]|[-1]|[55296]|[1114112]|[0]|[65, NULL]|ARRAY<INT64>[]})", "SAFE.CODE_POINTS_TO_STRING({ai:[65]|[-1]})",
    "SHA512({s})", "SHA512({b})", "FARM_FINGERPRINT({s})", "FARM_FINGERPRINT({b})", "FARM_FINGERPRINT(REPEAT({s:'abcdefg'}, {=1|3|5|9|10|20|40}))",
    "FORMAT('{=%d|%i|%5d|%-5d|%05d|%+d|% d|%.3d|%08.3d|%.0d}', {i})", "FORMAT('{=%f|%F|%e|%E|%g|%G|%.2f|%10.3f|%010.1f|%+.0f|%-12g|% .3e}', {f})", "FORMAT('{=%s|%5s|%-5s|%.2s}|', {s})",
    *[f"FORMAT('{{=%t|%T}}', {{{hole}}})" for hole in "sifodt"], "FORMAT('{=%10t|%-10T|%.3t}|', {s})", "FORMAT('%s=%d, %t %% %T', {s}, {i}, {f}, {d})", "FORMAT('{=100%%|it is|}')",
]  # fmt: skip

# Relations of one column ``x`` beside a number ``n``, for what goes over rows.
RELATIONS: Final = {
    "i": ["3,1,NULL,1,2", "", "NULL", "9223372036854775807,1", "-5"],
    "f": [
        "1.5,NULL,-2.5,1.5", "", "CAST('nan' AS FLOAT64),1.0,NULL", "CAST('inf' AS FLOAT64),CAST('-inf' AS FLOAT64),0.0",
        "-0.0,0.0", "1.5", "1e308,1e308", "CAST('nan' AS FLOAT64)", "CAST('inf' AS FLOAT64),1.0",
    ],
    "n": ["NUMERIC '1.5',NULL,NUMERIC '-2.5',NUMERIC '1'", "", "NUMERIC '99999999999999999999999999999',NUMERIC '1'", "NUMERIC '1',NUMERIC '2',NUMERIC '2'"],
    "s": ["'b',NULL,'a','B','','b'", "", "'é','z','e\\u0301','\\U0001F600','\\uffee'", "NULL"],
    "b": ["b'b',b'a',NULL,b'\\xff',b''", ""],
    "o": ["TRUE,FALSE,NULL", "", "TRUE", "NULL"],
    "d": ["DATE '2024-01-02',NULL,DATE '2023-01-01'", ""],
    "t": ["TIMESTAMP '2024-01-02 00:00:00+00',NULL,TIMESTAMP '2023-01-01 00:00:00+00'", ""],
}  # fmt: skip
AGGREGATES: Final = {
    "ifnsbodt": ["COUNT(x)", "COUNT(*)", "COUNT(DISTINCT x)", "MIN(x)", "MAX(x)", "ARRAY_AGG(x IGNORE NULLS ORDER BY n)", "ARRAY_AGG(x IGNORE NULLS ORDER BY x, n)",
                 "ARRAY_AGG(x ORDER BY n)", "ARRAY_AGG(DISTINCT x IGNORE NULLS ORDER BY x)", "ARRAY_AGG(x IGNORE NULLS ORDER BY x DESC, n LIMIT 2)",
                 "COUNTIF(x IS NULL)", "APPROX_COUNT_DISTINCT(x)", "ARRAY_AGG(STRUCT(x) ORDER BY x, n)", "ARRAY_AGG(n ORDER BY x NULLS LAST, n)", "ARRAY_AGG(n ORDER BY x DESC NULLS FIRST, n)"],
    "ifn": ["SUM(x)", "AVG(x)", "SUM(DISTINCT x)", "AVG(DISTINCT x)", "STDDEV(x)", "STDDEV_SAMP(x)", "STDDEV_POP(x)", "VARIANCE(x)", "VAR_SAMP(x)", "VAR_POP(x)",
            "CORR(x, n)", "COVAR_POP(x, n)", "COVAR_SAMP(n, x)", "CORR(x, x)", "SUM(x) OVER (ORDER BY n)", "AVG(x) OVER (ORDER BY n ROWS 1 PRECEDING)"],
    "i": ["BIT_AND(x)", "BIT_OR(x)", "BIT_XOR(x)", "BIT_XOR(DISTINCT x)"],
    "o": ["LOGICAL_AND(x)", "LOGICAL_OR(x)", "COUNTIF(x)"],
    "sb": ["STRING_AGG(x ORDER BY n)", "STRING_AGG(DISTINCT x ORDER BY x)"],
    "s": ["STRING_AGG(x, '-' ORDER BY x DESC, n)", "STRING_AGG(x, '' ORDER BY n)", "STRING_AGG(x, ',' ORDER BY n LIMIT 2)"],
}  # fmt: skip
WINDOWS: Final = {
    "ifnsdt": ["RANK() OVER (ORDER BY x)", "DENSE_RANK() OVER (ORDER BY x DESC)", "ROW_NUMBER() OVER (ORDER BY x, n)", "PERCENT_RANK() OVER (ORDER BY x)", "CUME_DIST() OVER (ORDER BY x)",
               "NTILE(2) OVER (ORDER BY x, n)", "LAG(x) OVER (ORDER BY n)", "LEAD(x, 2) OVER (ORDER BY n)", "LAG(n, 1, -1) OVER (ORDER BY x, n)", "FIRST_VALUE(x) OVER (ORDER BY n)", "LAST_VALUE(x IGNORE NULLS) OVER (ORDER BY n)",
               "FIRST_VALUE(x IGNORE NULLS) OVER (ORDER BY n ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING)", "NTH_VALUE(x, 2) OVER (ORDER BY n)", "NTH_VALUE(x, 2 IGNORE NULLS) OVER (ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)",
               "COUNT(*) OVER (PARTITION BY x)", "MAX(x) OVER (ORDER BY n ROWS 1 PRECEDING)", "COUNT(x) OVER (ORDER BY x)", "COUNT(DISTINCT x) OVER ()", "LAG(x, 0) OVER (ORDER BY n)", "NTILE(9) OVER (ORDER BY x, n)"],
    "if": ["SUM(n) OVER (ORDER BY x RANGE BETWEEN 1 PRECEDING AND CURRENT ROW)", "COUNT(*) OVER (ORDER BY x DESC RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING)"],
}  # fmt: skip
QUERIES: Final = {
    "ifsb": ["SELECT n FROM {r} ORDER BY x, n", "SELECT n FROM {r} ORDER BY x DESC, n", "SELECT n FROM {r} ORDER BY x NULLS LAST, n", "SELECT n FROM {r} ORDER BY x DESC NULLS FIRST, n",
                 "SELECT COUNT(*) FROM {r} GROUP BY x ORDER BY x", "SELECT COUNT(*) FROM (SELECT DISTINCT x FROM {r})", "SELECT COUNT(*) FROM {r} AS a JOIN {r} AS b ON a.x = b.x",
                 "SELECT n FROM {r} WHERE x IN (SELECT x FROM {r} WHERE n > 1) ORDER BY n", "SELECT n FROM {r} WHERE x NOT IN (SELECT x FROM {r} WHERE n > 2) ORDER BY n",
                 "SELECT COUNT(*) FROM (SELECT x FROM {r} UNION DISTINCT SELECT x FROM {r})", "SELECT COUNT(*) FROM (SELECT x FROM {r} INTERSECT DISTINCT SELECT x FROM {r} WHERE n > 1)",
                 "SELECT COUNT(*) FROM (SELECT x FROM {r} EXCEPT DISTINCT SELECT x FROM {r} WHERE n > 1)", "SELECT n FROM {r} QUALIFY ROW_NUMBER() OVER (PARTITION BY x ORDER BY n) = 1 ORDER BY n",
                 "SELECT a.n, b.n FROM {r} AS a LEFT JOIN {r} AS b ON a.x = b.x AND b.n > 1 ORDER BY 1, 2"],
}  # fmt: skip

_HOLE: Final = re.compile(r"\{(=|[a-z]{1,2})(?::?((?:[^{}'\"]|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")*))?\}")


@dataclass(frozen=True)
class Case:
    """An expression of a template; ``columns`` holds the values that may stand in columns, of types ``kinds``."""

    template: str
    literal: str
    body: str
    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    fails: bool = False

    @property
    def by_columns(self) -> str:
        """The query that reads the values from columns."""
        row = ", ".join(f"{value} AS c{place}" for place, value in enumerate(self.columns))
        return f"SELECT {self.body} FROM (SELECT {row})"


def cases(seed: int | None = None, per_template: int = 2) -> Iterator[Case]:
    """Yield the grid; with a ``seed`` only combinations at random, of values that may be random too."""
    seen = set()
    for number, template in enumerate(TEMPLATES):
        holes = [(match[1], _choices(match, seed, number)) for match in _HOLE.finditer(template)]
        chance = random.Random(f"{seed}-{template}")
        picks: list[tuple[str, ...]] = []
        if seed is None:
            first = tuple(values[0] for _, values in holes)
            picks.append(first)
            for place, (_, values) in enumerate(holes):
                picks += [(*first[:place], value, *first[place + 1 :]) for value in values[1:]]
        wanted = per_template if len(holes) > 1 or seed is not None else 0
        picks += [tuple(chance.choice(values) for _, values in holes) for _ in range(wanted)]
        for pick in picks:
            case = _fill(template, holes, pick)
            if case.literal not in seen:
                seen.add(case.literal)
                yield case


def row_queries(seed: int | None = None) -> Iterator[str]:
    """Yield the queries over rows: aggregates, windows, ordering with NULLs, sets and joins.

    With a ``seed`` they are over two relations of each type whose values are at random.
    """
    for kind, relations in RELATIONS.items():
        chosen = relations if seed is None else [_random_values(kind, f"{seed}-{kind}-{n}") for n in range(2)]
        for values in chosen:
            rows = _relation(kind, values)
            for kinds, calls in AGGREGATES.items():
                for call in calls if kind in kinds else []:
                    yield f"SELECT {call} FROM {rows}" + (" ORDER BY n" if " OVER " in call else "")
            for kinds, calls in WINDOWS.items():
                for call in calls if kind in kinds else []:
                    yield f"SELECT n, {call} FROM {rows} ORDER BY n"
            for kinds, queries in QUERIES.items():
                for query in queries if kind in kinds else []:
                    yield query.replace("{r}", rows)


def _random_values(kind: str, seed: str) -> str:
    chance = random.Random(seed)
    pool = [*VALUES[kind], *(_random_value(kind, chance) for _ in range(6)), "NULL"]
    return ",".join(chance.choices(pool, k=chance.randint(1, 6)))


def _relation(kind: str, values: str) -> str:
    if not values:
        return f"(SELECT 1 AS n, CAST(NULL AS {TYPES[kind]}) AS x FROM UNNEST(ARRAY<INT64>[]))"
    parts = [
        f"SELECT {n} AS n, CAST({value} AS {TYPES[kind]}) AS x"
        for n, value in enumerate(_split(values, ","), start=1)
    ]
    return f"({' UNION ALL '.join(parts)})"


def _choices(match: re.Match[str], seed: int | None, number: int) -> list[str]:
    kind, listed = match[1], match[2]
    values = _split(listed, "|") if listed or kind == "=" else list(VALUES[kind])
    if kind == "=":
        return values
    if seed is not None and not listed:
        values = values + [_random_value(kind, random.Random(f"{seed}-{number}-{n}")) for n in range(6)]
    return [*values, f"CAST(NULL AS {TYPES[kind]})"]


def _split(text: str, sign: str) -> list[str]:
    parts, start, quote, at = [], 0, "", 0
    while at < len(text):
        char = text[at]
        if quote:
            if char == "\\":
                at += 1
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char == sign:
            parts.append(text[start:at])
            start = at + 1
        at += 1
    return [*parts, text[start:]]


def _fill(template: str, holes: list[tuple[str, list[str]]], pick: tuple[str, ...]) -> Case:
    literals, names, columns, kinds = iter(pick), itertools.count(), [], []
    body_parts, literal_parts, end = [], [], 0
    for (kind, _), match in zip(holes, _HOLE.finditer(template), strict=True):
        value = next(literals)
        for parts in (body_parts, literal_parts):
            parts.append(template[end : match.start()])
        literal_parts.append(value)
        if kind == "=":
            body_parts.append(value)
        else:
            body_parts.append(f"c{next(names)}")
            columns.append(value)
            kinds.append(TYPES[kind])
        end = match.end()
    rest = template[end:]
    return Case(template, "".join(literal_parts) + rest, "".join(body_parts) + rest, tuple(columns), tuple(kinds))


def _random_value(kind: str, chance: random.Random) -> str:  # noqa: C901, PLR0911, PLR0912 - one line a type
    number = chance.choice(
        [chance.randrange(-100, 100), chance.randrange(-(2**63), 2**63), chance.randrange(-(2**32), 2**32)]
    )
    # Before 1900 zones had local times that depend on the version of their table.
    first, last = (1, 10000) if kind == "d" else (1900, 2100)
    moment = f"{chance.randrange(first, last):04d}-{chance.randrange(1, 13):02d}-{chance.randrange(1, 29):02d}"
    clock = f"{chance.randrange(24):02d}:{chance.randrange(60):02d}:{chance.randrange(60):02d}"
    clock += chance.choice(["", f".{chance.randrange(10**6):06d}", ".5"])
    text = "".join(chance.choice("abAB ,%_09é\u00df\u0301\u2003\U0001f600z.-") for _ in range(chance.randrange(8)))
    match kind:
        case "s":
            return f"'{text}'"
        case "b":
            return "b'" + "".join(f"\\x{chance.randrange(256):02x}" for _ in range(chance.randrange(6))) + "'"
        case "i":
            return str(number)
        case "f":
            return chance.choice(
                [
                    repr(chance.uniform(-10, 10)),
                    repr(chance.uniform(-1, 1) * 10.0 ** chance.randrange(-300, 300)),
                    f"{number}.0",
                ]
            )
        case "n":
            return f"NUMERIC '{chance.randrange(-(10 ** chance.randrange(1, 29)), 10**20)}.{chance.randrange(10**9):09d}'"
        case "d":
            return f"DATE '{moment}'"
        case "t":
            return f"TIMESTAMP '{moment} {clock}+00'"
        case "e":
            return f"DATETIME '{moment} {clock}'"
        case "c":
            return f"TIME '{clock}'"
        case "as":
            return f"['{text}', NULL, 'b']"
        case "ai":
            return f"[{number}, 3]"
        case "j":
            return f'JSON \'{{"a": {number % 10**15}, "b": ["{text}"]}}\''
        case _:
            return VALUES[kind][0]
