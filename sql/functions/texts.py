"""Strings, bytes, hashes, encodings and regular expressions."""

import re
from collections.abc import Sequence

from sql.functions.registry import Render, Table
from sql.values import LakeGapError, Value, quote_text

TABLE = Table()
_s = TABLE.scalar

# Valid UTF-8 as Google reads it, in hex: whole characters first, then any single byte as a stray one.
_UTF8_UNITS = (
    "[0-7].|C[2-9A-F][89AB].|D.[89AB].|E0[AB].[89AB].|E[1-9A-CEF][89AB].[89AB].|ED[89].[89AB]."
    "|F0[9AB].[89AB].[89AB].|F[1-3][89AB].[89AB].[89AB].|F48.[89AB].[89AB].|.."
)


def safe_text(blob: str) -> str:
    """Return the lake's text for bytes as a string, every stray byte made U+FFFD."""
    units = f"regexp_extract_all(hex({blob}), '{_UTF8_UNITS}')"
    mended = f"list_transform({units}, lambda u: CASE WHEN length(u) = 2 AND u >= '80' THEN 'EFBFBD' ELSE u END)"
    return f"coalesce(TRY(decode({blob})), decode(from_hex(array_to_string({mended}, ''))))"


def _by_type(text: str, data: str | None) -> Render:
    def render(args: Sequence[Value]) -> str:
        is_bytes = args[0].type.name == "BYTES"
        template = data if is_bytes else text
        if template is None:
            raise LakeGapError("it has no counterpart for BYTES")
        for index, arg in enumerate(args):
            template = template.replace(f"{{{index}}}", arg.lake)
        return template

    return render


def pattern(value: Value, *, groups: int | None = None) -> str:
    """Return a constant regular expression, which both engines read as RE2.

    Raises:
        LakeGapError: it is computed from a column, or has more than ``groups`` groups.
    """
    if not isinstance(value.constant, str):
        raise LakeGapError("a regular expression that is not a constant")
    if groups is not None and count_groups(value.constant) > groups:
        raise LakeGapError("a regular expression with more than one group")
    return quote_text(value.constant)


def count_groups(text: str) -> int:
    r"""Count capturing groups of an RE2 pattern.

    Example:
        >>> count_groups(r"a(b)(?:c)(?P<d>e)[(]\(")
        2
    """
    bare = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "", text, flags=re.DOTALL)
    return len(re.findall(r"\((?!\?)|\(\?P?<[A-Za-z]", bare))


def _regexp_extract(args: Sequence[Value]) -> str:
    if len(args) > 2:
        raise LakeGapError("REGEXP_EXTRACT with a position")
    regex = pattern(args[1], groups=1)
    group = count_groups(str(args[1].constant))
    # The engine gives '' where nothing matches; GoogleSQL gives NULL.
    return f"CASE WHEN regexp_matches({args[0].lake}, {regex}) THEN regexp_extract({args[0].lake}, {regex}, {group}) END"


def _regexp_all(args: Sequence[Value]) -> str:
    regex = pattern(args[1], groups=1)
    return f"regexp_extract_all({args[0].lake}, {regex}, {count_groups(str(args[1].constant))})"


def _only_text(template: str) -> Render:
    return _by_type(template, None)


_s("SAFE_CONVERT_BYTES_TO_STRING", "BYTES", "STRING", lambda args: safe_text(args[0].lake))
_s("UPPER", "STR", "T0", _only_text("upper({0})"))
_s("LOWER", "STR", "T0", _only_text("lower({0})"))
_s("LENGTH", "STR", "INT64", _by_type("length({0})", "octet_length({0})"))
_s("CHAR_LENGTH", "STRING", "INT64", "length({0})")
_s("CHARACTER_LENGTH", "STRING", "INT64", "length({0})")
_s("BYTE_LENGTH", "STR", "INT64", _by_type("octet_length(encode({0}))", "octet_length({0})"))
_s("OCTET_LENGTH", "STR", "INT64", _by_type("octet_length(encode({0}))", "octet_length({0})"))
_s("STARTS_WITH", "T T", "BOOL", _by_type("starts_with({0}, {1})", "starts_with(hex({0}), hex({1}))"))
_s("ENDS_WITH", "T T", "BOOL", _by_type("ends_with({0}, {1})", "ends_with(hex({0}), hex({1}))"))
_s("CONTAINS_SUBSTR", "STRING STRING", "BOOL", "contains(lower(nfc_normalize({0})), lower(nfc_normalize({1})))")
_s("STRPOS", "T T", "INT64", _only_text("strpos({0}, {1})"))
_s("TRIM", "STR ?STR", "T0", _only_text("trim({0})"))
_s("CONCAT", "STR *STR", "T0", lambda args: "(" + " || ".join(arg.lake for arg in args) + ")")
_s("REPLACE", "T T T", "T0", _only_text("CASE WHEN {1} = '' THEN {0} ELSE replace({0}, {1}, {2}) END"))
_s("REVERSE", "STR", "T0", _only_text("reverse({0})"))
_s("REGEXP_CONTAINS", "STRING STRING", "BOOL", lambda args: f"regexp_matches({args[0].lake}, {pattern(args[1])})")
_s("REGEXP_EXTRACT", "STRING STRING ?INT64 ?INT64", "STRING", _regexp_extract)
_s("REGEXP_SUBSTR", "STRING STRING ?INT64 ?INT64", "STRING", _regexp_extract)
_s("REGEXP_EXTRACT_ALL", "STRING STRING", "ARRAY<STRING>", _regexp_all)
_s("TO_HEX", "BYTES", "STRING", "lower(hex({0}))")
_s("FROM_HEX", "STRING", "BYTES", "from_hex({0})")
_s("TO_BASE64", "BYTES", "STRING", "to_base64({0})")
_s("FROM_BASE64", "STRING", "BYTES", "from_base64({0})")
_s("MD5", "STR", "BYTES", "from_hex(md5({0}))")
_s("SHA256", "STR", "BYTES", "from_hex(sha256({0}))")
