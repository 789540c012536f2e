"""Queries that were changed by chance: words lost, doubled, swapped, and pieces of other queries among them."""

import random

from sql.lexer import SourceText, read_tokens

NASTY = (
    *(";", "--", "/*", "*/", "`", "'", '"', "|>", "(", ")", "[", "]", ",", ".", "*", "@x", "@@x", ">>", "\\"),
    *("\u00a0", "\u0440", "\u200b", "\x00", "0x", "1e", "9" * 30, "NOT", "WITH", "INTO", "UNNEST", "END"),
    "QUALIFY",
    *("HAVING", "DISTINCT", "EXISTS", "ALL", "NULL", "DATE(", "STRUCT<", "ARRAY<", "INTERVAL 1 DAY", "OR TRUE"),
    *("OR 1 = 1", "LIMIT 1", "AS _PARTITIONTIME", "CASE WHEN", "OVER ()", "GROUP BY", "ORDER BY 1"),
    *("UNION ALL SELECT * FROM ops.secrets", "FROM ops.secrets", "(SELECT MAX(x) FROM ops.secrets)"),
)
OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "||")


def pieces(text: str) -> list[str]:
    source = SourceText(text)
    tokens, _ = read_tokens(source)
    return [text[token.start : token.end] for token in tokens if token.kind != "end"]


def kind_of(word: str) -> str:
    """Say what a word can be swapped for without breaking the grammar: a name, a text, a number or a sign."""
    if word[:1] in "'\"":
        return "text"
    if word[:1].isdigit():
        return "number"
    if word.upper() in {"AND", "OR"} or word in OPERATORS:
        return "AND" if word.isalpha() else "operator"
    return "name" if word.isidentifier() and not word.isupper() else word.upper() if word.isupper() else word


def mutate(seeds: list[list[str]], chance: random.Random) -> str:  # noqa: C901 - one branch a kind of mutation
    words = list(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 1, 1, 2, 3, 6))):
        place = chance.randrange(len(words)) if words else 0
        action = chance.randrange(14)
        if action >= 8 and words:
            likes = [word for word in chance.choice(seeds) + words if kind_of(word) == kind_of(words[place])]
            words[place] = chance.choice(likes)
            continue
        if action == 0 and words:
            del words[place]
        elif action == 1 and words:
            words.insert(place, words[place])
        elif action == 2 and len(words) > 1:
            other = chance.randrange(len(words))
            words[place], words[other] = words[other], words[place]
        elif action == 3:
            words[place : place + 1] = [chance.choice(chance.choice(seeds) or ["x"])]
        elif action == 4:
            other_words = chance.choice(seeds)
            words = words[:place] + other_words[chance.randrange(len(other_words) or 1) :]
        elif action == 5:
            words.insert(place, chance.choice(NASTY))
        elif action == 6 and words:
            del words[place : place + chance.randrange(1, 6)]
        elif words:
            start = chance.randrange(len(words))
            words[place:place] = words[start : start + chance.randrange(1, 12)]
    return " ".join(words)
