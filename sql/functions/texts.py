"""Strings, bytes, hashes, encodings and regular expressions."""

import re
from collections.abc import Sequence
from typing import Final

import regex

from sql.functions.registry import Render, Table, fill
from sql.values import LakeGapError, Value, quote_text

MAX_PATTERN: Final = 1_000
# No text is longer; the engine fails for larger numbers.
_LONGEST: Final = 2**31 - 1
_BITS: Final = 2**32 - 1
# What Unicode calls white space.
_BLANKS: Final = "".join(
    map(chr, [*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029])
) + ("\u202f\u205f\u3000")
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
    # Said as nowhere outside of TRY: the engine would compute both at once, and fail.
    return f"coalesce(TRY(decode({blob}, 'strict')), decode(from_hex(array_to_string({mended}, ''))))"


def _by_type(text: str, data: str | None) -> Render:
    def render(args: Sequence[Value]) -> str:
        is_bytes = args[0].type.name == "BYTES"
        template = data if is_bytes else text
        if template is None:
            raise LakeGapError("it has no counterpart for BYTES")
        return fill(template, args)

    return render


def pattern(value: Value, *others: str, groups: int | None = None) -> str:
    """Return a constant regular expression, which both engines read as RE2.

    The lake's engine reads a constant before it looks at a row, Google where none of ``others`` is NULL.
    So one that the engine may not be able to read is put as no constant.

    Raises:
        LakeGapError: it is computed from a column, or has more than ``groups`` groups.
    """
    if not isinstance(value.constant, str):
        raise LakeGapError("a regular expression that is not a constant")
    if len(value.constant) > MAX_PATTERN:
        raise LakeGapError("a regular expression of that length")
    if groups is not None and count_groups(value.constant) > groups:
        raise LakeGapError("a regular expression with more than one group")
    text = quote_text(value.constant) if value.is_literal else value.lake
    if _is_readable(value.constant):
        return text
    return f"CASE WHEN {' AND '.join(f'{each} IS NOT NULL' for each in others)} THEN {text} END"


# What Python reads and RE2 does not, or what it warns of.
_READ_OTHERWISE: Final = re.compile(
    r"\(\?[^:]|\\[^dDwWsSbB.()\[\]{}*+?^$|/\\-]|[+*?}]\+|\{\d{3}|[)}]\{|\[.*(?:\[|--|&&|~~|\|\|)"
)


def _is_readable(pattern: str) -> bool:
    """Return whether RE2 reads a pattern for sure: what both Python and RE2 know.

    Example:
        >>> [_is_readable(text) for text in ("^[a-z]+(?:b|c)$", "(", "(?=a)", "a++")]
        [True, False, False, False]
    """
    if _READ_OTHERWISE.search(pattern):
        return False
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


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
    if args[0].type.name == "BYTES":
        raise LakeGapError("a regular expression over BYTES")
    quoted = pattern(args[1], args[0].lake, groups=1)
    group = count_groups(str(args[1].constant))
    text = args[0].lake
    if group and re.search(r"[|?*{]", str(args[1].constant)):
        # Of a group that took no part the engine gives '' here, GoogleSQL NULL.
        return f"regexp_extract_all({text}, {quoted}, {group})[1]"
    # The engine gives '' where nothing matches; GoogleSQL gives NULL.
    return f"CASE WHEN regexp_matches({text}, {quoted}) THEN regexp_extract({text}, {quoted}, {group}) END"


def _matches(args: Sequence[Value]) -> str:
    if args[0].type.name == "BYTES":
        raise LakeGapError("a regular expression over BYTES")
    return f"regexp_matches({args[0].lake}, {pattern(args[1], args[0].lake)})"


def _regexp_all(args: Sequence[Value]) -> str:
    if args[0].type.name == "BYTES":
        raise LakeGapError("a regular expression over BYTES")
    quoted = pattern(args[1], args[0].lake, groups=1)
    if _may_be_empty(str(args[1].constant)):
        raise LakeGapError("a regular expression that may match nothing")
    found = f"regexp_extract_all({args[0].lake}, {quoted}, {count_groups(str(args[1].constant))})"
    return f"list_transform({found}, lambda t: coalesce(t, ''))"


def _may_be_empty(text: str) -> bool:
    """Return whether a pattern may match no character; what this reader does not know counts as one."""
    try:
        return regex.search(text, "") is not None or regex.search(text, "a b", pos=1, endpos=1) is not None
    except regex.error:
        return True


def _only_text(template: str) -> Render:
    return _by_type(template, None)


def _start(args: Sequence[Value], length: str, longest: int) -> str:
    """Return the first position of SUBSTR: 0 is 1, a negative one counts from the end and stops at the start."""
    known = args[1].constant
    if isinstance(known, int) and known >= 0:
        return str(min(max(known, 1), longest))
    place = args[1].lake
    back = f"WHEN {place} < 0 THEN greatest({length} + {place} + 1, 1)"
    return f"(CASE {back} WHEN {place} >= 0 THEN least(greatest({place}, 1), {longest}) END)"


def _substr(args: Sequence[Value]) -> str:
    text = args[0].lake
    is_bytes = args[0].type.name == "BYTES"
    # Two digits stand for a byte.
    longest = _LONGEST // 2 if is_bytes else _LONGEST
    start = _start(args, f"octet_length({text})" if is_bytes else f"length({text})", longest)
    count = ""
    if len(args) == 3:
        count = args[2].lake
        negative = f"CASE WHEN {text} IS NOT NULL THEN error('Third argument in SUBSTR() cannot be negative') END"
        # Of BYTES, Google's engine takes the last 32 bits of the length.
        taken = f"({count} & {_BITS})" if is_bytes else count
        count = f"CASE WHEN {count} < 0 THEN {negative} WHEN {taken} > {longest} THEN {longest} ELSE {taken} END"
        if isinstance(args[2].constant, int) and args[2].constant >= 0:
            count = str(min(args[2].constant & _BITS if is_bytes else args[2].constant, longest))
    if is_bytes:
        more = f", ({count}) * 2" if count else ""
        return f"from_hex(substr(hex({text}), ({start} - 1) * 2 + 1{more}))"
    return f"substr({text}, {start}{', ' + count if count else ''})"


def _side(name: str) -> Render:
    def render(args: Sequence[Value]) -> str:
        if args[0].type.name == "BYTES":
            raise LakeGapError("it has no counterpart for BYTES")
        count = args[1].lake
        negative = f"error('Second argument in {name.upper()}() cannot be negative')"
        few = f"{name}({args[0].lake}, CASE WHEN {count} > {_LONGEST} THEN {_LONGEST} ELSE {count} END)"
        return f"CASE WHEN {count} < 0 AND {args[0].lake} IS NOT NULL THEN {negative} ELSE {few} END"

    return render


def _padded(name: str) -> Render:
    def render(args: Sequence[Value]) -> str:
        if args[0].type.name == "BYTES":
            raise LakeGapError("it has no counterpart for BYTES")
        filler = args[2].lake if len(args) > 2 else "' '"
        padded = f"{name}({args[0].lake}, CAST({args[1].lake} AS INTEGER), {filler})"
        wrong = f"{args[1].lake} < 0" + (f" OR {filler} = ''" if len(args) > 2 else "")
        # Of a call with a NULL nothing else counts.
        known = " AND ".join(f"{text} IS NOT NULL" for text in (args[0].lake, filler))
        error = f"WHEN {known} AND ({wrong}) THEN error('Wrong length or pattern')"
        return f"CASE {error} ELSE {padded} END"

    return render


def _trimmed(name: str) -> Render:
    def render(args: Sequence[Value]) -> str:
        if args[0].type.name == "BYTES":
            raise LakeGapError("it has no counterpart for BYTES")
        blanks = args[1].lake if len(args) > 1 else quote_text(_BLANKS)
        return f"{name}({args[0].lake}, {blanks})"

    return render


def _regexp_replace(args: Sequence[Value]) -> str:
    if args[0].type.name == "BYTES":
        raise LakeGapError("it has no counterpart for BYTES")
    found = pattern(args[1], args[0].lake, args[2].lake)
    return f"regexp_replace({args[0].lake}, {found}, {args[2].lake}, 'g')"


def _split(args: Sequence[Value]) -> str:
    if args[0].type.name == "BYTES":
        raise LakeGapError("it has no counterpart for BYTES")
    if len(args) == 1:
        return f"string_split({args[0].lake}, ',')"
    return fill("CASE WHEN {1} IS NOT NULL THEN string_split({0}, {1}) END", args)


def _by_code_points(native: str, other: str) -> Render:
    """Return what the engine gives of ASCII, and a function of ours of the rest."""
    return _only_text(f"CASE WHEN octet_length(encode({{0}})) = length({{0}}) THEN {native} ELSE {other} END")


def _instr(args: Sequence[Value]) -> str:
    if len(args) > 2:
        raise LakeGapError("with a position")
    return _only_text("strpos({0}, {1})")(args)


def _repeated(args: Sequence[Value]) -> str:
    wrong = "WHEN {0} IS NOT NULL AND {1} < 0 THEN error('Repetition of a negative number')"
    return fill(f"CASE {wrong} ELSE repeat({{0}}, {{1}}) END", args)


def _translated(args: Sequence[Value]) -> str:
    if args[0].type.name == "BYTES":
        raise LakeGapError("it has no counterpart for BYTES")
    known = args[1].constant
    is_plain = isinstance(known, str) and len(set(known)) == len(known)
    return fill("translate({0}, {1}, {2})" if is_plain else "refeed_translate({0}, {1}, {2})", args)


def _digest(name: str) -> Render:
    return lambda args: f"from_hex({name}({args[0].lake}))"


_edit_distance = _only_text(
    "CASE WHEN octet_length(encode({0} || {1})) = length({0} || {1}) THEN levenshtein({0}, {1}) "
    "ELSE refeed_edit_distance({0}, {1}) END"
)

_s("SAFE_CONVERT_BYTES_TO_STRING", "BYTES", "STRING", lambda args: safe_text(args[0].lake))
_s("UPPER", "STR", "T0", _by_code_points("upper({0})", "refeed_upper({0})"))
_s("LOWER", "STR", "T0", _by_code_points("lower({0})", "refeed_lower({0})"))
_s("LENGTH", "STR", "INT64", _by_type("length({0})", "octet_length({0})"))
_s("CHAR_LENGTH", "STRING", "INT64", "length({0})")
_s("CHARACTER_LENGTH", "STRING", "INT64", "length({0})")
_s("BYTE_LENGTH", "STR", "INT64", _by_type("octet_length(encode({0}))", "octet_length({0})"))
_s("OCTET_LENGTH", "STR", "INT64", _by_type("octet_length(encode({0}))", "octet_length({0})"))
_s("STARTS_WITH", "STR STR", "BOOL", _by_type("starts_with({0}, {1})", "starts_with(hex({0}), hex({1}))"))
_s("ENDS_WITH", "STR STR", "BOOL", _by_type("ends_with({0}, {1})", "ends_with(hex({0}), hex({1}))"))
_s("CONTAINS_SUBSTR", "ANY STRING", "BOOL", named="json_scope")
_s("SEARCH", "ANY STRING", "BOOL", named="json_scope analyzer analyzer_options")
_s("STRPOS", "STR STR", "INT64", _only_text("strpos({0}, {1})"))
_s("INSTR", "STR STR ?INT64 ?INT64", "INT64", _instr)
_s("TRIM", "STR ?STR", "T0", _trimmed("trim"))
_s("LTRIM", "STR ?STR", "T0", _trimmed("ltrim"))
_s("RTRIM", "STR ?STR", "T0", _trimmed("rtrim"))
_s("LPAD", "STR INT64 ?STR", "T0", _padded("lpad"))
_s("RPAD", "STR INT64 ?STR", "T0", _padded("rpad"))
_s("LEFT", "STR INT64", "T0", _side("left"))
_s("RIGHT", "STR INT64", "T0", _side("right"))
_s("SUBSTR", "STR INT64 ?INT64", "T0", _substr)
_s("SUBSTRING", "STR INT64 ?INT64", "T0", _substr)
_s("SPLIT", "STR ?STR", "ARRAY<T0>", _split)
_s("CONCAT", "STR *STR", "T0", lambda args: "(" + " || ".join(arg.lake for arg in args) + ")")
_s("REPEAT", "STR INT64", "T0", _repeated)
_s(
    "REPLACE",
    "STR STR STR",
    "T0",
    _only_text("CASE WHEN {1} = '' AND {2} IS NOT NULL THEN {0} ELSE replace({0}, {1}, {2}) END"),
)
_s("REVERSE", "STR", "T0", _by_code_points("reverse({0})", "refeed_reverse({0})"))
_s("TRANSLATE", "STR STR STR", "T0", _translated)
_s("NORMALIZE", "STRING ?ANY", "STRING", {1: "nfc_normalize({0})"})
_s("NORMALIZE_AND_CASEFOLD", "STRING ?ANY", "STRING")
_s("COLLATE", "STRING STRING", "STRING")
_s("EDIT_DISTANCE", "STR STR", "INT64", _edit_distance, named="max_distance")
_s("SOUNDEX", "STRING", "STRING")
_s(
    "ASCII",
    "STRING",
    "INT64",
    "CASE WHEN {0} = '' THEN 0 WHEN unicode({0}) > 127 THEN error('No ASCII character') ELSE unicode({0}) END",
)
_s("UNICODE", "STRING", "INT64", "CASE WHEN {0} = '' THEN 0 ELSE unicode({0}) END")
_s("CHR", "INT64", "STRING", "CASE WHEN {0} = 0 THEN '' ELSE chr(CAST({0} AS INTEGER)) END")
_s("CODE_POINTS_TO_BYTES", "ARRAY", "BYTES")
_s("REGEXP_CONTAINS", "STR STR", "BOOL", _matches)
_s("REGEXP_EXTRACT", "STR STR ?INT64 ?INT64", "T0", _regexp_extract)
_s("REGEXP_SUBSTR", "STR STR ?INT64 ?INT64", "T0", _regexp_extract)
_s("REGEXP_EXTRACT_ALL", "STR STR", "ARRAY<T0>", _regexp_all)
_s("REGEXP_INSTR", "STR STR ?INT64 ?INT64 ?INT64", "INT64")
_s("REGEXP_REPLACE", "STR STR STR", "T0", _regexp_replace)
_s("TO_HEX", "BYTES", "STRING", "lower(hex({0}))")
_s("FROM_HEX", "STRING", "BYTES", "from_hex({0})")
_s("TO_BASE64", "BYTES", "STRING", "to_base64({0})")
_s(
    "FROM_BASE64",
    "STRING",
    "BYTES",
    "CASE WHEN length({0}) % 4 = 0 AND regexp_full_match({0}, '[A-Za-z0-9+/]*') THEN from_base64({0}) "
    "ELSE refeed_from_base64({0}) END",
)
_s("TO_BASE32", "BYTES", "STRING")
_s("FROM_BASE32", "STRING", "BYTES")
_s("MD5", "STR", "BYTES", _digest("md5"))
_s("SHA1", "STR", "BYTES", _digest("sha1"))
_s("SHA256", "STR", "BYTES", _digest("sha256"))

# The functions of NET that only cut strings; none of them opens a connection.
_s("NET.HOST", "STRING", "STRING")
_s("NET.PUBLIC_SUFFIX", "STRING", "STRING")
_s("NET.REG_DOMAIN", "STRING", "STRING")
_s("NET.IP_FROM_STRING", "STRING", "BYTES")
_s("NET.SAFE_IP_FROM_STRING", "STRING", "BYTES")
_s("NET.IP_TO_STRING", "BYTES", "STRING")
_s("NET.IP_NET_MASK", "INT64 INT64", "BYTES")
_s("NET.IP_TRUNC", "BYTES INT64", "BYTES")
_s("NET.IPV4_FROM_INT64", "INT64", "BYTES")
_s("NET.IPV4_TO_INT64", "BYTES", "INT64")
