"""A place in the tokens: what every part of the grammar looks at, takes and refuses."""

import re
from typing import Final, NoReturn

from sql.lexer import MAX_NESTING, SourceText, Token
from sql.syntax import Name
from sql.violation import Fault

# The reserved words of GoogleSQL: none of them is a name unless it is quoted.
RESERVED: Final = frozenset(
    [
        "ALL",
        "AND",
        "ANY",
        "ARRAY",
        "AS",
        "ASC",
        "ASSERT_ROWS_MODIFIED",
        "AT",
        "BETWEEN",
        "BY",
        "CASE",
        "CAST",
        "COLLATE",
        "CONTAINS",
        "CREATE",
        "CROSS",
        "CUBE",
        "CURRENT",
        "DEFAULT",
        "DEFINE",
        "DESC",
        "DISTINCT",
        "ELSE",
        "END",
        "ENUM",
        "ESCAPE",
        "EXCEPT",
        "EXCLUDE",
        "EXISTS",
        "EXTRACT",
        "FALSE",
        "FETCH",
        "FOLLOWING",
        "FOR",
        "FROM",
        "FULL",
        "GROUP",
        "GROUPING",
        "GROUPS",
        "HASH",
        "HAVING",
        "IF",
        "IGNORE",
        "IN",
        "INNER",
        "INTERSECT",
        "INTERVAL",
        "INTO",
        "IS",
        "JOIN",
        "LATERAL",
        "LEFT",
        "LIKE",
        "LIMIT",
        "LOOKUP",
        "MERGE",
        "NATURAL",
        "NEW",
        "NO",
        "NOT",
        "NULL",
        "NULLS",
        "OF",
        "ON",
        "OR",
        "ORDER",
        "OUTER",
        "OVER",
        "PARTITION",
        "PRECEDING",
        "PROTO",
        "QUALIFY",
        "RANGE",
        "RECURSIVE",
        "RESPECT",
        "RIGHT",
        "ROLLUP",
        "ROWS",
        "SELECT",
        "SET",
        "SOME",
        "STRUCT",
        "TABLESAMPLE",
        "THEN",
        "TO",
        "TREAT",
        "TRUE",
        "UNBOUNDED",
        "UNION",
        "UNNEST",
        "USING",
        "WHEN",
        "WHERE",
        "WINDOW",
        "WITH",
        "WITHIN",
        "GRAPH_TABLE",
        "MATCH_RECOGNIZE",
    ]
)

# First words of statements that are not queries; the first word decides what a person is told.
STATEMENTS: Final = frozenset(
    [
        "ALTER",
        "ANALYZE",
        "ASSERT",
        "BEGIN",
        "BREAK",
        "CALL",
        "CASE",
        "CLONE",
        "COMMIT",
        "CONTINUE",
        "CREATE",
        "DECLARE",
        "DEFINE",
        "DELETE",
        "DESCRIBE",
        "DROP",
        "ELSEIF",
        "END",
        "EXECUTE",
        "EXPLAIN",
        "EXPORT",
        "GRANT",
        "IF",
        "IMPORT",
        "INSERT",
        "ITERATE",
        "LEAVE",
        "LOAD",
        "LOOP",
        "MERGE",
        "MODULE",
        "RAISE",
        "RENAME",
        "REPEAT",
        "RETURN",
        "REVOKE",
        "ROLLBACK",
        "RUN",
        "SET",
        "SHOW",
        "START",
        "TRUNCATE",
        "UNDROP",
        "UPDATE",
        "USE",
        "WHILE",
    ]
)

_DASHED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:-[A-Za-z0-9_]+)+(?=\s*\.)")


class GrammarError(Exception):
    """The text is not a query that the grammar knows; ``fault`` says where and why."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class Cursor:
    """Walks over tokens; every look costs the same, nothing is ever read twice but for one remembered place."""

    def __init__(self, source: SourceText, tokens: list[Token]) -> None:
        self.source = source
        self._tokens = tokens
        self._index = 0
        self._depth = 0

    @property
    def token(self) -> Token:
        """The token at hand."""
        return self._tokens[self._index]

    @property
    def at(self) -> int:
        """Where the token at hand starts."""
        return self._tokens[self._index].start

    def peek(self, ahead: int = 1) -> Token:
        """Return the token ``ahead`` places further, the end token when there are fewer."""
        return self._tokens[min(self._index + ahead, len(self._tokens) - 1)]

    def follows(self, symbol: str, ahead: int = 1) -> bool:
        """Say whether the token ``ahead`` places further is this sign, and not a text that reads like it."""
        token = self.peek(ahead)
        return token.kind == "symbol" and token.value == symbol

    def take(self) -> Token:
        """Return the token at hand and go on."""
        token = self._tokens[self._index]
        if token.kind == "bad":
            assert token.fault is not None  # bad tokens carry their fault
            raise GrammarError(token.fault)
        if token.kind != "end":
            self._index += 1
        return token

    def is_word(self, *words: str) -> bool:
        """Say whether the token at hand is one of these words, unquoted."""
        return self._tokens[self._index].upper in words

    def is_symbol(self, *symbols: str) -> bool:
        """Say whether the token at hand is one of these signs."""
        token = self._tokens[self._index]
        return token.kind == "symbol" and token.value in symbols

    def are_words(self, *words: str) -> bool:
        """Say whether these words come next, in this order."""
        return all(self.peek(n).upper == word for n, word in enumerate(words))

    def accept_word(self, *words: str) -> str | None:
        """Take the word at hand when it is one of these."""
        if self._tokens[self._index].upper in words:
            return self.take().upper
        return None

    def accept_words(self, *words: str) -> bool:
        """Take these words when they come next, in this order."""
        if self.are_words(*words):
            self._index += len(words)
            return True
        return False

    def accept_symbol(self, *symbols: str) -> str | None:
        """Take the sign at hand when it is one of these."""
        if self.is_symbol(*symbols):
            return str(self.take().value)
        return None

    def expect_word(self, word: str) -> Token:
        """Take this word or refuse."""
        if not self.is_word(word):
            self.refuse(f"Expected {word}")
        return self.take()

    def expect_symbol(self, symbol: str) -> Token:
        """Take this sign or refuse."""
        if not self.is_symbol(symbol):
            self.refuse(f"Expected {symbol!r}")
        return self.take()

    def is_name(self) -> bool:
        """Say whether the token at hand can be a name."""
        token = self._tokens[self._index]
        return token.kind == "quoted" or (token.kind == "name" and token.upper not in RESERVED)

    def expect_name(self) -> Name:
        """Take a name or refuse."""
        if not self.is_name():
            self.refuse("Expected a name")
        token = self.take()
        return Name(token.start, str(token.value), token.kind == "quoted")

    def expect_field(self) -> Name:
        """Take the name after a dot, where reserved words are names too."""
        token = self.token
        if token.kind not in {"name", "quoted"}:
            self.refuse("Expected a name after the dot")
        self.take()
        return Name(token.start, str(token.value), token.kind == "quoted")

    def accept_dashed(self) -> Name | None:
        """Take a project name with dashes, which is legal unquoted at the start of a table's path only."""
        match = _DASHED.match(self.source.text, self.at) if self.token.kind == "name" else None
        if match is None:
            return None
        start = self.at
        while self.token.kind != "end" and self.token.start < match.end():
            self._index += 1
        if self.peek(-1).end > match.end():
            # `p-1.` was read as a float: its dot goes back as a sign of its own.
            self._index -= 1
            self._tokens[self._index] = Token("symbol", ".", "", match.end(), match.end() + 1)
        return Name(start, match.group(), is_quoted=True)

    def enter(self) -> None:
        """Go one level deeper; refuse below the limit, so that recursion is bounded whatever the text."""
        self._depth += 1
        if self._depth > MAX_NESTING * 2:
            raise GrammarError(Fault("query_too_deep", "The query nests too deep.", self.at, "Use a WITH clause."))

    def leave(self) -> None:
        """Come back up."""
        self._depth -= 1

    def refuse(self, what: str, code: str = "syntax", rewrite: str | None = None) -> NoReturn:
        """Raise a fault at the token at hand, naming it."""
        token = self.token
        if token.kind == "bad":
            assert token.fault is not None  # bad tokens carry their fault
            raise GrammarError(token.fault)
        found = (
            "the end of the query" if token.kind == "end" else f"{self.source.text[token.start : token.end][:60]}"
        )
        message = f"{what}, found {found}." if code == "syntax" else what
        raise GrammarError(Fault(code, message, token.start, rewrite))
